"""mean-max: the range is what a sample's largest magnitude is on average.

Half of the samples clip a little, and a single extreme sample counts for its share only.
"""

from __future__ import annotations

from qdebug.calibrators.histogram import TensorHistogram


def mean_max_amax(histogram: TensorHistogram) -> float:
    """amax = mean over samples of max |x|, of the samples that have finite values; 0 without any.

    The same for any batch size. It is the average that ONNX Runtime's MinMax calibrator takes of
    batches with `moving_average` and a constant of 1/n, and Polygraphy's and TensorRT's users know
    as averaged max calibration.
    """
    if histogram.samples == 0:
        return 0.0
    return min(histogram.sample_amax_total / histogram.samples, histogram.amax)
