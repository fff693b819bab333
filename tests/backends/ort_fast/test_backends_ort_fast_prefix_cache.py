"""Where activations are kept, and that no bit depends on it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from exact_int8 import FP32, INT8, bind, exact_values, exact_weight, model_of
from onnx import helper

from qdebug.backends.ort_fast import prefix_cache
from qdebug.backends.ort_fast.assemble import Assembler
from qdebug.backends.ort_fast.prefix_cache import PrefixCache, ResumedSession, stride_of
from qdebug.backends.ort_fast.session import CandidateSessions
from qdebug.backends.simulation import SimulationSession
from qdebug.types import Feeds, Precision, Tensors

LAYERS = [f"conv{i}" for i in range(12)]
BATCHES = 12


def chain(channels: int, size: int) -> tuple[CandidateSessions, list[Feeds]]:
    """Convolutions one after the other, and samples for them."""
    rng = np.random.default_rng(channels)
    nodes, weights, last = [], {}, "x"
    for name in LAYERS:
        weights[f"{name}.w"] = exact_weight(rng, (channels, channels, 3, 3))
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4}
        nodes.append(helper.make_node("Conv", [last, f"{name}.w"], [name], name, **attributes))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.y"], f"{name}.relu"))
        last = f"{name}.y"
    shape = (1, channels, size, size)
    bound = bind(model_of(nodes, weights, [last], shape))
    feeds = [{"x": exact_values(rng, shape)} for _ in range(BATCHES)]
    return CandidateSessions(Assembler(bound), 1), feeds


def raised(*layers: str) -> Mapping[str, Precision]:
    return {name: FP32 if name in layers else INT8 for name in LAYERS}


def outputs(session: SimulationSession | ResumedSession, samples: list[Feeds]) -> list[Tensors]:
    """Of a candidate from its inputs, or from wherever it starts; then it is kept and closed."""
    if isinstance(session, SimulationSession):
        found = [session.run(feeds) for feeds in samples]
    else:
        found = [session.run(i, feeds) for i, feeds in enumerate(samples)]
        session.keep()
    session.close()
    return found


def test_what_keeping_costs_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, samples = chain(256, 8)
    store = PrefixCache(sessions)
    took: list[tuple[float, Mapping[int, float]]] = []
    monkeypatch.setattr(store, "measured", lambda *each: took.append(each))
    for layers in ((), LAYERS[-1:], LAYERS[5:6], (LAYERS[5], LAYERS[-1])):
        whole = outputs(sessions.open(raised(*layers), kernels=True), samples)
        assert_same(
            outputs(store.open(sessions.assemble(raised(*layers), kernels=True)), samples), whole
        )
    assert store.resumed == 3
    assert took and all(running > 0 and min(each.values()) > 0 for running, each in took)


@pytest.mark.parametrize(
    ("share", "stride"), [(0.01, 1), (1 / 16, 1), (0.1, 2), (0.25, 2), (0.4, 3), (0.6, None)]
)
def test_results_are_the_same_wherever_activations_are_kept(
    share: float, stride: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, samples = chain(4, 6)
    store = PrefixCache(sessions)
    monkeypatch.setattr(prefix_cache, "_CHEAPEST", 0.0)
    store.measured(running=1.0, keeping={0: share})
    store.measured(running=1.0, keeping={0: 9.0})  # the first candidate decides, and no other
    assert store.stride == stride == stride_of(1.0, share)
    for i in (11, 8, 5, 2, 10):
        whole = outputs(sessions.open(raised(LAYERS[i]), kernels=True), samples)
        assert_same(
            outputs(store.open(sessions.assemble(raised(LAYERS[i]), kernels=True)), samples), whole
        )
    kept = {crossing.cut.place for crossing in store._known.values()}
    assert len(kept) == {1: 8, 2: 4, 3: 3, None: 0}[stride]
    assert (store.resumed > 0) == (stride is not None)
    assert store.size == sum(crossing.size for crossing in store._known.values())


def test_what_costs_next_to_nothing_is_kept_in_any_case() -> None:
    sessions, samples = chain(4, 6)
    store = PrefixCache(sessions)
    store.measured(running=1.0, keeping={0: 9.0, 1: 0.01, 7: 1 / 16, 8: 0.07})
    assert store.stride is None
    outputs(store.open(sessions.assemble(raised(), kernels=True)), samples)
    assert {crossing.cut.place for crossing in store._known.values()} == {1, 7}


def assert_same(found: list[Tensors], expected: list[Tensors]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.keys() >= other.keys()
        for name, array in other.items():
            np.testing.assert_array_equal(one[name], array)
