"""One module or folder per command: settings in, result out. They join the other packages.

What a command measures, explains or decides is in `execute`, `analyse` and `decide`.
"""
