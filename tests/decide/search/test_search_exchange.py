"""Which set `auto` asks for next."""

from __future__ import annotations

from collections.abc import Sequence

from synthetic import BASE

from qdebug.decide.search.problem import Measurement
from qdebug.decide.search.strategies.base import Choice, Chosen
from qdebug.decide.search.strategies.belief import Belief
from qdebug.decide.search.strategies.exchange import promising

COSTS = {"dear": 10.0, "cheap": 1.0, "useless": 5.0, "free of noise": 2.0}
NOISE = {"dear": 1.0, "cheap": 0.98, "useless": 0.01, "free of noise": 0.0}
MOST = 1.1


def ask(sets: Sequence[Chosen]) -> list[Measurement]:
    found = [BASE + sum(x for name, x in NOISE.items() if name not in chosen) for chosen in sets]
    return [Measurement(noise, noise <= MOST, noise, 0.0, MOST - noise) for noise in found]


def belief(estimates: dict[str, float]) -> Belief:
    return Belief([Choice(n, cost, estimates[n]) for n, cost in COSTS.items()], ask)


def test_a_dear_layer_gives_way_to_a_cheap_one() -> None:
    found = belief({"dear": 1.0, "cheap": 0.7, "useless": 0.02, "free of noise": 0.01})
    assert found.passes(frozenset({"dear"}))
    assert promising(found, frozenset({"dear"})) == {"cheap"}


def test_what_failed_or_hardly_passes_is_not_asked_for() -> None:
    found = belief({"dear": 1.0, "cheap": 1.0, "useless": 0.02, "free of noise": 0.01})
    best = frozenset({"cheap"})
    assert found.passes(best)
    assert not found.passes(frozenset())
    assert promising(found, best) is None


def test_without_a_measured_noise_there_is_no_guess() -> None:
    def blind(sets: Sequence[Chosen]) -> list[Measurement]:
        return [Measurement(None, "dear" in chosen) for chosen in sets]

    found = Belief([Choice(n, cost, 0.0) for n, cost in COSTS.items()], blind)
    assert promising(found, frozenset(COSTS)) is None
