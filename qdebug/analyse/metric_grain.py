"""In what steps a metric moves on so many samples: finer differences it cannot show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import numpy as np

from qdebug.errors import MetricError
from qdebug.execute.evaluator import MetricEvaluator
from qdebug.metrics.tasks.base import is_share
from qdebug.types import Array

_EXCHANGED = 4
"""Samples that get the outputs of another one, each by itself."""
_NOISES = 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0, 10.0
"""Added to all outputs, next to their standard deviation, one after the other: a metric that counts
samples or boxes moves by one of them as soon as the first changes, and one that counts nothing by
very little. Of probabilities of thousands of classes ten of them are a tenth."""
_FINEST, _HALVINGS = 1e3, 5
"""How much less than the first of them loses nothing, and how often what is between the last
noise without a loss and the first with one is halved, on a scale of logarithms."""
_MOST = 2 * len(_NOISES) + _HALVINGS + _EXCHANGED
"""Computations of the metric at most, besides that of FP32's own outputs."""


def grain_of(
    task: MetricEvaluator,
    samples: int,
    higher_is_better: bool | None = None,
    within_s: float = math.inf,
) -> float | None:
    """The smallest step down that a metric is seen to take from FP32's, or the smallest step where
    it is not known which way is down; None where it is not seen to take any. Of a share of the
    samples that is one of them.

    Args:
        within_s: seconds; the metric is computed as often as fits into them.
    """
    if is_share(task.metric):
        return 1 / samples
    outputs = {name: np.asarray(array) for name, array in task.reference.items()}
    if samples < 2 or any(len(array) != samples for array in outputs.values()):
        return None
    lost = _losses(task, outputs, samples, higher_is_better)
    try:
        most = int(min(_MOST, within_s / task.metric_s))
        return min((one for one in islice(lost, most) if one > 0), default=None)
    except MetricError:
        return None


def _losses(
    task: MetricEvaluator,
    outputs: Mapping[str, Array],
    samples: int,
    higher_is_better: bool | None,
) -> Iterator[float]:
    """What is lost by noise, and by outputs of other samples, one computation of the metric
    after the other."""
    before = task.of_reference()

    def lower(changed: Mapping[str, Array]) -> float:
        change = before - task(changed)
        return abs(change) if higher_is_better is None else change if higher_is_better else -change

    below = _NOISES[0] / _FINEST
    for noise in _NOISES:
        ways = []
        for signed in (noise, -noise):  # what lies close to a threshold crosses it in one
            ways.append((lower(_noisy(outputs, signed)), signed))
            yield ways[-1][0]
        most, above = max(ways)
        if most > 0:
            yield from _finer(lambda one: lower(_noisy(outputs, one)), below, above)
            break
        below = noise
    for row in np.linspace(0, samples - 1, min(_EXCHANGED, samples)).astype(int):
        order = np.arange(samples)
        order[row] = (row + 1) % samples
        yield lower({name: array[order] for name, array in outputs.items()})


def _finer(lower: Callable[[float], float], below: float, above: float) -> Iterator[float]:
    """What is lost at noises between one without a loss and one with: a metric that takes small
    steps takes several at once at the latter."""
    for _ in range(_HALVINGS):
        middle = math.copysign(math.sqrt(below * abs(above)), above)
        value = lower(middle)
        yield value
        if value > 0:
            above = middle
        else:
            below = abs(middle)


def _noisy(outputs: Mapping[str, Array], noise: float) -> dict[str, Array]:
    """With noise of so many standard deviations; probabilities stay between 0 and 1, by which some
    metrics know them."""
    random = np.random.default_rng(0)
    found = {}
    for name, array in outputs.items():
        found[name] = array
        if array.dtype.kind == "f":
            spread = noise * float(np.nanstd(array))
            noisy = np.empty_like(array)
            for row, values in enumerate(array):  # wide numbers take room
                noisy[row] = values + spread * random.standard_normal(values.shape)
            if array.size:
                noisy.clip(np.nanmin(array), np.nanmax(array), out=noisy)
            found[name] = noisy
    return found
