"""Delta debugging: Zeller & Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from qdebug.decide.search.strategies.base import Ask, Choice, Found, everything, passes


def ddmin(choices: Sequence[Choice], ask: Ask) -> Found:
    """The minimizing algorithm `ddmin`: reduce to a part, else to a complement, else cut finer.

    What it returns is one-minimal; it knows neither costs nor ranks.
    """
    found, parts = list(choices), 2
    while len(found) > 1:
        cuts = [len(found) * i // parts for i in range(parts + 1)]
        pieces = [found[a:b] for a, b in pairwise(cuts)]
        smaller = next((p for p in pieces if passes(ask, everything(p))), None)
        if smaller is not None:
            found, parts = smaller, 2
            continue
        # With two parts, each is the other's complement.
        rests = [[c for c in found if c not in p] for p in pieces] if parts > 2 else []
        smaller = next((r for r in rests if passes(ask, everything(r))), None)
        if smaller is not None:
            found, parts = smaller, parts - 1
        elif parts < len(found):
            parts = min(len(found), 2 * parts)
        else:
            break
    return Found(everything(found))
