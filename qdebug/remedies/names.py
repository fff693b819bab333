"""The remedies by name, for settings and help texts, which must not load what the remedies need."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "fp16-rewrites": "fuses functions, and holds what FP16 cannot hold times a power of two",
    "channel-scales": "gives each channel that a grouped convolution reads a scale of its own",
    "equalization": "evens out the ranges of channels by the weights on both sides",
    "smoothing": "moves the range of outlier channels into the weights, layer by layer",
    "ranges": "ends each activation's range where the outputs' error is least",
    "weight-ranges": "ends each channel's weight range where the output's error is least",
    "least-squares": "refits weights to the inputs as they are quantized",
    "bias-correction": "takes the mean error of each output channel off its bias",
    "rounding": "rounds weights to the codes that together give the least error",
    "split": "splits outlier channels into parts, for more multiply-accumulates",
}
"""What each remedy does, in the order of the registry."""


def remedy_usage() -> str:
    """The names, each with what it does, for help texts."""
    return "; ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
