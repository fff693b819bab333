"""What layers cost alone where there is no time to run each: groups of consecutive layers first.

A group's noise is that of the outputs with all of its layers as planned and all others in FP32. The
noisiest groups are halved until single layers are left or no more runs are paid for, so that a few
bad layers among hundreds take tens of runs (adaptive group testing; Hwang, JASA 67 (1972) 605).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qdebug.run.executor import cut_evenly
from qdebug.run.timelimit import OutOfTimeError
from qdebug.types import Array

Group = tuple[str, ...]
"""Layers that follow each other."""
Measure = Callable[[Sequence[Group]], Sequence[Array | None]]
"""The noise by sample with the layers of each group as planned; None where it cannot be run."""

_FIRST_GROUPS = 16
_HALVED_AT_ONCE = 4
"""Groups that are halved before the next are chosen: workers are busy, and few runs are wasted on
groups that the first halves would have shown to matter less."""


def groups_of(layers: int) -> int:
    """How many groups are measured of so many layers: the first, and as many as it takes to come
    from the four noisiest down to single layers, and once more."""
    halvings = math.ceil(math.log2(max(1.0, layers / _FIRST_GROUPS)))
    return _FIRST_GROUPS + 2 * _HALVED_AT_ONCE * (halvings + 1)


@dataclass(frozen=True)
class Screened:
    """The noise by sample, float64 [samples], of the groups that were measured and not halved;
    none of them has a layer in common. The layers of a group that cannot be run are in none."""

    groups: Mapping[Group, Array]

    @property
    def alone(self) -> dict[str, Array]:
        """Of the layers that were measured one by one."""
        return {group[0]: noise for group, noise in self.groups.items() if len(group) == 1}

    @property
    def undivided(self) -> dict[Group, Array]:
        """Of the groups of several layers."""
        return {group: noise for group, noise in self.groups.items() if len(group) > 1}

    @property
    def ranked(self) -> list[str]:
        """All layers, those first that may cost most: the first of each group before the second of
        any, those of the groups with the most noise per layer before the others."""
        ranked = sorted(self.groups, key=lambda g: -float(self.groups[g].sum()) / len(g))
        places = [(place, name) for group in ranked for place, name in enumerate(group)]
        return [name for _, name in sorted(places, key=lambda x: x[0])]


def screened(names: Sequence[str], runs: int | None, measure: Measure) -> Screened | None:
    """Find the layers that cost most alone.

    Args:
        names: layers in execution order.
        runs: how many groups may be measured; None to measure every layer at once.
        measure: may raise OutOfTimeError; what was found before stands.

    Returns:
        None where the time was over at once.
    """
    count = len(names)
    first = count if runs is None else min(count, _FIRST_GROUPS)
    left = count if runs is None else runs
    known: dict[Group, Array] = {}
    whole: set[Group] = set()  # groups a half of which cannot be run
    halved: list[Group] = []
    due = [tuple(names[cut.start : cut.stop]) for cut in cut_evenly(count, first)]
    while due:
        try:
            found = dict(zip(due, measure(due), strict=True))
        except OutOfTimeError:
            break
        left -= len(due)
        for group in halved:
            halves = _halves(group)
            if any(found[half] is None for half in halves):
                whole.add(group)
                found = {g: noise for g, noise in found.items() if g not in halves}
            else:
                del known[group]
        known |= {group: noise for group, noise in found.items() if noise is not None}
        halved = _noisiest(known, whole, min(_HALVED_AT_ONCE, left // 2))
        due = [half for group in halved for half in _halves(group)]
    return Screened(known) if known else None


def _noisiest(known: Mapping[Group, Array], whole: set[Group], count: int) -> list[Group]:
    """The groups to halve next. Where several hold NaN or Inf, the smallest: one culprit after the
    other is found."""
    noise = {group: float(each.sum()) for group, each in known.items()}
    divisible = [g for g in known if len(g) > 1 and g not in whole and noise[g] > 0]
    return sorted(divisible, key=lambda g: (-noise[g], len(g)))[: max(0, count)]


def _halves(group: Group) -> tuple[Group, Group]:
    middle = len(group) // 2
    return group[:middle], group[middle:]
