"""ONNX Runtime: literal Q/DQ, the same bits whatever is captured, silent, errors that say what."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from refusals import refused

from qdebug.backends.simulation import SimulationBackend
from qdebug.calibrators.weights import weight_amax
from qdebug.errors import BackendError, ModelError
from qdebug.formats.registry import INT8
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.quantize import scale_of

Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, Any],
    shape: list[int],
    outputs: str = "y",
    opset: int = 13,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info(o, FLOAT, [None] * len(shape)) for o in outputs.split(",")],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def pair(source: str, output: str, scale: str, **attributes: Any) -> list[onnx.NodeProto]:
    zero = f"{scale}_zero"
    return [
        helper.make_node("QuantizeLinear", [source, scale, zero], [f"{output}_q"], f"q{output}"),
        helper.make_node("DequantizeLinear", [f"{output}_q", scale, zero], [output], f"d{output}"),
    ]


def q_network(rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """x → Q/DQ → Conv with INT8 weights per channel → Relu → Q/DQ → y: what ONNX Runtime would
    fuse into one INT8 kernel."""
    weight = rng.normal(size=(4, 3, 3, 3)).astype(np.float32)
    scales = scale_of(weight_amax(weight, 0))
    codes = INT8.encode(weight, scales, 0)
    values = {
        "s": scale_of(3.0),
        "s_zero": np.int8(0),
        "t": scale_of(5.0),
        "t_zero": np.int8(0),
        "codes": codes,
        "ws": scales,
        "wz": np.zeros(4, np.int8),
    }
    nodes = [
        *pair("x", "xd", "s"),
        helper.make_node("DequantizeLinear", ["codes", "ws", "wz"], ["wd"], "dw", axis=0),
        helper.make_node("Conv", ["xd", "wd"], ["c"], "conv"),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        *pair("r", "y", "t"),
    ]
    return model(nodes, values, [1, 3, 8, 8]), values


def plain_conv(x: Array, w: Array) -> Array:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"])], {"w": w}, list(x.shape))
    return SimulationBackend(1).open(proto, []).run({"x": x})["y"]


@pytest.mark.parametrize("capture", [[], ["xd"], ["c", "r"], ["xd", "wd", "c", "r", "y_q"]])
def test_qdq_is_executed_literally(capture: list[str]) -> None:
    rng = np.random.default_rng(0)
    proto, values = q_network(rng)
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32) * 2
    found = SimulationBackend(1).open(proto, capture).run({"x": x})
    seen = INT8.quantize(x, values["s"])
    weights = INT8.decode(values["codes"], values["ws"], 0)
    c = plain_conv(seen, weights)
    expected = {"xd": seen, "wd": weights, "c": c, "r": np.maximum(c, 0)}
    for name in set(capture) & expected.keys():
        if name in ("xd", "wd"):
            np.testing.assert_array_equal(found[name], expected[name])
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)
    y = INT8.quantize(np.maximum(c, 0), values["t"])
    off = np.abs(found["y"] - y) > 1e-6
    assert off.mean() < 0.01  # a value on a tie may go either way with the order of summation
    assert np.all(found["y"] == np.rint(found["y"] / values["t"]) * values["t"])


def test_matmul_qdq_is_executed_literally() -> None:
    rng = np.random.default_rng(3)
    w = rng.normal(size=(16, 8)).astype(np.float32)
    values = {"s": scale_of(1.0), "s_zero": np.int8(0), "w": w}
    nodes = [*pair("x", "xd", "s"), helper.make_node("MatMul", ["xd", "w"], ["y"])]
    x = rng.normal(size=(4, 16)).astype(np.float32)
    found = SimulationBackend(1).open(model(nodes, values, [4, 16]), []).run({"x": x})["y"]
    np.testing.assert_allclose(found, INT8.quantize(x, values["s"]) @ w, rtol=1e-5, atol=1e-5)


def test_unsigned_qdq_is_executed_literally() -> None:
    """On x86 ONNX Runtime would compute this one with an INT8 kernel, which rounds otherwise."""
    rng = np.random.default_rng(7)
    scale, zero = np.float32(0.02), np.uint8(128)
    weights = {"w": rng.integers(-127, 128, (64, 48)).astype(np.int8), "ws": np.float32(0.01)}
    weights |= {"s": scale, "s_zero": zero, "t": np.float32(0.113), "t_zero": np.uint8(120)}
    nodes = [
        *pair("x", "xd", "s"),
        helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], "dw"),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], "mm"),
        *pair("m", "y", "t"),
    ]
    x = rng.normal(size=(256, 64)).astype(np.float32)
    proto = model(nodes, weights, [256, 64])
    found = SimulationBackend(1).open(proto, []).run({"x": x})["y"]

    def round_trip(a: Array, s: np.float32, z: np.uint8) -> Array:
        codes = np.clip(np.rint(a / s) + np.float32(z), 0, 255)
        return ((codes - np.float32(z)) * s).astype(np.float32)

    seen = round_trip(x, scale, zero)
    m = seen @ (weights["w"].astype(np.float32) * weights["ws"])
    off = np.abs(found - round_trip(m, weights["t"], weights["t_zero"])) > 1e-5
    assert off.mean() < 1e-3
    kinds = executed_kinds(proto)
    assert "MatMul" in kinds and not any("Integer" in k or "QLinear" in k for k in kinds)


def executed_kinds(proto: onnx.ModelProto) -> set[str]:
    """Operators that are left after ONNX Runtime's optimizations, as its profile names them."""
    session = SimulationBackend(1).open(proto, [])
    options = session._session.get_session_options()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}


def fp32_network(rng: np.random.Generator) -> onnx.ModelProto:
    nodes, weights = [], {}
    tensor = "x"
    for i in range(4):
        weights[f"w{i}"] = rng.normal(size=(8, 8 if i else 3, 3, 3)).astype("f")
        weights[f"b{i}"] = rng.normal(size=8).astype("f")
        nodes.append(
            helper.make_node(
                "Conv", [tensor, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4
            )
        )
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
        tensor = f"r{i}"
    nodes.append(helper.make_node("Add", ["r3", "r1"], ["sum"], "add"))
    nodes.append(helper.make_node("Relu", ["sum"], ["y"], "last"))
    return model(nodes, weights, [1, 3, 12, 12])


@pytest.mark.parametrize(
    "capture", [[], ["c0"], ["r1", "r3"], [f"{k}{i}" for k in "cr" for i in range(4)]]
)
def test_two_sessions_opened_alike_give_the_same_bits(capture: list[str]) -> None:
    rng = np.random.default_rng(1)
    proto = fp32_network(rng)
    x = rng.normal(size=(1, 3, 12, 12)).astype(np.float32)
    one, two = (SimulationBackend(1).open(proto, capture).run({"x": x}) for _ in range(2))
    assert one.keys() == two.keys() == {"y", *capture}
    for name, array in one.items():
        assert array.tobytes() == two[name].tobytes()


def test_captures_do_not_change_more_than_rounding() -> None:
    rng = np.random.default_rng(2)
    proto = fp32_network(rng)
    x = rng.normal(size=(1, 3, 12, 12)).astype(np.float32)
    clean = SimulationBackend(1).open(proto, []).run({"x": x})["y"]
    watched = SimulationBackend(1).open(proto, ["c0", "r0", "c3", "sum"]).run({"x": x})["y"]
    np.testing.assert_allclose(watched, clean, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("ir_version", [3, 6])
def test_old_exports_are_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ir_version: int
) -> None:
    """Weights among the inputs: from IR 4 on ONNX Runtime warns once for each."""
    proto = fp32_network(np.random.default_rng(0))
    proto.ir_version = ir_version
    proto.opset_import[0].version = 9
    proto.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in proto.graph.initializer
    )
    path = tmp_path / "old.onnx"
    path.write_bytes(proto.SerializeToString())
    prepared = prepare_model(read_model(path))
    for graph in (prepared.graph.proto, proto):
        SimulationBackend(1).open(graph, ["c0"]).run({"x": np.ones((1, 3, 12, 12), np.float32)})
    assert capfd.readouterr() == ("", "")


def test_errors_are_silent_too(capfd: pytest.CaptureFixture[str]) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {}, [2])
    session = SimulationBackend(1).open(proto, [])
    with pytest.raises(BackendError):
        session.run({"x": np.ones((3, 3), np.float32)})
    with pytest.raises(ModelError):
        SimulationBackend(1).open(model([helper.make_node("Nope", ["x"], ["y"])], {}, [2]), [])
    assert capfd.readouterr() == ("", "")


def test_a_message_that_is_no_text(capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime's Python layer fails on it, then prints and tries again, unless told not to."""
    proto = model([helper.make_node("Nope", ["x"], ["y"])], {}, [2])
    damaged = proto.SerializeToString().replace(b"Nope", b"N\xffpe")
    with pytest.raises(ModelError):
        SimulationBackend().open(onnx.ModelProto.FromString(damaged), [])
    assert capfd.readouterr() == ("", "")


def test_messages_are_short_and_without_source_positions() -> None:
    with pytest.raises(ModelError) as caught:
        SimulationBackend().open(model([helper.make_node("Nope", ["x"], ["y"], "n")], {}, [2]), [])
    message = caught.value.message
    assert "Nope" in message and ".cc:" not in message and "ONNXRuntimeError" not in message
    assert len(message) < 500
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {}, [2])
    proto.opset_import[0].version = 1000
    with pytest.raises(ModelError, match="opset") as caught:
        SimulationBackend().open(proto, [])
    assert "opset" in caught.value.hint


def test_a_model_of_the_wrong_element_type() -> None:
    session = SimulationBackend().open(model([helper.make_node("Relu", ["x"], ["y"])], {}, [2]), [])
    with pytest.raises(BackendError, match="x"):
        session.run({"x": np.ones(2, np.float64)})


def test_a_failure_inside_a_node() -> None:
    """Shapes that only the values decide: found when it runs, so the backend failed."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[4] x, int64[N] shape) => (float[M, K] y) { y = Reshape(x, shape) }
    """)
    session = SimulationBackend().open(proto, [])
    assert session.run({"x": np.ones(4, "f"), "shape": np.array([2, 2])})["y"].shape == (2, 2)
    with refused("QD-BACKEND-EXECUTE"):
        session.run({"x": np.ones(4, "f"), "shape": np.array([3, 3])})


def test_more_than_the_memory() -> None:
    """Which is not the model's fault."""
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (int64[N] shape) => (float[M] y) { y = ConstantOfShape(shape) }
    """)
    proto.graph.node[0].name = "a long name" * 100
    session = SimulationBackend().open(proto, [])
    with refused("QD-BACKEND-HOST-MEMORY"):
        session.run({"shape": np.array([1 << 45])})


def test_a_node_that_is_called_like_an_error() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[4] x, int64[N] shape) => (float[M, K] y) { y = Reshape(x, shape) }
    """)
    proto.graph.node[0].name = "on std::bad_alloc"
    session = SimulationBackend().open(proto, [])
    with refused("QD-BACKEND-EXECUTE"):
        session.run({"x": np.ones(4, "f"), "shape": np.array([3, 3])})


def test_outputs_that_numpy_cannot_hold_are_skipped() -> None:
    proto = parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        g (float[4] x) => (float[4] y) { s = SequenceConstruct(x, x)  y = Relu(x)
          b = Cast<to = 16>(x) }
    """)
    session = SimulationBackend().open(proto, ["s", "b", "nothing"])
    found = session.run({"x": np.full(4, 1 + 2**-12, np.float32)})
    assert set(found) == {"y", "b"}
    assert found["b"].dtype == np.float32 and np.all(found["b"] == 1)  # BF16 has 8 bits
    assert [s.tensor for s in session.skipped] == ["nothing", "s"]
    assert "seq" in session.skipped[1].reason


def test_captures_inside_a_layer_that_onnx_runtime_fuses() -> None:
    rng = np.random.default_rng(5)
    proto = fp32_network(rng)
    found = (
        SimulationBackend(1)
        .open(proto, ["c0", "r0"])
        .run({"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)})
    )
    assert (found["c0"] < 0).any()
    np.testing.assert_array_equal(found["r0"], np.maximum(found["c0"], 0))
