"""In what steps a metric moves on so many samples: finer differences it cannot show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdebug.errors import MetricError
from qdebug.execute.evaluator import MetricEvaluator
from qdebug.metrics.tasks.base import is_share
from qdebug.types import Array

_EXCHANGED = 4
"""Samples that get the outputs of another one, each by itself."""
_NOISES = 1e-3, 3e-3, 1e-2, 3e-2, 1e-1
"""Added to all outputs, next to their standard deviation, one after the other: a metric that counts
samples or boxes moves by one of them as soon as the first changes, and one that counts nothing by
very little."""


def grain_of(
    task: MetricEvaluator, samples: int, higher_is_better: bool | None = None
) -> float | None:
    """The smallest step down that a metric is seen to take from FP32's, or the smallest step where
    it is not known which way is down; None where it is not seen to take any. Of a share of the
    samples that is one of them."""
    if is_share(task.metric):
        return 1 / samples
    outputs = {name: np.asarray(array) for name, array in task.reference.items()}
    if samples < 2 or any(len(array) != samples for array in outputs.values()):
        return None

    def lower(value: float) -> float:
        change = before - value
        return abs(change) if higher_is_better is None else change if higher_is_better else -change

    rows = np.linspace(0, samples - 1, min(_EXCHANGED, samples)).astype(int)
    lost: list[float] = []
    try:
        before = task.of_reference()
        for noise in _NOISES:  # either way: what lies close to a threshold crosses it in one
            changed = (_noisy(outputs, one) for one in (noise, -noise))
            lost += [lower(task(one)) for one in changed]
            if max(lost) > 0:
                break
        for row in rows:
            order = np.arange(samples)
            order[row] = (row + 1) % samples
            lost.append(lower(task({t: array[order] for t, array in outputs.items()})))
    except MetricError:
        return None
    return min((one for one in lost if one > 0), default=None)


def _noisy(outputs: Mapping[str, Array], noise: float) -> dict[str, Array]:
    random = np.random.default_rng(0)
    found = {}
    for name, array in outputs.items():
        found[name] = array
        if array.dtype.kind == "f":
            spread = noise * float(np.nanstd(array))
            found[name] = (array + spread * random.standard_normal(array.shape)).astype(array.dtype)
    return found
