"""Whether two ways to run a candidate agree."""

CLOSE_DB = 1.0
"""How far apart the SQNR of an output may be in two ways that agree."""
