"""Running a model pair over samples: variants of plans, ranges, engines, worker processes.

What runs a single model is in `backends`; what the figures mean is in `analyse`.
"""
