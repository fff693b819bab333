"""The remedies by name, for settings and help texts, which must not load what the remedies need."""

from __future__ import annotations

from collections.abc import Mapping

SUMMARIES: Mapping[str, str] = {
    "channel-scales": "a scale per channel for what grouped convolutions read",
    "least-squares": "refits weights to the inputs as they are quantized",
    "bias-correction": "takes the mean error of each output channel off its bias",
}
"""What each remedy does, in the order of the registry."""


def remedy_usage() -> str:
    """The names, each with what it does, for help texts."""
    return "; ".join(f"{name} ({summary})" for name, summary in SUMMARIES.items())
