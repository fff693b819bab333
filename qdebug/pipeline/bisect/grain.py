"""How finely a metric can tell two networks apart on so many samples, next to what a target allows.

A share of 14 samples moves in steps of 0.07: a drop of 0.02 is none of them. That is said before a
search begins, which cannot find out what the samples cannot show.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.display.words import score
from qdebug.errors import MetricError
from qdebug.measure.task import is_share
from qdebug.pipeline.bisect.target import AccuracyTarget
from qdebug.pipeline.evaluator import MetricEvaluator
from qdebug.types import Array
from qdebug.wording import printable

_LOG = logging.getLogger(__name__)
_EXCHANGED = 4
"""Samples that get the outputs of another one, each by itself."""
_NOISES = 1e-3, 3e-3, 1e-2, 3e-2, 1e-1
"""Added to all outputs, next to their standard deviation, one after the other: a metric that counts
samples or boxes moves by one of them as soon as the first changes, and one that counts nothing by
very little."""


def grain_of(task: MetricEvaluator, samples: int, more_is_better: bool) -> float | None:
    """The smallest step down that a metric is seen to take from FP32's; None where it is not seen
    to take any. Of a share of the samples that is one of them."""
    if is_share(task.metric):
        return 1 / samples
    outputs = {name: np.asarray(array) for name, array in task.reference.items()}
    if samples < 2 or any(len(array) != samples for array in outputs.values()):
        return None
    sign = 1.0 if more_is_better else -1.0
    rows = np.linspace(0, samples - 1, min(_EXCHANGED, samples)).astype(int)
    lost: list[float] = []
    try:
        before = task.of_reference()
        for noise in _NOISES:  # either way: what lies close to a threshold crosses it in one
            changed = (_noisy(outputs, one) for one in (noise, -noise))
            lost += [sign * (before - task(one)) for one in changed]
            if max(lost) > 0:
                break
        for row in rows:
            order = np.arange(samples)
            order[row] = (row + 1) % samples
            lost.append(sign * (before - task({t: array[order] for t, array in outputs.items()})))
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


@dataclass(frozen=True)
class Coarse:
    """A metric whose steps are larger than what the target allows.

    Attributes:
        grain: the largest of its steps on any of the sample sets.
        note: that it is so, and how many samples it takes.
    """

    grain: float
    note: str


def coarse(
    target: AccuracyTarget,
    reference: float | None,
    grain: Callable[[], float | None],
    sets: Sequence[tuple[int, str]],
) -> Coarse | None:
    """Whether a step of the metric is more than the target allows; None where it is not.

    Args:
        reference: FP32's metric; None where it is not known yet.
        grain: see grain_of, on the first of the sets.
        sets: of all samples that the target is checked on, how many and what they are.
    """
    allowed = _tolerance(target, reference)
    step_down = grain() if allowed else None
    if step_down is None or not allowed:
        return None
    first = sets[0][0]
    steps = [(step_down * first / count, count, what) for count, what in sets]
    larger = [one for one in steps if allowed < one[0] * (1 - 1e-9)]
    if not larger:
        return None
    name = printable(target.metric_name)
    step = "one sample is" if is_share(target.metric) else "its smallest step seen is about"
    on = " and ".join(f"{score(size)} on the {count} {what}" for size, count, what in larger)
    needed = math.ceil(step_down * first / allowed - 1e-6)
    return Coarse(
        max(size for size, _, _ in larger),
        f"The target lets {name} be worse by {score(allowed)}, but {step} {on}: a single one "
        f"misses the target. It takes about {needed} samples to tell so small a difference.",
    )


def coarse_share(target: AccuracyTarget, sets: Sequence[tuple[int, str]]) -> Coarse | None:
    """The same where nothing has been run yet: of a share of the samples the counts tell it."""
    if target.allowed is None or not is_share(target.metric):
        return None
    return coarse(target, None, lambda: 1 / sets[0][0], sets)


def _tolerance(target: AccuracyTarget, reference: float | None) -> float | None:
    """By how much the metric may be worse than FP32's; None where the target does not say it."""
    if target.allowed is not None:
        return target.allowed
    condition = target.condition
    if condition is None or condition.scope != "metric" or reference is None:
        return None
    return abs(reference - condition.bound) if condition.holds_for(reference) else None


def told(found: Coarse | None) -> Coarse | None:
    """The same, said before the work begins: the notes of a result come at its end."""
    if found is not None:
        _LOG.warning("%s", found.note)
    return found
