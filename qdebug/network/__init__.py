"""The user's network: its graph, its layers, its weights, and samples to run it on.

Nothing here is quantized: plans and Q/DQ are in `plan`.
"""
