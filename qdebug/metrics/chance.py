"""Whether a score is what guessing gives: then the samples, not the network, are the suspect."""

from __future__ import annotations

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
    from scipy.special import bdtr  # here, as scipy takes its time at every start

    if chance is None or not 0 < chance < 1 or _guessed(score, samples, chance) <= _MAY_BE_CHANCE:
        return False
    return float(bdtr(round(score * samples), samples, (1 + chance) / 2)) < _IS_NO_BETTER


def better_than_chance(score: float, samples: int, chance: float | None) -> bool:
    """Whether guessing hardly ever reaches this share of correct samples."""
    if chance is None or not 0 < chance < 1:
        return False
    return _guessed(score, samples, chance) < _IS_BETTER


def _guessed(score: float, samples: int, chance: float) -> float:
    """How often guessing reaches the score."""
    from scipy.special import bdtrc

    return float(bdtrc(round(score * samples) - 1, samples, chance))
