"""A candidate that starts at a cut gives the same bits as a whole one."""

from __future__ import annotations

import numpy as np
import pytest
from exact_int8 import (
    CHANNELS,
    EXACT,
    FP16,
    FP32,
    INEXACT,
    INT8,
    SIZE,
    bind,
    exact_weight,
    model_of,
    pins_for,
    random_model,
    steps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from qdebug.backends.ort_fast.assemble import Assembler
from qdebug.backends.ort_fast.session import CandidateSessions


@settings(max_examples=60, deadline=None)
@given(steps(EXACT + INEXACT), st.integers(0, 10_000))
def test_a_candidate_cut_anywhere_gives_the_same_bits(
    plan: list[tuple[str, int, int, bool]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bound = bind(random_model([(*step[:3], False) for step in plan], seed))
    pins = pins_for(bound, [INT8, INT8, INT8, FP16, FP32], rng)
    sessions = CandidateSessions(Assembler(bound), 1)
    candidate = sessions.assemble({**bound.precisions, **pins}, kernels=True)
    x = rng.normal(size=(2, CHANNELS, SIZE, SIZE)).astype(np.float32) * 3
    expected = sessions.open_part(candidate, None, ()).run({"x": x})
    storing = sessions.open_part(candidate, None, candidate.cuts).run({"x": x})
    for cut in candidate.cuts:
        fed = {name: storing[name] for name in candidate.crossing(cut)}
        found = sessions.open_part(candidate, cut, ()).run({"x": x, **fed})
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(storing[name], array)
            np.testing.assert_array_equal(found[name], array)


def chain(count: int) -> Assembler:
    rng = np.random.default_rng(0)
    weights = {f"w{i}": exact_weight(rng, (8, 8, 1, 1)) for i in range(count)}
    names = ["x", *(f"t{i}" for i in range(count))]
    nodes = [
        helper.make_node("Conv", [names[i], f"w{i}"], [names[i + 1]], f"n{i}") for i in range(count)
    ]
    return Assembler(bind(model_of(nodes, weights, [names[-1]], [1, 8, 4, 4])))


@pytest.mark.parametrize(("raised", "shared"), [(0, 0), (9, 8), (29, 26)])
def test_candidates_share_what_lies_before_the_first_difference(raised: int, shared: int) -> None:
    """The layer before a raised one ends in another form."""
    assembler = chain(30)
    base = {f"n{i}": INT8 for i in range(30)}
    one = assembler.assemble(base, kernels=True)
    other = assembler.assemble({**base, f"n{raised}": FP32}, kernels=True)
    assert len(one.cuts) == 9
    same = [a for a, b in zip(one.cuts, other.cuts, strict=False) if a.key == b.key]
    assert same == list(one.cuts[: len(same)])
    last = assembler.places[same[-1].place] if same else 0
    assert shared - 4 <= last <= shared


def test_literal_candidates_are_cut_wherever_little_crosses() -> None:
    """There the same to the bit is not asked for: a convolution and what follows may be apart."""
    assembler = chain(30)
    bound_to = {f"n{i}": INT8 for i in range(30)}
    candidate = assembler.assemble(bound_to, kernels=False)
    assert len(candidate.cuts) == len(assembler.places) == 9


def test_the_last_place_is_before_layers_that_take_next_to_no_work() -> None:
    """A network that does nearly all of its work at full size, as many do."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], {}, "x"
    for i in range(8):
        weights[f"w{i}"] = exact_weight(rng, (8, 8, 3, 3))
        given = {"kernel_shape": [3, 3], "pads": [1] * 4}
        nodes.append(helper.make_node("Conv", [last, f"w{i}"], [f"t{i}"], f"n{i}", **given))
        last = f"t{i}"
        if i == 2:
            pooled = {"kernel_shape": [16, 16], "strides": [16, 16]}
            nodes.append(helper.make_node("MaxPool", [last], ["p"], "pool", **pooled))
            last = "p"
    assembler = Assembler(bind(model_of(nodes, weights, [last], [1, 8, 64, 64])))
    places = assembler.segments
    assert places["n2"] < places["n3"] == places["n7"] == len(assembler.places)
