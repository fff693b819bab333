"""Which set is worth asking for next: cheaper than the best, with a chance to pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from qdebug.decide.search.strategies.base import Chosen
from qdebug.decide.search.strategies.belief import Belief

WORTH = 5e-3
"""The share of its cost that asking for a set must be expected to save."""
_MARGINS = (0.0, 0.1, 0.3, 0.7)
"""How far below the noise that may pass sets are looked for, as a logarithm."""
_CLOSEST = 12
"""Layers that are put in, in an exchange: those that are believed to add most noise for their
cost; and pairs that are left out: of those that add least."""


def promising(belief: Belief, best: Chosen) -> Chosen | None:
    """The set that saves most times its chance to pass: of the cheapest by the model for several
    noises, and of `best` with one or two layers exchanged for none or one.

    None where there is no model, or no set is worth it.
    """
    if belief.model is None:
        return None
    known = belief.answers
    sets = [s for s in dict.fromkeys(_candidates(belief, best)) if s not in known]
    sets = [s for s in sets if belief.cost(s) < belief.cost(best) * (1 - WORTH)]
    if not sets:
        return None
    chances = belief.chances(np.array([belief.mask(s) for s in sets]), belief.link.threshold())
    saved = belief.cost(best) - np.array([belief.cost(s) for s in sets])
    worth = chances * saved
    at = int(np.argmax(worth))
    return sets[at] if worth[at] > WORTH * belief.cost(best) else None


def _candidates(belief: Belief, best: Chosen) -> Iterator[Chosen]:
    for margin in _MARGINS:
        proposal = belief.proposal(margin)
        if proposal is not None:
            yield proposal
    order = belief.removal_order(belief.names)
    out = [name for name in order if name in best]
    into = [name for name in reversed(order) if name not in best][:_CLOSEST]
    left = [(name,) for name in out] + list(combinations(out[:_CLOSEST], 2))
    for names in left:
        rest = best.difference(names)
        yield rest
        for name in into:
            yield rest | {name}
