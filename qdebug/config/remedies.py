"""The remedies by name, for settings and help texts, which must not load what the remedies need."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "fp16-rewrites": "for FP16: fuses functions, scales what FP16 cannot hold by a power of two",
    "weight-scales": "gives weights of one scale one for each output channel",
    "calibrator": "gives all activations the ranges of the best calibrator",
    "channel-scales": "evens out the input channels of grouped convolutions by a factor for each",
    "equalization": "evens out the ranges of channels through the weights before and after",
    "smoothing": "moves outlier channels of activations into the weights (SmoothQuant)",
    "offsets": "shifts activations that are hardly ever negative, so that all codes are used",
    "bias-correction": "gives each output channel the bias of least error behind its activation",
    "ranges": "clips each activation where the outputs' error is least",
    "least-squares": "refits weights to the quantized inputs",
    "weight-ranges": "clips each weight channel where its layer's error is least",
    "rounding": "rounds weights so that their errors cancel (GPTQ)",
    "head-shift": "gives the scores of FP32's own answers their mean back, by the biases of heads",
    "split": "splits outlier channels in parts; the only remedy that costs speed",
}
"""What each remedy does, in the order of the registry."""


def remedy_usage() -> str:
    """The names, each with what it does, for help texts."""
    return "; ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
