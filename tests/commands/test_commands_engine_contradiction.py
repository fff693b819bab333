"""A tensor that was read from the wrong place is not observed; one that an engine has wrong is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.engine import CaptureWay
from qdebug.backends.host import HostRuntime
from qdebug.backends.registry import BackendSpec
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.execute.context import Context
from qdebug.execute.engine.attribute import EngineFindings, attribute_engine
from qdebug.execute.engine.observe import EngineJob
from qdebug.network.graph import Graph
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.types import Feeds, Tensors, ignore_progress

STEPS, SIZE, HIDDEN = 3, 6, 4


def network() -> Graph:
    """x -> LSTM -> both last states, concatenated s -> MatMul -> y; and the steps less their mean,
    z = w - m."""
    rng = np.random.default_rng(0)
    make, value = helper.make_node, helper.make_tensor_value_info
    weights = {
        "W": rng.normal(size=(1, 4 * HIDDEN, SIZE)),
        "R": rng.normal(size=(1, 4 * HIDDEN, HIDDEN)),
        "v": rng.normal(size=(2 * HIDDEN, 5)),
    }
    graph = helper.make_graph(
        [
            make("LSTM", ["x", "W", "R"], ["steps", "last", "memory"], "lstm", hidden_size=HIDDEN),
            make("Concat", ["last", "memory"], ["s"], "join", axis=2),
            make("MatMul", ["s", "v"], ["y"], "product"),
            make("Relu", ["steps"], ["w"], "relu"),
            make("ReduceMean", ["w"], ["m"], "mean", axes=[3]),
            make("Sub", ["w", "m"], ["z"], "centred"),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [STEPS, 2, SIZE])],
        [value(name, TensorProto.FLOAT, None) for name in ("y", "z")],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return Graph(onnx.shape_inference.infer_shapes(proto))


class Misreading:
    """A backend that gives some observed tensors otherwise than it has them."""

    name = "misreading"

    def __init__(self, wrong: dict[str, float]) -> None:
        """`wrong`: tensor -> what is added to it; NaN makes it zeros."""
        self._wrong = wrong

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Any:
        session = SimulationBackend().open(proto, capture)
        run, wrong = session.run, self._wrong

        def misread(feeds: Feeds) -> Tensors:
            found = dict(run(feeds))
            for tensor, shift in wrong.items():
                if tensor in found:
                    moved = found[tensor] + np.float32(shift)
                    found[tensor] = np.zeros_like(moved) if np.isnan(shift) else moved
            return found

        session.run = misread
        return session


def run(tmp_path: Any, wrong: dict[str, float]) -> EngineFindings:
    graph = network()
    values = np.random.default_rng(1).normal(size=(4, STEPS, 2, SIZE)).astype(np.float32)
    for k, x in enumerate(values):
        np.savez(tmp_path / f"{k}.npz", x=x)
    samples = open_samples(str(tmp_path), graph.inputs)
    spec = BackendSpec("misreading", "", "")
    runtime = HostRuntime(Misreading(wrong), spec)
    exact = SimulationBackend()
    job = EngineJob(
        runtime, Context(exact, exact, Parallelism(1, 1), ignore_progress), whole(samples)
    )
    names = ("x", "steps", "last", "memory", "s", "y", "w", "m", "z")
    return attribute_engine(job, graph, graph, {t: t for t in names})


@pytest.mark.parametrize("wrong", [("last",), ("memory",), ("last", "memory"), ("steps",), ("s",)])
def test_what_contradicts_its_readers_is_not_observed(
    tmp_path: Any, wrong: tuple[str, ...]
) -> None:
    found = run(tmp_path, dict.fromkeys(wrong, np.nan))
    assert {s.tensor for s in found.skipped} == set(wrong)
    assert not {a.tensor for a in found.attributions} & set(wrong)
    assert found.agreement.tensors == 0 and found.way is CaptureWay.OUTPUTS
    assert found.checks[-1].observed == 6 - len(wrong)


def test_an_error_that_is_carried_on_stays_an_error(tmp_path: Any) -> None:
    """Both operands of a difference are off by the same: it explains the difference."""
    found = run(tmp_path, {"w": 3.0, "m": 3.0})
    assert not found.skipped
    assert {a.tensor for a in found.attributions if a.label == "kernel"} == {"w", "m"}


def test_where_all_agrees_nothing_is_left_out(tmp_path: Any) -> None:
    found = run(tmp_path, {})
    assert not found.skipped and found.agreement.tensors == 0
