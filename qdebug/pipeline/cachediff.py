"""How an existing calibration differs from a fresh one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.measure.calibration import FACTOR, CacheDifference, RangeDifference
from qdebug.plan.rangesfile import Ranges

_DENORMAL = float(np.finfo(np.float32).tiny) * 127


def compare_with_cache(
    file: Ranges,
    fresh: Mapping[str, TensorHistogram],
    needed: list[str],
) -> CacheDifference:
    """Compare the ranges of a file with what a fresh pass saw."""
    given = file.tensors
    different = []
    degenerate = []
    for tensor in given:
        if tensor not in fresh:
            continue
        amax, now = float(np.max(given[tensor].amax)), fresh[tensor].amax
        if amax < _DENORMAL and now > 0:
            degenerate.append(tensor)
        elif now > 0 and not 1 / FACTOR <= amax / now <= FACTOR:
            different.append(RangeDifference(tensor, amax, now))
    different.sort(key=lambda d: max(d.given / d.fresh, d.fresh / d.given), reverse=True)
    return CacheDifference(
        missing=tuple(t for t in needed if t not in given),
        unknown=tuple(t for t in given if t not in fresh),
        different=tuple(different),
        degenerate=tuple(degenerate),
        written_by=file.written_by,
    )
