"""The ladder: how far to raise which layer, in steps of increasing cost, by what was measured.

No order of the precisions is assumed but their cost. Of INT8 and FP8 the better one differs from
layer to layer: on a ResNet-20 FP8 was at 19.1 dB where INT8 was at 25.3, on layers with outliers it
is the other way round. So every layer has its own rungs (`Item.rungs`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdebug.decide.search.problem import Item
from qdebug.types import Precision

Raised = dict[str, Precision]


def steps_of(items: Sequence[Item]) -> list[Raised]:
    """Sets of raised layers, each with one layer raised further than the one before; the last has
    all on their highest rung.

    The next layer, and how far, is what takes away most of the outputs' noise for its cost; noise
    is taken to add up, which a search corrects by evaluating the sets.
    """
    raised: Raised = {}
    steps = list[Raised]()
    moves = {item.name: _best(item, None) for item in items}
    by_name = {item.name: item for item in items}
    while left := {name: move for name, move in moves.items() if move is not None}:
        name = max(left, key=lambda n: left[n][0])
        raised = {**raised, name: left[name][1]}
        steps.append(raised)
        moves[name] = _best(by_name[name], raised[name])
    return steps


def below_fp32(items: Sequence[Item]) -> Raised:
    """The highest rung of every layer that costs less than FP32, where it has one."""
    rungs = {item.name: [r for r in item.rungs if r is not Precision.FP32] for item in items}
    return {name: found[-1] for name, found in rungs.items() if found}


_Worth = tuple[float, float]


def _best(item: Item, now: Precision | None) -> tuple[_Worth, Precision] | None:
    """The next rung of a layer, by what it is worth; None on its highest."""
    above = item.rungs if now is None else item.rungs[item.rungs.index(now) + 1 :]
    moves = [(_worth(item, now, rung), rung) for rung in above]
    return max(moves, key=lambda move: move[0], default=None)


def _worth(item: Item, now: Precision | None, rung: Precision) -> _Worth:
    """Noise taken away per cost, and the noise itself for what costs nothing."""
    gain = item.noise_in(now) - item.noise_in(rung)
    cost = item.costs[rung] - (item.costs[now] if now else 0.0)
    if math.isnan(gain):  # from infinite to infinite
        gain = 0.0
    return (gain / cost if cost > 0 else math.inf if gain > 0 else 0.0), gain
