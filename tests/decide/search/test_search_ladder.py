"""The ladder: each layer on the cheapest rung that holds, by measured noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.decide.search.find import Outcome, SearchResult, find
from qdebug.decide.search.ladder import below_fp32, steps_of
from qdebug.decide.search.oracle import Oracle
from qdebug.decide.search.problem import Item, Measurement, Pins, PinTo, SearchProblem
from qdebug.decide.search.space import search_space
from qdebug.decide.search.strategies import load_strategy
from qdebug.formats.registry import FORMAT_OF
from qdebug.plan.cost import Costs
from qdebug.types import Precision

FP8, A16W8, BF16, FP16, FP32 = (Precision(p) for p in ("fp8", "a16w8", "bf16", "fp16", "fp32"))
INT8 = Precision.INT8


def item(name: str, noise: float, price: float = 1.0, **raised: float) -> Item:
    costs = {FP8: 0.0, A16W8: price, BF16: price, FP16: price, FP32: 3 * price}
    measured = {Precision(p): x for p, x in raised.items()}
    return Item(name, costs, noise, raised_noise=measured)


def test_what_another_rung_beats_in_cost_and_noise_is_none() -> None:
    bad_fp8 = item("a", 1.0, fp8=2.0, a16w8=0.3, bf16=0.2, fp16=0.1)
    assert bad_fp8.rungs == (FP16, FP32)
    good_fp8 = item("a", 1.0, fp8=0.05, a16w8=0.3, bf16=0.2, fp16=0.1)
    assert good_fp8.rungs == (FP8, FP32)
    overflows = item("a", 1.0, fp8=2.0, bf16=0.2, fp16=math.inf, a16w8=0.1)
    assert overflows.rungs == (A16W8, FP32)
    assert item("not measured", 1.0).rungs == (FP32,)


def test_the_steps_take_the_most_noise_away_for_their_cost() -> None:
    items = [
        item("dear", 1.0, price=10.0, fp16=0.1),
        item("cheap", 0.5, fp16=0.1),
        item("free", 0.1, fp8=0.05, bf16=0.01),
    ]
    steps = steps_of(items)
    assert steps[:3] == [{"free": FP8}, {"free": FP8, "cheap": FP16}, steps[2]]
    assert steps[-1] == dict.fromkeys(("dear", "cheap", "free"), FP32)
    for before, after in pairwise(steps):
        changed = {n for n in after if after[n] is not before.get(n)}
        assert len(changed) == 1
    assert below_fp32(items) == {"dear": FP16, "cheap": FP16, "free": BF16}


class Additive:
    """The noise of the outputs is the sum of the layers' own."""

    def __init__(self, items: Sequence[Item], most: float) -> None:
        self._items, self._most = items, most
        self.calls = 0

    def noise(self, pins: Pins) -> float:
        raised = dict(pins)
        return math.fsum(x.noise_in(raised.get(x.name)) for x in self._items)

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        for pins in sets:
            self.calls += 1
            noise = self.noise(pins)
            yield Measurement(noise, noise <= self._most, noise)


def climb(items: Sequence[Item], most: float) -> tuple[SearchResult, Additive]:
    problem, judge = SearchProblem(tuple(items), pin_to=PinTo.LADDER), Additive(items, most)
    return find(problem, Oracle(judge), load_strategy("auto")), judge


noises = st.floats(1e-6, 1.0)


@given(
    st.lists(st.tuples(noises, noises, noises, noises, noises), min_size=1, max_size=3),
    st.floats(0.0, 1.2),
)
@settings(deadline=None, max_examples=60)
def test_the_answer_holds_and_nothing_can_be_lowered(
    figures: list[tuple[float, ...]], share: float
) -> None:
    items = [
        item(str(i), x[0], price=1.0 + i, fp8=x[1], a16w8=x[2], bf16=x[3], fp16=x[4])
        for i, x in enumerate(figures)
    ]
    most = share * sum(x.noise for x in items)
    result, judge = climb(items, most)
    best = min(
        sum(x.costs[p] for x, p in zip(items, chosen, strict=True) if p is not None)
        for chosen in product(*((None, *x.rungs) for x in items))
        if sum(x.noise_in(p) for x, p in zip(items, chosen, strict=True)) <= most
    )
    assert judge.noise(result.pins) <= most
    assert result.minimal or result.outcome is Outcome.NOTHING_NEEDED
    dearest = max(x.costs[FP32] for x in items)
    assert best - 1e-9 <= result.cost <= best + dearest


def test_a_target_that_fp32_does_not_reach() -> None:
    result, judge = climb([item("a", 1.0, fp16=0.1)], -1.0)
    assert (result.outcome, result.pins, judge.calls) == (Outcome.IMPOSSIBLE, frozenset(), 2)


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (INT8, ["fp8", "a16w8", "bf16", "fp16", "fp32"]),
        (FP8, ["int8", "a16w8", "bf16", "fp16", "fp32"]),
        (A16W8, ["bf16", "fp16", "fp32"]),
        (BF16, ["fp16", "fp32"]),
        (FP16, ["bf16", "fp32"]),
    ],
)
def test_what_a_layer_may_be_raised_to(base: Precision, expected: list[str]) -> None:
    """As many bits or more; what needs ranges only from what has them."""
    costs = Costs("ms", {"a": dict.fromkeys(FORMAT_OF, 1.0)})
    space = search_space({"a": base}, costs, {}, pin_to=PinTo.LADDER)
    assert list(space.problem.items[0].costs) == expected
    few = search_space({"a": base}, costs, {}, pin_to=PinTo.LADDER, among=(BF16, FP32))
    assert set(few.problem.items[0].costs) == {BF16, FP32} - {base}
