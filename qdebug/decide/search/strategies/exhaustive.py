"""Every set, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from qdebug.decide.search.strategies.base import Ask, Choice, Chosen, Found, everything
from qdebug.errors import UsageError
from qdebug.wording import option

MOST = 16
"""Layers: 65 536 sets."""
_AT_ONCE = 8


def exhaustive(choices: Sequence[Choice], ask: Ask) -> Found:
    """The cheapest set that passes, whatever the predicate is like.

    Raises:
        UsageError: there are too many layers.
        AssertionError: `ask` failed even the set of all choices.
    """
    check_count(len(choices))
    cost = {choice.name: choice.cost for choice in choices}
    ordered = sorted(_subsets(choices), key=lambda s: (sum(cost[n] for n in sorted(s)), len(s)))
    for start in range(0, len(ordered), _AT_ONCE):
        sets = ordered[start : start + _AT_ONCE]
        passing = [s for s, m in zip(sets, ask(sets), strict=True) if m.passed]
        if passing:
            return Found(passing[0], "every cheaper set was evaluated and failed", 0)
    raise AssertionError("the set of all choices passes")


def check_count(layers: int) -> None:
    """Refuse what would take forever.

    Raises:
        UsageError: there are too many layers.
    """
    if layers > MOST:
        raise UsageError(
            f"{option('strategy', 'exhaustive')} tries every set: {layers} layers are too many",
            f"It takes at most {MOST}. Use {option('strategy', 'auto')}, or rule layers out with "
            f"{option('never_pin')}.",
            code="QD-USAGE-TOO-MANY-LAYERS",
        )


def _subsets(choices: Sequence[Choice]) -> Iterator[Chosen]:
    sizes = range(len(choices) + 1)
    return map(everything, chain.from_iterable(combinations(choices, k) for k in sizes))
