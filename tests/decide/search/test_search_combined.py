"""The predicate that must hold on two sample sets says whose value it gives."""

from __future__ import annotations

from qdebug.decide.search.combined import CombinedPredicate
from qdebug.decide.search.problem import Measurement, Pins, pins_of
from qdebug.types import Precision

A, B, C = (pins_of({name: Precision.FP16}) for name in "abc")


def test_a_value_of_the_held_out_samples_is_marked() -> None:
    searched = {
        A: Measurement(0.98, True, 0.1, slack=0.010),
        B: Measurement(0.98, True, 0.1, slack=0.010),
        C: Measurement(0.90, False, 0.2, slack=-0.070),
    }
    held = {
        A: Measurement(0.98, False, 0.3, slack=-0.003),  # another bound: FP32 is better there
        B: Measurement(1.0, True, 0.3, slack=0.017),
    }

    def held_out(sets: object) -> dict[Pins, Measurement]:
        return held

    predicate = CombinedPredicate(lambda sets: [searched[p] for p in sets], 2, held_out, {})
    found = list(predicate([A, B, C]))
    assert [m.held_out for m in found] == [True, False, False]
    assert [(m.value, m.passed) for m in found] == [(0.98, False), (0.98, True), (0.90, False)]
    assert [m.noise for m in found] == [0.1, 0.1, 0.2]
