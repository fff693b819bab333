"""Lowering to INT8, against an independent emulation: fake-quantize the operands, run in float."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdebug.errors import ModelError, PlanError
from qdebug.plan.plan import Granularity
from qdebug.types import Precision

# op, attributes, input shape, weight shape, position of the weight, axis of its output channels
LAYERS = {
    "conv": ("Conv", {"pads": [1] * 4}, (2, 3, 6, 6), (4, 3, 3, 3), 1, 0),
    "conv-1d": ("Conv", {}, (2, 3, 6), (4, 3, 2), 1, 0),
    "conv-grouped": ("Conv", {"group": 2}, (2, 4, 5, 5), (6, 2, 3, 3), 1, 0),
    "conv-depthwise": ("Conv", {"group": 4}, (2, 4, 5, 5), (4, 1, 3, 3), 1, 0),
    "deconv": ("ConvTranspose", {"strides": [2, 2]}, (2, 3, 4, 4), (3, 5, 2, 2), 1, 1),
    "deconv-grouped": ("ConvTranspose", {"group": 2}, (2, 4, 4, 4), (4, 3, 2, 2), 1, 1),
    "gemm": ("Gemm", {"alpha": 0.5}, (2, 4), (4, 5), 1, 1),
    "gemm-transB": ("Gemm", {"transB": 1}, (2, 4), (5, 4), 1, 0),
    "gemm-left": ("Gemm", {}, (4, 3), (2, 4), 0, 0),
    "gemm-left-transA": ("Gemm", {"transA": 1}, (4, 3), (4, 2), 0, 1),
    "gemm-transA-activation": ("Gemm", {"transA": 1}, (4, 2), (4, 5), 1, 1),
    "matmul": ("MatMul", {}, (2, 3, 4), (4, 5), 1, 1),
    "matmul-batched": ("MatMul", {}, (2, 3, 4), (2, 4, 5), 1, 2),
    "matmul-left": ("MatMul", {}, (4, 3), (2, 4), 0, 0),
    "matmul-left-batched": ("MatMul", {}, (2, 4, 3), (2, 5, 4), 0, 1),
    "matmul-vector": ("MatMul", {}, (2, 4), (4,), 1, None),
    "matmul-vector-left": ("MatMul", {}, (4, 3), (4,), 0, None),
}


def _single(kit: SimpleNamespace, case: str) -> tuple[Any, Any, Any, int | None]:
    op, attributes, shape, weight_shape, position, axis = LAYERS[case]
    rng = np.random.default_rng(7)
    x = rng.normal(size=shape).astype(np.float32)
    w = rng.normal(size=weight_shape).astype(np.float32)
    if axis is not None:  # channels of unequal range
        w *= np.expand_dims(
            10.0 ** -np.arange(weight_shape[axis]), [i for i in range(w.ndim) if i != axis]
        ).astype(np.float32)
    reads = ["x", "w"] if position == 1 else ["w", "x"]
    node = kit.node(op, reads, ["y"], "layer", **attributes)
    return kit.make([node], {"x": shape}, ["y"], {"w": w}), x, w, axis


def _emulated(kit: SimpleNamespace, proto: Any, x: Any, w: Any) -> Any:
    from onnx import numpy_helper

    changed = type(proto)()
    changed.CopyFrom(proto)
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    return kit.run(changed, {"x": x})["y"]


def _assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("granularity", list(Granularity))
@pytest.mark.parametrize("case", LAYERS)
def test_each_layer_is_its_float_form_on_quantized_operands(
    kit: SimpleNamespace, case: str, granularity: Granularity
) -> None:
    proto, x, w, axis = _single(kit, case)
    low = kit.lowered(proto, kit.int8({"x": 2.0}, weights=granularity))
    used = axis if granularity is Granularity.PER_CHANNEL else None
    expected = _emulated(kit, proto, kit.fake(x, 2.0), kit.fake(w, kit.channel_amax(w, used), used))
    _assert_close(kit.run(low.graph, {"x": x})["y"], expected)
    scale = low.graph.constant("w_scale")
    assert scale.shape == (() if used is None else (w.shape[used],))
    codes = low.graph.constant("w_quantized")
    assert codes.dtype == np.int8
    assert np.abs(codes.astype(int)).max() == 127
    assert "w" not in low.graph.initializers
    assert sorted(kit.ops(low.graph)).count("DequantizeLinear") == 2
    assert {t: g.bounds for t, g in low.grids.items()} == {"x": (-2.0, 2.0)}


def test_range_of_a_weight_from_the_plan(kit: SimpleNamespace) -> None:
    proto, x, w, axis = _single(kit, "conv")
    for amax in (0.5, [1.0, 0.05, 0.01, 0.001]):
        low = kit.lowered(proto, kit.int8({"x": 2.0, "w": amax}))
        quantized = kit.fake(w, amax, axis if isinstance(amax, list) else None)
        _assert_close(
            kit.run(low.graph, {"x": x})["y"], _emulated(kit, proto, kit.fake(x, 2.0), quantized)
        )


def test_wrong_number_of_channels(kit: SimpleNamespace) -> None:
    proto, *_ = _single(kit, "conv")
    with pytest.raises(PlanError, match=r"(?s)'w' .*4 .*3 .*QD-PLAN-AMAX-COUNT"):
        kit.lowered(proto, kit.int8({"x": 2.0, "w": [1, 2, 3]}))
    with pytest.raises(PlanError, match=r"(?s)'x' .*2.*QD-PLAN-AMAX-COUNT"):
        kit.lowered(proto, kit.int8({"x": [1, 2]}))
    with pytest.raises(PlanError, match=r"(?s)'x' .*QD-PLAN-RANGE-MISSING"):
        kit.lowered(proto, kit.int8())


def test_a_weight_with_nan(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("MatMul", ["x", "w"], ["y"], "m")],
        {"x": (1, 2)},
        ["y"],
        {"w": np.array([[1, np.nan], [2, 3]], np.float32)},
    )
    with pytest.raises(ModelError, match=r"(?s)'w'.*'m'.*QD-MODEL-WEIGHT-VALUES\]"):
        kit.lowered(proto, kit.int8({"x": 1}))


@pytest.mark.parametrize("letter", ["h", "d"])
def test_int8_starts_from_float32(kit: SimpleNamespace, letter: str) -> None:
    dtype = {"h": np.float16, "d": np.float64}[letter]
    proto = kit.make(
        [kit.node("MatMul", ["x", "w"], ["y"], "m")],
        {"x": (letter, (1, 2))},
        {"y": letter},
        {"w": np.eye(2, dtype=dtype)},
    )
    with pytest.raises(PlanError, match="QD-PLAN-NOT-FP32"):
        kit.lowered(proto, kit.int8({"x": 1}))
    both = kit.make(
        [kit.node("MatMul", ["x", "x"], ["y"], "m")], {"x": (letter, (2, 2))}, {"y": letter}
    )
    with pytest.raises(PlanError, match=r"(?s)'x' .*QD-PLAN-NOT-FP32"):
        kit.lowered(both, kit.int8({"x": 1}))


def test_two_activations(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [kit.node("MatMul", ["a", "b"], ["y"], "m"), kit.node("MatMul", ["a", "a"], ["z"], "n")],
        {"a": (3, 3), "b": (3, 3)},
        ["y", "z"],
    )
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(3, 3)).astype(np.float32) for _ in range(2))
    low = kit.lowered(proto, kit.int8({"a": 1.0, "b": 2.0}))
    found = kit.run(low.graph, {"a": a, "b": b})
    fa, fb = kit.fake(a, 1.0), kit.fake(b, 2.0)
    _assert_close(found["y"], fa @ fb)
    _assert_close(found["z"], fa @ fa)
    assert kit.ops(low.graph).count("QuantizeLinear") == 2


def test_two_constants_have_nothing_to_quantize(kit: SimpleNamespace) -> None:
    proto = kit.make(
        [
            kit.node("MatMul", ["v", "w"], ["c"], "const"),
            kit.node("MatMul", ["x", "c"], ["y"], "m"),
        ],
        {"x": (2, 2)},
        ["y"],
        {"v": np.eye(2, dtype=np.float32), "w": np.ones((2, 2), np.float32)},
    )
    bound = kit.bound(proto, kit.int8({"x": 1, "c": 1}))
    assert bound.precisions["const"] is Precision.FP32
    assert kit.ops(kit.lowered(proto, kit.int8({"x": 1, "c": 1})).graph).count("MatMul") == 2


AMAX = {"x": 3.0, "r1": 6.0, "f": 4.0}


def test_whole_network(kit: SimpleNamespace, residual_net: Any, images: Any) -> None:
    proto = residual_net()
    low = kit.lowered(proto, kit.int8(AMAX))
    found = kit.run(low.graph, {"x": images}, ["r1", "c1", "s", "f"])
    w = {t.name: t for t in proto.graph.initializer}
    import onnx

    fw = {
        name: kit.fake(v, kit.channel_amax(v, 0), 0)
        for name, v in ((n, onnx.numpy_helper.to_array(t)) for n, t in w.items())
        if name.startswith("w")
    }
    step = kit.make(
        [
            kit.node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 4),
            kit.node("Conv", ["r", "w2"], ["c2"], pads=[1] * 4),
            kit.node("Add", ["c2", "r"], ["s"]),
            kit.node("Gemm", ["f", "w3", "b3"], ["out"], transB=1),
        ],
        {"x": ("N", 3, 8, 8), "r": ("N", 4, 8, 8), "f": ("N", 4)},
        ["c1", "s", "out"],
        {
            **fw,
            "b1": onnx.numpy_helper.to_array(w["b1"]),
            "b3": onnx.numpy_helper.to_array(w["b3"]),
        },
    )
    fed = {
        "x": kit.fake(images, 3.0),
        "r": kit.fake(found["r1"], 6.0),  # the residual branch is quantized too
        "f": kit.fake(found["f"], 4.0),
    }
    expected = kit.run(step, fed)
    for name in ("c1", "s", "out"):
        _assert_close(found[name], expected[name])
    # one pair for r1, shared by conv2 and the Add; none for biases
    assert kit.ops(low.graph).count("QuantizeLinear") == 3
    assert {"b1", "b3"} <= set(low.graph.initializers)
    assert low.tensors["c2"] == "c2"


def test_pinned_consumers_read_the_unquantized_tensor(
    kit: SimpleNamespace, residual_net: Any
) -> None:
    low = kit.lowered(residual_net(), kit.int8(AMAX, {"conv2": "fp32"}))
    assert low.graph.by_name["conv2"].inputs == ("r1", "w2")
    assert low.graph.by_name["add"].inputs == ("c2", "r1")
    assert "r1" not in low.grids
    assert kit.ops(low.graph).count("QuantizeLinear") == 2
    assert "w2_quantized" not in low.graph.initializers


def test_everything_pinned_is_the_reference_bit_for_bit(
    kit: SimpleNamespace, residual_net: Any, images: Any
) -> None:
    proto = residual_net()
    pins = {"conv1": "fp32", "conv2": "fp32", "fc": "fp32"}
    low = kit.lowered(proto, kit.int8(AMAX, pins))
    everything = ["c1", "r1", "c2", "s", "r2", "p", "f"]
    found, expected = (kit.run(g, {"x": images}, everything) for g in (low.graph, proto))
    for name in (*everything, "out"):
        np.testing.assert_array_equal(found[name], expected[name])
    assert kit.ops(low.graph) == kit.ops(proto)


def test_a_weight_shared_by_two_layers(kit: SimpleNamespace) -> None:
    w = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    nodes = [
        kit.node("MatMul", ["x", "w"], ["a"], "m1"),
        kit.node("MatMul", ["a", "w"], ["b"], "m2"),
        kit.node("Gemm", ["b", "w"], ["c"], "g", transB=1),
    ]
    proto = kit.make(nodes, {"x": (2, 3)}, ["c"], {"w": w})
    x = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
    low = kit.lowered(proto, kit.int8({"x": 2, "a": 4, "b": 8}))
    found = kit.run(low.graph, {"x": x}, ["a", "b"])
    columns, rows = (kit.fake(w, kit.channel_amax(w, axis), axis) for axis in (1, 0))
    _assert_close(found["a"], kit.fake(x, 2) @ columns)
    _assert_close(found["b"], kit.fake(found["a"], 4) @ columns)
    _assert_close(found["c"], kit.fake(found["b"], 8) @ rows.T)
    # two DequantizeLinear for w (columns, rows), one of them shared
    assert kit.ops(low.graph).count("DequantizeLinear") == 3 + 2
    mixed = kit.lowered(proto, kit.int8({"x": 2, "b": 8}, {"m2": "fp32"}))
    assert mixed.graph.by_name["m2"].inputs == ("a", "w")


def test_a_weight_that_is_also_a_bias(kit: SimpleNamespace) -> None:
    w = np.array([[1, 2], [3, 5]], np.float32) / 7
    node = kit.node("Gemm", ["x", "w", "w"], ["y"], "g")
    low = kit.lowered(kit.make([node], {"x": (2, 2)}, ["y"], {"w": w}), kit.int8({"x": 1}))
    x = np.array([[0.3, -1], [1, 0.1]], np.float32)
    expected = kit.fake(x, 1) @ kit.fake(w, kit.channel_amax(w, 1), 1) + w
    _assert_close(kit.run(low.graph, {"x": x})["y"], expected)


def test_conv_with_its_own_input_as_residual(kit: SimpleNamespace) -> None:
    w = np.random.default_rng(0).normal(size=(2, 2, 1, 1)).astype(np.float32)
    nodes = [
        kit.node("Conv", ["x", "w"], ["c"], "conv"),
        kit.node("Add", ["x", "c"], ["y"], "add"),
    ]
    low = kit.lowered(kit.make(nodes, {"x": (1, 2, 2, 2)}, ["y"], {"w": w}), kit.int8({"x": 1}))
    dq = low.graph.by_name["conv"].inputs[0]
    assert low.graph.by_name["add"].inputs == (dq, "c")
    assert kit.ops(low.graph).count("QuantizeLinear") == 1


def test_a_quantized_tensor_that_is_an_output_stays_float(kit: SimpleNamespace) -> None:
    w = np.eye(2, dtype=np.float32)
    nodes = [
        kit.node("Relu", ["x"], ["r"], "relu"),
        kit.node("MatMul", ["r", "w"], ["y"], "m"),
    ]
    low = kit.lowered(kit.make(nodes, {"x": (1, 2)}, ["r", "y"], {"w": w}), kit.int8({"r": 0.5}))
    x = np.array([[0.123, 3.0]], np.float32)
    found = kit.run(low.graph, {"x": x})
    np.testing.assert_array_equal(found["r"], x)
    _assert_close(found["y"], kit.fake(x, 0.5))


def test_an_all_zero_weight_and_activation(kit: SimpleNamespace) -> None:
    node = kit.node("MatMul", ["x", "w"], ["y"], "m")
    proto = kit.make([node], {"x": (1, 2)}, ["y"], {"w": np.zeros((2, 2), np.float32)})
    low = kit.lowered(proto, kit.int8({"x": 0.0}))
    assert not kit.run(low.graph, {"x": np.zeros((1, 2), np.float32)})["y"].any()


@pytest.mark.parametrize("opset", [13, 17, 19, 21, 23, 25])
def test_opsets(kit: SimpleNamespace, residual_net: Any, images: Any, opset: int) -> None:
    expected = kit.run(kit.lowered(residual_net(), kit.int8(AMAX)).graph, {"x": images})["out"]
    low = kit.lowered(residual_net(opset), kit.int8(AMAX))
    assert low.graph.opset == opset
    _assert_close(kit.run(low.graph, {"x": images})["out"], expected)


def test_a_constant_node_as_weight(kit: SimpleNamespace) -> None:
    from onnx import numpy_helper

    w = np.array([[0.3, -2.0]], np.float32).T
    nodes = [
        kit.node("Constant", [], ["w"], "const", value=numpy_helper.from_array(w)),
        kit.node("MatMul", ["x", "w"], ["y"], "m"),
    ]
    low = kit.lowered(kit.make(nodes, {"x": (1, 2)}, ["y"]), kit.int8({"x": 1}))
    x = np.array([[0.4, 0.2]], np.float32)
    _assert_close(kit.run(low.graph, {"x": x})["y"], kit.fake(x, 1) @ kit.fake(w, [2.0], 1))


def test_names_that_qdebug_would_use_itself(kit: SimpleNamespace) -> None:
    """Tensors and nodes of the user that look like ours, in a subgraph too."""
    from onnx import TensorProto, helper

    inner = helper.make_graph(
        [kit.node("Identity", ["r"], ["r_DequantizeLinear_Output"], "r_DequantizeLinear")],
        "then",
        [],
        [helper.make_tensor_value_info("r_DequantizeLinear_Output", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [kit.node("Neg", ["r"], ["neg"], "neg")],
        "else",
        [],
        [helper.make_tensor_value_info("neg", TensorProto.FLOAT, None)],
    )
    w = np.array([[1, 2], [3, 4]], np.float32)
    nodes = [
        kit.node("Relu", ["x"], ["r"], "r_QuantizeLinear"),
        kit.node("Neg", ["r"], ["r_scale"], "w_DequantizeLinear"),
        kit.node("Add", ["r_scale", "r"], ["r_QuantizeLinear_Output"], "qdebug_zero_point"),
        kit.node("Add", ["r_QuantizeLinear_Output", "r"], ["qdebug_zero_point"], "a"),
        kit.node("If", ["cond"], ["w_quantized"], "if", then_branch=inner, else_branch=other),
        kit.node("Add", ["qdebug_zero_point", "w_quantized"], ["w_scale"], "b"),
        kit.node("Add", ["w_scale", "r"], ["w_zero_point"], "c"),
        kit.node("MatMul", ["r", "w"], ["m"], "matmul"),
        kit.node("Sub", ["m", "w_zero_point"], ["y"], "d"),
    ]
    proto = kit.make(nodes, {"x": (2, 2), "cond": ("b", ())}, ["y"], {"w": w})
    low = kit.lowered(proto, kit.int8({"r": 1.0}))
    x = np.array([[0.5, 0.25], [1, -1]], np.float32)
    found = kit.run(low.graph, {"x": x, "cond": np.array(True)})
    r = np.maximum(x, 0)
    expected = kit.fake(r, 1) @ kit.fake(w, kit.channel_amax(w, 1), 1) - 3 * r
    _assert_close(found["y"], expected)
