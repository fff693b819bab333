"""mean-max: the range ends at the average of the samples' largest magnitudes.

About half of the samples clip a little, and a single extreme sample counts only for its share.
"""

from __future__ import annotations

from qdebug.calibrators.histogram import TensorHistogram


def mean_max_amax(histogram: TensorHistogram) -> float:
    """amax = mean over samples of max |x|, of the samples that have finite values; 0 without any.

    It does not depend on the batch size. ONNX Runtime's MinMaxCalibrater takes the same average, of
    batches instead of samples, with `moving_average` and a constant of 1/n.
    """
    if histogram.samples == 0:
        return 0.0
    return min(histogram.sample_amax_total / histogram.samples, histogram.amax)
