"""The cheapest set of layers that the noise model allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_STEPS = 30_000
"""Decisions that are tried; a limit that is the same on every machine, unlike one in seconds."""
_GAP = 1e-3
"""The share of its cost by which the set found may exceed the cheapest."""
_ROUNDING = 1e-12
"""By which sums of the same noises may differ, relative to what is allowed: it depends on the order
in which they are added up."""
_EACH = 1e-6
"""A small price for every layer, relative to the most expensive one: of two sets at equal cost the
smaller is taken."""


def cheapest(costs: Floats, noise: Floats, allowed: float, failed: Sequence[Mask]) -> Mask | None:
    """The cheapest set to raise such that the noise of the others is at most `allowed`.

    A set that failed is left behind: at least one layer outside of it is raised, as if raising
    never hurt. Depth-first branch and bound, with the bound of the fractional knapsack (Horowitz &
    Sahni, Computing partitions with applications to the knapsack problem, 1974); up to `_GAP`
    exact where `_STEPS` are enough, which they are for most problems of 300 layers.

    Args:
        costs, noise: of every layer, of shape (layers,); noise is positive.
        failed: sets that were seen to fail, of shape (layers,).

    Returns:
        The set, of shape (layers,); None where there is none.
    """
    if allowed < 0:
        return None
    prices = costs / (costs.max() or 1.0) + _EACH
    order = np.argsort(-prices / noise, kind="stable")
    outside = [_bits(~mask[order]) for mask in failed]
    lowered = _lowered(prices[order], noise[order], allowed * (1 + _ROUNDING), outside)
    if lowered is None:
        return None
    raised = np.ones(len(costs), np.bool_)
    raised[[int(layer) for i, layer in enumerate(order) if lowered >> i & 1]] = False
    return raised


def _lowered(prices: Floats, noise: Floats, allowed: float, kept: Sequence[int]) -> int | None:
    """The layers to lower, as bits: the most in price whose noise is at most `allowed`, without
    all of any set in `kept`. Layers come with the most price for their noise first."""
    if 0 in kept:
        return None
    price, weight = prices.tolist(), noise.tolist()
    ending_at: list[list[int]] = [[] for _ in price]  # only the last layer of a set completes it
    for k in kept:
        ending_at[k.bit_length() - 1].append(k)
    price_up_to, noise_up_to = [0.0, *accumulate(price)], [0.0, *accumulate(weight)]
    best, best_saved, enough = None, 0.0, -1.0
    waiting = [(0, allowed, 0.0, 0)]
    steps = 0
    while waiting and steps < _STEPS:
        at, room, saved, lowered = waiting.pop()
        while saved + _bound(at, room, price_up_to, noise_up_to) > enough:
            steps += 1
            if at == len(price):
                best, best_saved = lowered, saved
                enough = best_saved + _GAP * (price_up_to[-1] - best_saved)
                break
            more = lowered | 1 << at
            if weight[at] <= room and not any(k & more == k for k in ending_at[at]):
                waiting.append((at + 1, room, saved, lowered))
                room, saved, lowered = room - weight[at], saved + price[at], more
            at += 1
    return best


def _bound(at: int, room: float, price_up_to: list[float], noise_up_to: list[float]) -> float:
    """The most price that layers from `at` on could save in `room`, a part of one included."""
    end = bisect_right(noise_up_to, noise_up_to[at] + room, lo=at) - 1
    saved = price_up_to[end] - price_up_to[at]
    if end + 1 < len(noise_up_to):
        rest = room - (noise_up_to[end] - noise_up_to[at])
        step = noise_up_to[end + 1] - noise_up_to[end]
        saved += (price_up_to[end + 1] - price_up_to[end]) * min(1.0, max(0.0, rest / step))
    return saved


def _bits(mask: Mask) -> int:
    return sum(1 << i for i, there in enumerate(mask.tolist()) if there)
