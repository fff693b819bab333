"""Settings of earlier versions that are gone, and what to use instead of each."""

from __future__ import annotations

REMOVED: dict[str, str] = {
    "segments": "Nothing: ONNX Runtime maps weights in external data, and --memory-budget limits "
    "the activations.",
}
"""What to write in place of a setting, by its name with underscores: one or two sentences."""
