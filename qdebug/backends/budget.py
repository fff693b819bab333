"""The memory that activations may take; apart from ONNX Runtime, for the command line."""

DEFAULT_BUDGET = 2 << 30
"""Bytes, where a command has no memory budget or is given none."""
