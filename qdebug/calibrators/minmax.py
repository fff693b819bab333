"""minmax: the range ends at the largest magnitude. Nothing clips; an outlier makes a coarse step.

TensorRT's IInt8MinMaxCalibrator and ONNX Runtime's MinMaxCalibrater, without a moving average, take
the same range.
"""

from __future__ import annotations

from qdebug.calibrators.histogram import TensorHistogram


def minmax_amax(histogram: TensorHistogram) -> float:
    """amax = max |x|, exact; 0 for a tensor without finite values."""
    return histogram.amax
