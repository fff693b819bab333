"""Number formats: which numbers each can hold, how values are rounded to them, what they cost.

Here belongs what follows from a format alone. What a plan, a graph or a runtime makes of one does
not: zero points that come from a model, ranges, Q/DQ pairs.
"""
