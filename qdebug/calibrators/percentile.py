"""percentile: the range leaves out a fixed share of the largest magnitudes.

As in Wu et al., "Integer quantization for deep learning inference: principles and empirical
evaluation", 2020, arXiv:2004.09602, and in ONNX Runtime's PercentileCalibrater.
"""

from __future__ import annotations

from qdebug.calibrators.histogram import TensorHistogram


def percentile_amax(histogram: TensorHistogram, percentile: float) -> float:
    """amax = the `percentile`-th percentile of |x| (0 < percentile <= 100).

    Where more than that share of the values is 0, the result would be 0 and clip every other value;
    the exact amax is used instead.
    """
    amax = histogram.magnitude_percentile(percentile)
    return amax if amax > 0 else histogram.amax
