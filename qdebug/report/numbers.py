"""Numbers that JSON lacks."""

from __future__ import annotations

import math
from typing import Any


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """`values` without NaN and Inf, which JSON lacks, and a key that tells which were which."""
    flags = {
        key: "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
        for key, value in values.items()
        if isinstance(value, float) and not math.isfinite(value)
    }
    cleaned = {key: None if key in flags else value for key, value in values.items()}
    return cleaned | {"non_finite": flags} if flags else cleaned
