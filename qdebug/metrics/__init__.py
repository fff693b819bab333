"""What is measured on arrays: sums of an error, the metrics made of them, a task's score.

Pure functions and accumulators; nothing here runs a model or knows a command.
"""
