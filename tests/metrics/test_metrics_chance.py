"""A score that guessing gives, against scipy's binomial distribution."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from qdebug.metrics.chance import better_than_chance, no_better_than_chance


@pytest.mark.parametrize("samples", [1, 7, 20, 100, 500])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_both_tests_are_binomial(samples: int, classes: int) -> None:
    chance = 1 / classes
    for right in range(samples + 1):
        reached = binom.sf(right - 1, samples, chance)
        fallen = binom.cdf(right, samples, (1 + chance) / 2)
        score = right / samples
        expected = bool(reached > 0.05 and fallen < 0.05)
        assert no_better_than_chance(score, samples, chance) == expected
        assert better_than_chance(score, samples, chance) == (reached < 0.01)
        assert not (expected and reached < 0.01)


def test_few_samples_or_no_known_chance_say_nothing() -> None:
    assert not no_better_than_chance(0.0, 1, 0.1)
    assert not no_better_than_chance(0.1, 500, None) and not better_than_chance(1.0, 500, None)
    assert no_better_than_chance(0.102, 500, 0.1)
