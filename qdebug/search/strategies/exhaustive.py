"""Every set, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from qdebug.errors import UsageError
from qdebug.search.strategies.base import Ask, Choice, Chosen, Found, everything

MOST = 16
"""Layers: 65 536 sets."""
_AT_ONCE = 8


def exhaustive(choices: Sequence[Choice], ask: Ask) -> Found:
    """The cheapest set that passes, whatever the predicate is like.

    Raises:
        UsageError: there are too many layers.
    """
    if len(choices) > MOST:
        raise UsageError(
            f"--strategy exhaustive: {len(choices)} layers have 2^{len(choices)} sets; "
            f"it takes at most {MOST}.",
            "Use the strategy auto, or leave layers out with `--never-pin`.",
        )
    cost = {choice.name: choice.cost for choice in choices}
    ordered = sorted(_subsets(choices), key=lambda s: (sum(cost[n] for n in sorted(s)), len(s)))
    for start in range(0, len(ordered), _AT_ONCE):
        sets = ordered[start : start + _AT_ONCE]
        passing = [s for s, m in zip(sets, ask(sets), strict=True) if m.passed]
        if passing:
            return Found(passing[0], "every cheaper set was evaluated and failed")
    raise AssertionError("the set of all choices passes")


def _subsets(choices: Sequence[Choice]) -> Iterator[Chosen]:
    sizes = range(len(choices) + 1)
    return map(everything, chain.from_iterable(combinations(choices, k) for k in sizes))
