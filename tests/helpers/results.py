"""Results as JSON, to be compared."""

from __future__ import annotations

from typing import Any


def without_times(value: Any) -> Any:
    """A result's JSON without how long anything took."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in ("seconds", "timings_s")}
        return {k: without_times(v) for k, v in kept.items()}
    return [without_times(v) for v in value] if isinstance(value, list) else value
