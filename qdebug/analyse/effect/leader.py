"""Which of some layers comes first: one that gives back something by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from qdebug.results.compare import LayerResult
from qdebug.results.curve import Figure
from qdebug.results.summary import HALF


def shares_of(layers: Sequence[LayerResult], figure: Figure) -> dict[str, float]:
    """The part of what is lost by `figure` that each layer gives back by itself, on the samples of
    the effects, which are often more than those of the curve; none of a score."""
    shares: dict[str, float] = {}
    for layer in layers:
        effect, share = layer.effect, None
        if effect is not None and figure is Figure.LOSS:
            share = effect.loss_share
        elif effect is not None and figure is Figure.SQNR:
            worst = effect.worst_part_share
            share = effect.output_share if worst is None else worst
        if share is not None:
            shares[layer.name] = share
    return shares


def leader_of(names: Sequence[str], first: str, shares: Mapping[str, float]) -> str:
    """Which of `names` leads: `first`, unless that gives back nothing by itself where another one
    gives back half: that one. On the few samples of a curve a layer that clips may do nothing."""
    best = max(names, key=lambda n: shares.get(n, 0.0))
    idle = shares.get(first, math.inf) <= 0 and shares.get(best, 0.0) >= HALF
    return best if idle else first


def leader_first(names: Sequence[str], shares: Mapping[str, float]) -> tuple[str, ...]:
    """`names`, the leader first."""
    if not names:
        return ()
    leader = leader_of(names, names[0], shares)
    return (leader, *(n for n in names if n != leader))
