"""Whether a score is what guessing gives: then the samples, not the network, are the suspect."""

from __future__ import annotations

import math

_MAY_BE_CHANCE = 0.05
"""Guessing reaches the score at least so often."""
_IS_BETTER = 0.01
"""Guessing reaches the score less often than that."""
_IS_NO_BETTER = 0.05
"""A classifier halfway between guessing and perfect falls so low at most so often."""


def no_better_than_chance(score: float, samples: int, chance: float | None) -> bool:
    """Whether a share of correct samples is told from guessing by neither of two one-sided binomial
    tests: guessing reaches it easily, and a classifier that is right half as often as possible
    beyond that hardly ever falls so low.

    Args:
        score: 0 to 1, of `samples`.
        chance: that a guess is right; None where it is not known, and then nothing is said.
    """
    if chance is None or not 0 < chance < 1:
        return False
    right = round(score * samples)
    reached = sum(_binomial(k, samples, chance) for k in range(right, samples + 1))
    fallen = sum(_binomial(k, samples, (1 + chance) / 2) for k in range(right + 1))
    return reached > _MAY_BE_CHANCE and fallen < _IS_NO_BETTER


def better_than_chance(score: float, samples: int, chance: float | None) -> bool:
    """Whether guessing hardly ever reaches this share of correct samples."""
    if chance is None or not 0 < chance < 1:
        return False
    right = round(score * samples)
    return sum(_binomial(k, samples, chance) for k in range(right, samples + 1)) < _IS_BETTER


def _binomial(k: int, n: int, p: float) -> float:
    logarithm = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(logarithm + k * math.log(p) + (n - k) * math.log1p(-p))
