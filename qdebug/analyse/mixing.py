"""The best method of each tensor, chosen by how well it quantizes held-out data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.mse import squared_error
from qdebug.formats.base import Format
from qdebug.formats.registry import INT8
from qdebug.plan.plan import TensorRange
from qdebug.results.calibrate import Mix


def choose_mix(
    ranges: Mapping[str, Mapping[str, TensorRange]],
    held_out: Mapping[str, TensorHistogram],
    samples: int,
    form: Format = INT8,
) -> Mix:
    """For every tensor the range, of those in `ranges` by method, with the least expected squared
    error on held-out data, `samples` of them, in a format; the first method on a tie.

    It is chosen tensor by tensor and not by the outputs. The outputs of other samples evaluate it,
    like any other method.
    """
    first = next(iter(ranges.values()))
    chosen: dict[str, TensorRange] = {}
    for tensor in first:
        entries = [method[tensor] for method in ranges.values()]
        if tensor in held_out:
            errors = squared_error(held_out[tensor], [_amax(e) for e in entries], form)
            chosen[tensor] = entries[int(np.argmin(errors))]
        else:
            chosen[tensor] = entries[0]
    return Mix(chosen, Counter(entry.method for entry in chosen.values()), samples)


def _amax(entry: TensorRange) -> float:
    return max(entry.amax) if isinstance(entry.amax, tuple) else entry.amax
