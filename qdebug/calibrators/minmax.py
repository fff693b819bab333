"""minmax: the range is the largest magnitude seen. Nothing clips; an outlier stretches the step."""

from __future__ import annotations

from qdebug.calibrators.histogram import TensorHistogram


def minmax_amax(histogram: TensorHistogram) -> float:
    """amax = max |x|, exact."""
    return histogram.amax
