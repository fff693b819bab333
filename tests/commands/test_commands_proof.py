"""Matches are proven without rounding: coarse ones hold, wrong ones do not, whatever the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.sizing import parallelism
from qdebug.execute.align.proof import proven
from qdebug.execute.context import simulation_context
from qdebug.inmemory import InMemory
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import open_samples
from qdebug.plan.pair import ModelPair, quantized_pair
from qdebug.types import Fp16Kernels, ignore_progress

F32 = np.float32


def _build(nodes: list[Any], constants: dict[str, Any], opset: int = 17) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [value("y", TensorProto.FLOAT, ["N", 4, 8, 8])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _weights(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"w1": (4, 3, 3, 3), "wa": (4, 4, 3, 3), "wb": (4, 4, 3, 3)}
    spread = np.exp(rng.uniform(-2, 2, 4)).reshape(-1, 1, 1, 1)  # channels of unequal range
    found = {n: (rng.normal(size=s) * spread / 3).astype(F32) for n, s in shapes.items()}
    return {**found, "b": rng.normal(size=4).astype(F32)}


def _nodes(swap: bool = False, relu: bool = True, pads: int = 1, gain: bool = False) -> list[Any]:
    node = helper.make_node
    a, b = ("wb", "wa") if swap else ("wa", "wb")
    return [
        node("Conv", ["x", "w1", "b"], ["c"], "first", pads=[1] * 4),
        node("Relu", ["c"], ["r"], "relu") if relu else node("Elu", ["c"], ["r"], "relu"),
        node("Conv", ["r", a], ["p"], "left", pads=[pads, 1, 2 - pads, 1]),
        node("Conv", ["r", b], ["q"], "right", pads=[1] * 4),
        *([node("Mul", ["q", "g"], ["qg"], "gain")] if gain else []),
        node("Add", ["p", "qg" if gain else "q"], ["y"], "sum"),
    ]


def _quantize(nodes: list[Any], weights: dict[str, Any], levels: int, scale: float) -> Any:
    """Q/DQ by hand: weights to -levels … levels with one scale, activations of products too."""
    made: list[Any] = []
    constants: dict[str, Any] = {"s": np.array(scale, F32), "z": np.array(0, np.int8)}
    done: set[str] = set()
    for original in nodes:
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for i, tensor in enumerate(original.input):
            if tensor in ("wa", "wb", "w1"):
                step = F32(np.abs(weights[tensor]).max() / levels)
                codes = np.clip(np.round(weights[tensor] / step), -levels, levels)
                name = f"{tensor}_{original.name}"
                constants |= {f"{name}_c": codes.astype(np.int8), f"{name}_s": step}
                made.append(
                    helper.make_node("DequantizeLinear", [f"{name}_c", f"{name}_s"], [name], name)
                )
                node.input[i] = name
            elif tensor in weights:
                constants[tensor] = weights[tensor]
            elif original.op_type == "Conv":
                if tensor not in done:
                    done.add(tensor)
                    made += [
                        helper.make_node("QuantizeLinear", [tensor, "s", "z"], [f"{tensor}_q"]),
                        helper.make_node(
                            "DequantizeLinear", [f"{tensor}_q", "s", "z"], [f"{tensor}_d"]
                        ),
                    ]
                node.input[i] = f"{tensor}_d"
        made.append(node)
    return _build(made, constants)


def _model(proto: onnx.ModelProto) -> Model:
    return prepare_model(read_model(InMemory("m.onnx", proto)))


def _judged(tmp_path: Path, reference: Any, quantized: Any) -> ModelPair:
    rng = np.random.default_rng(5)
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(4, 3, 8, 8)).astype(F32))
    model = _model(quantized)
    samples = open_samples(str(tmp_path / "x.npz"), model.graph.inputs)
    context = simulation_context(
        parallelism(), ignore_progress, DEFAULT_SESSIONS, None, Fp16Kernels.EXACT
    )
    pair = quantized_pair(model, _model(reference).graph, "reference.onnx")
    return proven(context, pair, samples)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.sampled_from([127, 7, 3]),
    scale=st.sampled_from([0.02, 0.5, 2.0]),
)
def test_rounding_however_coarse_is_no_mismatch(
    tmp_path: Path, seed: int, levels: int, scale: float
) -> None:
    weights = _weights(seed)
    reference = _build(_nodes(), weights)
    pair = _judged(tmp_path, reference, _quantize(_nodes(), weights, levels, scale))
    assert pair.proof is not None and pair.aligned is not None
    assert not pair.proof.refuted and not pair.proof.unproven and not pair.proof.changed
    assert set(pair.proof.proven) == {"c", "r", "p", "q", "y"} == set(pair.tensors)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32 - 1),
    wrong=st.sampled_from(["swap", "activation", "pads", "gain"]),
    levels=st.sampled_from([127, 7]),
)
def test_what_computes_something_else_is_refuted(
    tmp_path: Path, seed: int, wrong: str, levels: int
) -> None:
    weights = _weights(seed)
    reference = _build(_nodes(), weights)
    other = {
        "swap": {"swap": True},
        "activation": {"relu": False},
        "pads": {"pads": 0},
        "gain": {"gain": True},
    }[wrong]
    more = {**weights, "g": np.array([1.5], F32)}
    pair = _judged(tmp_path, reference, _quantize(_nodes(**other), more, levels, 0.02))
    assert pair.proof is not None and pair.aligned is not None
    missing = {u.tensor for u in pair.aligned.unmatched} | pair.refuted
    # What reads a tensor without counterpart is computed from the tensors before it.
    bad = {"swap": set[str](), "activation": {"r", "p", "q"}, "pads": {"p", "y"}, "gain": {"y"}}[
        wrong
    ]
    assert missing == bad
    if wrong == "swap":  # told by the weights: each stands for the other
        pairs = {m.tensor: m.candidate for m in pair.aligned.matches}
        assert (pairs["p"], pairs["q"]) == ("q", "p") and not pair.proof.unproven
    assert not (missing - {"y"}) & set(pair.tensors)  # the model's output is compared anyway


def test_weights_that_are_no_rounding_are_not_called_one(tmp_path: Path) -> None:
    weights = _weights(1)
    rng = np.random.default_rng(2)
    tuned = {n: (w * rng.normal(1, 0.1, w.shape)).astype(F32) for n, w in weights.items()}
    reference = _build(_nodes(), weights)
    pair = _judged(tmp_path, reference, _quantize(_nodes(), tuned, 127, 0.02))
    assert pair.proof is not None
    assert set(pair.proof.changed) == {"first", "left", "right"}
    assert set(pair.proof.unproven) == {"c", "p", "q"} and not pair.proof.refuted
    assert set(pair.proof.proven) == {"r", "y"}


def test_values_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    more = {**_weights(1), "g": np.array([np.nan], F32)}
    pair = _judged(
        tmp_path, _build(_nodes(), _weights(1)), _quantize(_nodes(gain=True), more, 127, 0.02)
    )
    assert pair.proof is not None
    (why,) = [u.reason for u in pair.proof.refuted if u.tensor == "y"]
    assert "gives NaN or Inf in the quantized model" in why and "nan dB" not in why


def test_another_network_is_refuted(tmp_path: Path) -> None:
    reference = _build(_nodes(), _weights(1))
    pair = _judged(tmp_path, reference, _quantize(_nodes(), _weights(9), 127, 0.02))
    assert {"c", "p", "q"} <= pair.refuted | {u.tensor for u in pair.aligned.unmatched}


@pytest.mark.parametrize("op", ["Relu", "Sigmoid"])
def test_without_a_reference_there_is_nothing_to_prove(tmp_path: Path, op: str) -> None:
    pair = quantized_pair(_model(_quantize(_nodes(), _weights(1), 127, 0.02)))
    assert pair.proof is None and pair.aligned is None and not pair.refuted
