"""How finely a metric tells two networks apart on so many samples, next to what a target allows.

A share of 14 samples moves in steps of 0.07: a drop of 0.02 is none of them. That is said before a
search begins, which cannot find out what the samples cannot show.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qdebug.decide.bisect.target import AccuracyTarget
from qdebug.metrics.tasks.base import is_share
from qdebug.results.words import score
from qdebug.wording import counted, printable

_LOG = logging.getLogger(__name__)

_SURELY_LOST = 5
"""Samples that are lost, with none won, which chance gives in 1 of 32 cases: McNemar's test, exact
and one-sided."""
_UP = 1 - 1e-9
"""A share of samples is no exact number."""


@dataclass(frozen=True)
class Coarse:
    """A metric whose steps are too large for what the target allows.

    Attributes:
        grain: the largest of its steps on any of the sample sets, where a single one is more than
            that; None where it takes a few, which chance gives, too.
        note: that it is so, and how many samples it takes.
    """

    grain: float | None
    note: str


def coarse(
    target: AccuracyTarget,
    reference: float | None,
    grain: Callable[[], float | None],
    sets: Sequence[tuple[int, str]],
) -> Coarse | None:
    """Whether a few steps of the metric are more than the target allows, or a single one; None
    where they are not.

    Args:
        reference: FP32's metric; None where it is not known yet.
        grain: see metric_grain, on the first of the sets.
        sets: of all samples that the target is checked on, how many and what they are.
    """
    allowed = _tolerance(target, reference)
    step_down = grain() if allowed else None
    if step_down is None or not allowed:
        return None
    first = sets[0][0]
    steps = [(step_down * first / count, count, what) for count, what in sets]
    name, shared = printable(target.metric_name), is_share(target.metric)
    larger = [one for one in steps if allowed < one[0] * _UP]
    needed = math.ceil(step_down * first / allowed - 1e-6)
    if not larger:
        size, count, what = max(steps)
        if allowed >= _SURELY_LOST * size * _UP:
            return None
        lost = math.floor(allowed / size + 1e-6)
        about = counted(lost, "sample") if shared else f"{counted(lost, 'step')} as small as seen"
        return Coarse(
            None,
            f"The target lets {name} be worse by {score(allowed)}: {about} on the {count} {what}, "
            f"which may be chance. It takes about {_SURELY_LOST * needed} samples to tell such a "
            "loss from it.",
        )
    step = "one sample is" if shared else "its smallest step seen is about"
    on = " and ".join(f"{score(size)} on the {count} {what}" for size, count, what in larger)
    sure = f", and {_SURELY_LOST * needed} to tell it from chance" if shared else ""
    return Coarse(
        max(size for size, _, _ in larger),
        f"The target lets {name} be worse by {score(allowed)}, but {step} {on}: a single one "
        f"misses the target. It takes about {needed} samples to tell so small a difference{sure}.",
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
