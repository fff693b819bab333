"""End-to-end metrics: what the task makes of the outputs. A registry, one file for each metric, and
the user's own functions."""
