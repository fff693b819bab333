"""The remedies by name, for settings and help texts, which must not load what the remedies need."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "weight-scales": "gives weights of one scale one for each output channel",
    "calibrator": "gives all activations the ranges of the best calibrator",
    "channel-scales": "evens out the input channels of grouped convolutions by a factor for each",
    "equalization": "evens out the ranges of channels through the weights before and after",
    "smoothing": "moves outlier channels of activations into the weights (SmoothQuant)",
    "offsets": "shifts activations that are hardly ever negative, so that all codes are used",
    "bias-correction": "gives each output channel the bias of least error behind its activation",
    "ranges": "clips each activation where the outputs' error is least",
    "least-squares": "refits weights to the quantized inputs",
    "head-shift": "gives the scores of FP32's own answers their mean back, by the biases of heads",
}
"""What each remedy does, in the order of the registry."""


def remedy_usage() -> str:
    """The names, each with what it does, for help texts."""
    return "; ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
