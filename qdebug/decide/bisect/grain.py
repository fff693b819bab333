"""How finely a share of the samples tells two networks apart, next to what a target allows.

A share of 14 samples moves in steps of 0.07: a drop of 0.02 is none of them. That is said before a
search begins, which cannot find out what the samples cannot show.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
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
    """A share of the samples whose steps are too large for what the target allows.

    Attributes:
        grain: the largest of its steps on any of the sample sets, where a single one is more than
            that; None where it takes a few, which chance gives, too.
        note: that it is so, and how many samples it takes.
    """

    grain: float | None
    note: str


def coarse(
    target: AccuracyTarget, reference: float | None, sets: Sequence[tuple[int, str]]
) -> Coarse | None:
    """Whether a single sample is more than the target allows, or a few are; None where they are
    not, and of a metric that is no share of the samples.

    Args:
        reference: FP32's metric; None where it is not known yet.
        sets: of all samples that the target is checked on, how many and what they are.
    """
    allowed = _tolerance(target, reference)
    if not allowed or not is_share(target.metric):
        return None
    name = printable(target.metric_name)
    needed = math.ceil(1 / allowed - 1e-6)
    larger = [(count, what) for count, what in sets if allowed * count < _UP]
    if not larger:
        count, what = min(sets)
        if allowed * count >= _SURELY_LOST * _UP:
            return None
        about = counted(math.floor(allowed * count + 1e-6), "sample")
        return Coarse(
            None,
            f"The target lets {name} be worse by {score(allowed)}: {about} on the {count} {what}, "
            f"which may be chance. It takes about {_SURELY_LOST * needed} samples to tell such a "
            "loss from it.",
        )
    on = " and ".join(f"{score(1 / count)} on the {count} {what}" for count, what in larger)
    return Coarse(
        1 / min(count for count, _ in larger),
        f"The target lets {name} be worse by {score(allowed)}, but one sample is {on}: a single "
        f"one misses the target. It takes about {needed} samples to tell so small a difference, "
        f"and {_SURELY_LOST * needed} to tell it from chance.",
    )


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
