"""BF16 in operators of ONNX Runtime is BF16, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.bf16 import in_fp32
from qdebug.backends.simulation import SimulationBackend
from qdebug.types import Fp16Kernels

BF16, F32 = ml_dtypes.bfloat16, np.float32


def rounded(values: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.asarray(values, F32).astype(BF16).astype(F32)


def model(nodes: Any, constants: Any = (), given: int = TensorProto.FLOAT) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", given, ["n"])], [value("y", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def run(proto: onnx.ModelProto, x: Any, *capture: str) -> Any:
    session = SimulationBackend(1).open(proto, capture)
    found = session.run({"x": x})
    session.close()
    return found


def test_every_kind_of_number_is_rounded_as_ml_dtypes_does() -> None:
    """Ties and their neighbours, subnormal numbers, infinities and NaN."""
    high = np.arange(65536, dtype=np.uint32) << 16
    x = np.concatenate([(high | low).view(F32) for low in (0, 0x7FFF, 0x8000, 0x8001)])
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], "c", to=TensorProto.BFLOAT16),
        helper.make_node("Identity", ["b"], ["i"], "i"),
        helper.make_node("Cast", ["i"], ["y"], "d", to=TensorProto.FLOAT),
    ]
    np.testing.assert_array_equal(run(model(nodes), x)["y"], rounded(x))


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Div"])
def test_one_rounding_for_an_operator(op: str) -> None:
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(2, 10_000)).astype(F32) * np.geomspace(1e-30, 1e30, 10_000, dtype=F32)
    nodes = [
        helper.make_node("Cast", ["x"], ["b"], "c", to=TensorProto.BFLOAT16),
        helper.make_node(op, ["b", "k"], ["r"], "op"),
        helper.make_node(op, ["r", "k"], ["s"], "again"),
        helper.make_node("Cast", ["s"], ["y"], "d", to=TensorProto.FLOAT),
    ]
    found = run(model(nodes, [numpy_helper.from_array(c.astype(BF16), "k")]), x, "r")
    work = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide}[op]
    with np.errstate(over="ignore", under="ignore"):
        once = rounded(work(rounded(x), rounded(c)))
        np.testing.assert_array_equal(found["r"], once)
        np.testing.assert_array_equal(found["y"], rounded(work(once, rounded(c))))


def test_inputs_in_bf16_and_constants_in_nodes() -> None:
    one = helper.make_node("Constant", [], ["k"], "k", value=numpy_helper.from_array(BF16(0.5)))
    nodes = [
        one,
        helper.make_node("Mul", ["x", "k"], ["r"], "m"),
        helper.make_node("Cast", ["r"], ["y"], "d", to=TensorProto.FLOAT),
    ]
    x = np.arange(7).astype(BF16)
    found = run(model(nodes, given=TensorProto.BFLOAT16), x)
    np.testing.assert_array_equal(found["y"], x.astype(F32) / 2)


def test_a_model_without_bf16_is_left_alone() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"], "r")])
    assert in_fp32(proto) is proto


def as_tensorrt(nodes: Any, constants: dict[str, Any], x: Any, *capture: str) -> Any:
    """What the simulation of TensorRT's kernels gives for x of any rank, cast to BF16."""
    value = helper.make_tensor_value_info
    cast = helper.make_node("Cast", ["x"], ["b"], "in", to=TensorProto.BFLOAT16)
    last = helper.make_node("Cast", ["r"], ["y"], "out", to=TensorProto.FLOAT)
    graph = helper.make_graph(
        [cast, *nodes, last],
        "g",
        [value("x", TensorProto.FLOAT, x.shape)],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a.astype(BF16), n) for n, a in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = SimulationBackend(1, Fp16Kernels.TENSORRT).open(proto, capture)
    return session.run({"x": x})


def test_a_convolution_is_rounded_before_its_bias_is_added() -> None:
    rng = np.random.default_rng(3)
    x, w, b = (rng.normal(size=s).astype(F32) for s in ((2, 8, 5, 5), (4, 8, 1, 1), (4,)))
    node = helper.make_node("Conv", ["b", "w", "c"], ["r"], "n")
    found = as_tensorrt([node], {"w": w, "c": b}, x)["y"]
    product = np.einsum("nchw,oc->nohw", rounded(x), rounded(w)[:, :, 0, 0], dtype=np.float64)
    expected = rounded(rounded(product) + rounded(b)[:, None, None])
    assert np.mean(found == expected) > 0.99  # but for ties of sums in another order
    assert np.mean(found == rounded(product + rounded(b)[:, None, None])) < 0.9


@pytest.mark.parametrize("leading", [1, 2])
def test_a_last_bias_is_not_rounded(leading: int) -> None:
    """Behind one matrix; behind a stack of them it is."""
    rng = np.random.default_rng(4)
    x, w, b = (rng.normal(size=s).astype(F32) for s in ((leading, 6, 8), (8, 4), (4,)))
    nodes = [
        helper.make_node("MatMul", ["b", "w"], ["m"], "m"),
        helper.make_node("Add", ["m", "c"], ["r"], "a"),
    ]
    found = as_tensorrt(nodes, {"w": w, "c": b}, x, "m")
    total = found["m"] + rounded(b)
    np.testing.assert_array_equal(found["y"], total if leading == 1 else rounded(total))


def test_the_steps_of_a_softmax_are_rounded() -> None:
    x = np.random.default_rng(5).normal(size=(3, 40)).astype(F32)
    node = helper.make_node("Softmax", ["b"], ["r"], "s", axis=-1)
    powers = rounded(np.exp(rounded(rounded(x) - rounded(x).max(-1, keepdims=True))))
    expected = rounded(powers / rounded(powers.sum(-1, keepdims=True)))
    assert np.mean(as_tensorrt([node], {}, x)["y"] == expected) > 0.99
