"""What the commands give back: the JSON contract, one module per command, and its words.

Frozen values only. Nothing here measures, decides or draws.
"""
