"""Integer operators against ONNX Runtime's own kernels: the same codes, or the next ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import qdebug
from qdebug.errors import ModelError, UsageError
from qdebug.network.graph import Graph
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.imported import import_quantized
from qdebug.plan.lints import invalid_scales
from qdebug.plan.rewrite.qoperator import (
    QOPERATORS,
    accuracy_level,
    has_qoperators,
    to_qdq,
)

F32 = np.float32
MS = "com.microsoft"
Case = tuple[list[onnx.NodeProto], dict[str, Any], dict[str, Any], np.dtype[Any]]
"""Nodes, inputs, constants, and the type of the output "y"."""


class Draw:
    """Random operands of one example."""

    def __init__(self, seed: int, signed: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.kind: Any = np.int8 if signed else np.uint8
        self.constants: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}

    def codes(self, shape: Sequence[int], kind: Any = None) -> Any:
        info = np.iinfo(kind or self.kind)
        return self.rng.integers(info.min, info.max + 1, shape).astype(kind or self.kind)

    def weights(self, shape: Sequence[int]) -> Any:
        """Codes of 7 bits: x86 without VNNI adds two products of 8 bits in 16, which saturates."""
        return self.rng.integers(-64, 64, shape).astype(np.int8)

    def scale(self, count: int = 0) -> Any:
        return np.exp(self.rng.uniform(-6, 1, count or None)).astype(F32)

    def zero(self, kind: Any = None) -> Any:
        return np.array(self.codes(()), kind or self.kind)

    def tensor(self, name: str, shape: Sequence[int], constant: bool = False) -> list[str]:
        """Codes with a scale and a zero point; the names of the three."""
        (self.constants if constant else self.inputs)[name] = self.codes(shape)
        return self.pair(name)

    def pair(self, name: str, scale: Any = None) -> list[str]:
        self.constants[f"{name}_s"] = self.scale() if scale is None else scale
        self.constants[f"{name}_z"] = self.zero()
        return [name, f"{name}_s", f"{name}_z"]

    def result(self, scale: float) -> list[str]:
        self.constants["y_s"], self.constants["y_z"] = F32(scale), self.zero()
        return ["y_s", "y_z"]

    def case(self, op: str, inputs: Sequence[str], domain: str = MS, **attributes: Any) -> Case:
        node = helper.make_node(op, inputs, ["y"], "n", domain=domain, **attributes)
        return [node], self.inputs, self.constants, np.dtype(self.kind)


def conv(d: Draw) -> Case:
    groups = int(d.rng.choice([1, 2]))
    x = d.tensor("x", (1, 4, 5, 6))
    d.constants["w"] = d.weights((6, 4 // groups, 3, 3))
    per_channel = bool(d.rng.integers(2))
    d.constants["w_s"] = d.scale(6) if per_channel else d.scale()
    d.constants["w_z"] = np.zeros(6 if per_channel else (), np.int8)
    d.constants["b"] = d.rng.integers(-(2**14), 2**14, 6).astype(np.int32)
    typical = float(d.constants["x_s"]) * float(np.mean(d.constants["w_s"])) * 500
    inputs = [*x, "w", "w_s", "w_z", *d.result(typical)]
    bias = ["b"] if d.rng.integers(2) else []
    pads = [1, 0, 1, 2]
    return d.case("QLinearConv", [*inputs, *bias], "", group=groups, pads=pads, strides=[1, 2])


def matmul(d: Draw) -> Case:
    a = d.tensor("a", (2, 3, 8))
    d.constants["b"] = d.weights((8, 5))
    per_column = bool(d.rng.integers(2))
    d.constants["b_s"] = d.scale(5) if per_column else d.scale()
    d.constants["b_z"] = np.zeros(5 if per_column else (), np.int8)
    typical = float(d.constants["a_s"]) * float(np.mean(d.constants["b_s"])) * 300
    return d.case("QLinearMatMul", [*a, "b", "b_s", "b_z", *d.result(typical)], "")


def gemm(d: Draw) -> Case:
    a = d.tensor("a", (4, 8))
    turned = int(d.rng.integers(2))
    d.constants["b"] = d.weights((5, 8) if turned else (8, 5))
    d.constants["b_s"], d.constants["b_z"] = d.scale(), np.zeros((), np.int8)
    d.constants["c"] = d.rng.integers(-(2**13), 2**13, 5).astype(np.int32)
    alpha = float(d.rng.choice([1.0, 0.5]))
    typical = alpha * float(d.constants["a_s"]) * float(d.constants["b_s"]) * 300
    inputs = [*a, "b", "b_s", "b_z", "c", *d.result(typical)]
    return d.case("QGemm", inputs, transB=turned, alpha=alpha)


def binary(op: str) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        a, b = d.tensor("a", (2, 3, 4)), d.tensor("b", (2, 3, 4) if d.rng.integers(2) else (4,))
        sa, sb = float(d.constants["a_s"]), float(d.constants["b_s"])
        typical = (sa + sb) if op == "QLinearAdd" else 100 * sa * sb
        # Not that multiple itself: it puts results halfway between two codes, where float32's
        # last bit decides.
        return d.case(op, [*a, *b, *d.result(typical * d.rng.uniform(0.9, 1.1))])

    return build


def unary(op: str, **attributes: Any) -> Callable[[Draw], Case]:
    def build(d: Draw) -> Case:
        x = d.tensor("x", (2, 3, 6, 6))
        bounded = op in ("QLinearSigmoid", "QLinearSoftmax")
        typical = 1 / 256 if bounded else float(d.constants["x_s"]) * 0.7310585
        return d.case(op, [*x, *d.result(typical)], **attributes)

    return build


def concat(d: Draw) -> Case:
    a, b = d.tensor("a", (2, 3)), d.tensor("b", (2, 4))
    typical = float(max(d.constants["a_s"], d.constants["b_s"]))
    return d.case("QLinearConcat", [*d.result(typical), *a, *b], axis=1)


def where(d: Draw) -> Case:
    d.inputs["c"] = d.rng.integers(0, 2, (3, 4)).astype(bool)
    x, y = d.tensor("x", (3, 4)), d.tensor("y0", (3, 4))
    typical = float(max(d.constants["x_s"], d.constants["y0_s"]))
    return d.case("QLinearWhere", ["c", *x, *y, *d.result(typical)])


def pooled_codes(d: Draw) -> Case:
    """Codes that a MaxPool and a Transpose hand on, between two integer operators."""
    x = d.tensor("x", (1, 3, 6, 6))
    d.constants["m_s"], d.constants["m_z"] = d.scale(), d.zero()
    node = helper.make_node
    d.constants["q_s"], d.constants["q_z"] = F32(d.constants["m_s"]), d.zero()
    nodes = [
        node("QLinearSigmoid", [*x, "m_s", "m_z"], ["m"], "first", domain=MS),
        node("MaxPool", ["m"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Transpose", ["p"], ["t"], "turn", perm=[0, 2, 3, 1]),
        node("QLinearLeakyRelu", ["t", "m_s", "m_z", "q_s", "q_z"], ["y"], "n", domain=MS),
    ]
    return nodes, d.inputs, d.constants, np.dtype(d.kind)


def enlarged_codes(d: Draw) -> Case:
    """Codes that a Resize repeats, as in the upsampling of detectors."""
    x = d.tensor("x", (1, 3, 4, 4))
    d.constants["m_s"], d.constants["m_z"] = d.scale(), d.zero()
    d.constants["q_s"], d.constants["q_z"] = F32(d.constants["m_s"]), d.zero()
    d.constants["factors"] = np.array([1, 1, 2, 2], F32)
    node = helper.make_node
    resize = node("Resize", ["m", "", "factors"], ["r"], "enlarge", mode="nearest")
    nodes = [
        node("QLinearSigmoid", [*x, "m_s", "m_z"], ["m"], "first", domain=MS),
        resize,
        node("QLinearLeakyRelu", ["r", "m_s", "m_z", "q_s", "q_z"], ["y"], "n", domain=MS),
    ]
    return nodes, d.inputs, d.constants, np.dtype(d.kind)


CASES: dict[str, Callable[[Draw], Case]] = {
    "QLinearConv": conv,
    "QLinearMatMul": matmul,
    "QGemm": gemm,
    "QLinearAdd": binary("QLinearAdd"),
    "QLinearMul": binary("QLinearMul"),
    "QLinearConcat": concat,
    "QLinearWhere": where,
    "QLinearAveragePool": unary("QLinearAveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "QLinearGlobalAveragePool": unary("QLinearGlobalAveragePool"),
    "QLinearLeakyRelu": unary("QLinearLeakyRelu", alpha=0.1),
    "QLinearSigmoid": unary("QLinearSigmoid"),
    "QLinearSoftmax": unary("QLinearSoftmax", axis=-1, opset=13),
    "QLinearSoftmax before opset 13": unary("QLinearSoftmax", axis=1, opset=11),
    "moving": pooled_codes,
    "moving, enlarged": enlarged_codes,
}


def built(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    nodes, inputs, constants, kind = case
    value = helper.make_tensor_value_info
    onnx_kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "g",
        [value(n, onnx_kind(a.dtype), a.shape) for n, a in inputs.items()],
        [value("y", onnx_kind(kind), None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), inputs


def native(proto: onnx.ModelProto, feeds: Any) -> Any:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )[0]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), signed=st.booleans())
def test_the_codes_are_those_of_onnx_runtime(
    kit: SimpleNamespace, name: str, seed: int, signed: bool
) -> None:
    if name == "QLinearConv" and signed:
        signed = False  # ONNX Runtime's kernel for a signed input wants a signed output; below
    proto, feeds = built(CASES[name](Draw(seed, signed)))
    expected = native(proto, feeds)
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    assert not has_qoperators(Graph(explicit.proto))
    found = kit.run(explicit.proto, feeds)["y"]
    assert found.dtype == expected.dtype and found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference != 0).sum() <= max(2, 0.05 * difference.size)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1), product=st.sampled_from(["MatMulInteger", "ConvInteger"]))
def test_dynamic_quantization(kit: SimpleNamespace, seed: int, product: str) -> None:
    """What quantize_dynamic makes: equal to ONNX Runtime but for float32's rounding."""
    rng = np.random.default_rng(seed)
    shape, weight = ((3, 8), (8, 5)) if product == "MatMulInteger" else ((1, 4, 6, 6), (5, 4, 3, 3))
    scales = rng.uniform(0.01, 1, 5) if product == "MatMulInteger" and rng.integers(2) else 0.02
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "dynamic"),
        node(product, ["q", "w", "z", "w_z"], ["i"], "product"),
        node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        node("Mul", ["s", "w_s"], ["both"], "scales"),
        node("Mul", ["f", "both"], ["y"], "scaled"),
    ]
    constants = {
        "w": rng.integers(-64, 64, weight).astype(np.int8),
        "w_z": np.array(0, np.int8),
        "w_s": np.asarray(scales, F32),
    }
    feeds = {"x": rng.normal(size=shape).astype(F32)}
    proto, _ = built((nodes, feeds, constants, np.dtype(F32)))
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    ops = [n.op_type for n in explicit.proto.graph.node]
    assert ops.count("Conv") + ops.count("MatMul") == 1 and "Mul" not in ops and "Cast" not in ops
    found, expected = kit.run(explicit.proto, feeds)["y"], native(proto, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    plain = import_quantized(Graph(onnx.shape_inference.infer_shapes(explicit.proto))).network
    assert [n.op_type for n in plain.graph.node] == [product.removesuffix("Integer")]


def test_a_product_of_two_tensors_that_are_quantized_dynamically(kit: SimpleNamespace) -> None:
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "first"),
        node("DynamicQuantizeLinear", ["w"], ["r", "t", "u"], "second"),
        node("MatMulInteger", ["q", "r", "z", "u"], ["i"], "product"),
        node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        node("Mul", ["s", "t"], ["both"], "scales"),
        node("Mul", ["f", "both"], ["y"], "scaled"),
    ]
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(3, 8)).astype(F32), "w": rng.normal(size=(8, 5)).astype(F32)}
    proto, _ = built((nodes, feeds, {}, np.dtype(F32)))
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    found, expected = kit.run(explicit.proto, feeds)["y"], native(proto, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    plain = import_quantized(Graph(onnx.shape_inference.infer_shapes(explicit.proto))).network
    assert [n.op_type for n in plain.graph.node] == ["MatMul"]


@pytest.mark.parametrize("kind", ["normal", "positive", "zero"])
def test_a_weight_in_a_constant_node_that_is_quantized_dynamically(
    kit: SimpleNamespace, kind: str
) -> None:
    """As quantize_dynamic leaves the weights of models of PaddlePaddle."""
    node = helper.make_node
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(8, 5)).astype(F32)
    weight = {"normal": weight, "positive": np.abs(weight), "zero": 0 * weight}[kind]
    nodes = [
        node("Constant", [], ["w"], "weight", value=numpy_helper.from_array(weight)),
        node("DynamicQuantizeLinear", ["w"], ["r", "t", "u"], "second"),
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "first"),
        node("MatMulInteger", ["q", "r", "z", "u"], ["i"], "product"),
        node("Cast", ["i"], ["f"], "cast", to=TensorProto.FLOAT),
        node("Mul", ["s", "t"], ["both"], "scales"),
        node("Mul", ["f", "both"], ["y"], "scaled"),
    ]
    feeds = {"x": rng.normal(size=(3, 8)).astype(F32)}
    proto, _ = built((nodes, feeds, {}, np.dtype(F32)))
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    codes = {t.name: numpy_helper.to_array(t) for t in explicit.proto.graph.initializer}
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    shown.graph.output.extend(onnx.ValueInfoProto(name=t) for t in ("r", "t", "u"))
    kept = ort.InferenceSession(shown.SerializeToString()).run(["r", "u", "t"], feeds)
    np.testing.assert_array_equal(codes["r"], kept[0])
    np.testing.assert_array_equal(codes["u"], kept[1])
    found, expected = kit.run(explicit.proto, feeds)["y"], native(proto, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    plain = import_quantized(Graph(onnx.shape_inference.infer_shapes(explicit.proto))).network
    assert "DynamicQuantizeLinear" not in {n.op_type for n in plain.graph.node}


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_table_of_codes_feeds_products_directly(tmp_path: Path, per_channel: bool) -> None:
    """As quantize_dynamic leaves an embedding: its codes are looked up, then multiplied."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "embed"),
        node("MatMul", ["e", "q"], ["a"], "query"),
        node("MatMul", ["e", "k"], ["b"], "key"),
        node("Mul", ["a", "b"], ["y"], "both"),
    ]
    shapes = {"table": (50, 16), "q": (16, 8), "k": (16, 8)}
    constants = {n: rng.normal(size=s).astype(F32) for n, s in shapes.items()}
    feeds = {"ids": rng.integers(0, 50, (2, 6))}
    proto, _ = built((nodes, feeds, constants, np.dtype(F32)))
    onnx.save(proto, tmp_path / "fp32.onnx")
    quantized = tmp_path / "dynamic.onnx"
    how: dict[str, Any] = {"weight_type": QuantType.QInt8, "reduce_range": True}
    quantize_dynamic(tmp_path / "fp32.onnx", quantized, per_channel=per_channel, **how)
    result = qdebug.compare(
        str(quantized), inputs=feeds, reference=str(tmp_path / "fp32.onnx"), batch_size=2
    )
    assert result.correspondence is not None
    assert [m.tensor for m in result.correspondence.matches if m.proven] == ["e", "a", "b", "y"]
    assert {x.name for x in result.layers if x.effect} == {"embed", "query", "key"}
    expected, found = native(proto, feeds), native(onnx.load(quantized), feeds)
    sqnr = 10 * np.log10((expected**2).sum() / ((expected - found) ** 2).sum())
    assert result.outputs[0].metrics.sqnr_db == pytest.approx(sqnr, abs=0.01)


def test_an_integer_product_without_scales(kit: SimpleNamespace) -> None:
    nodes = [helper.make_node("MatMulInteger", ["a", "b", "az"], ["y"], "n")]
    rng = np.random.default_rng(0)
    feeds = {"a": rng.integers(0, 256, (3, 8)).astype(np.uint8)}
    constants = {"b": rng.integers(-64, 64, (8, 2)).astype(np.int8), "az": np.array(7, np.uint8)}
    proto, _ = built((nodes, feeds, constants, np.dtype(np.int32)))
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    found = kit.run(explicit.proto, feeds)["y"]
    np.testing.assert_array_equal(found, native(proto, feeds))


def test_every_operator_is_tested() -> None:
    tested = {name.partition(" ")[0] for name in CASES} | {"MatMulInteger", "ConvInteger"}
    products = {"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "MatMulNBits"}
    assert tested | products | {"moving"} >= {name for _, name in QOPERATORS}


def blockwise(bits: int, zeros: bool, columns: int = 6, **attributes: Any) -> onnx.ModelProto:
    """MatMulNBits of a weight [K, N] = [40, columns], in blocks of 16 along K."""
    rng, k, block = np.random.default_rng(bits), 40, 16
    blocks, a_byte = 3, 8 // bits
    constants: dict[str, Any] = {
        "b": rng.integers(0, 256, (columns, blocks, block // a_byte)).astype(np.uint8),
        "bs": rng.normal(size=(columns, blocks)).astype(F32),  # negative ones are usual
        "bias": rng.normal(size=columns).astype(F32),
    }
    if zeros:
        packed = -(-blocks // a_byte)
        constants["bz"] = rng.integers(0, 256, (columns, packed)).astype(np.uint8)
    inputs = ["a", "b", "bs", "bz" if zeros else "", "", "bias"]
    sizes = {"K": k, "N": columns, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", inputs, ["y"], "n", domain=MS, **sizes, **attributes)
    return built(([node], {"a": np.zeros((3, k), F32)}, constants, np.dtype(F32)))[0]


def prepared(proto: onnx.ModelProto, folder: Path) -> Graph:
    """At the opset that scales by block need."""
    onnx.save(proto, folder / "blocks.onnx")
    model = prepare_model(read_model(str(folder / "blocks.onnx")))
    assert model.quantized and has_qoperators(model.graph)
    return model.graph


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_blocks(kit: SimpleNamespace, tmp_path: Path, bits: int, zeros: bool) -> None:
    proto = blockwise(bits, zeros)
    explicit = to_qdq(prepared(proto, tmp_path))
    feeds = {"a": np.random.default_rng(0).normal(size=(3, 40)).astype(F32)}
    expected = native(proto, feeds)
    np.testing.assert_allclose(kit.run(explicit.proto, feeds)["y"], expected, rtol=1e-4, atol=1e-4)
    graph = Graph(onnx.shape_inference.infer_shapes(explicit.proto))
    assert kit.ops(graph.proto).count("DequantizeLinear") == 1 and not invalid_scales(graph)
    np.testing.assert_allclose(
        kit.run(import_quantized(graph).network, feeds)["y"], expected, atol=1e-4
    )


def test_how_exactly_blocks_are_multiplied_stays_known(tmp_path: Path) -> None:
    for level in (0, 4):
        explicit = to_qdq(prepared(blockwise(4, zeros=False, accuracy_level=level), tmp_path))
        assert accuracy_level(explicit.proto) == level
    assert accuracy_level(built(matmul(Draw(0, signed=False)))[0]) is None


@pytest.mark.parametrize(("bits", "level"), [(4, 0), (4, 4), (8, 0)])
def test_what_rounds_activations_beside_blocks_is_kernel_error(
    tmp_path: Path, bits: int, level: int
) -> None:
    """ONNX Runtime rounds them to INT8 with accuracy_level 4, and not with 0."""
    proto = blockwise(bits, zeros=False, columns=32, accuracy_level=level)
    plain, reference = Graph.inferred(to_qdq(prepared(proto, tmp_path)).proto), tmp_path / "f.onnx"
    onnx.save(import_quantized(plain).network, reference)
    feeds = {"a": np.random.default_rng(0).normal(size=(6, 40)).astype(F32)}
    result = qdebug.compare(
        tmp_path / "blocks.onnx",
        reference=reference,
        inputs=feeds,
        backend="onnxruntime",
    )
    assert [(x.name, x.precision) for x in result.layers if x.op_type == "MatMul"] == [
        ("n", "int4" if bits == 4 else "w8")
    ]
    assert result.engine is not None and result.engine.audit is not None
    assert result.engine.audit.passed
    sqnr = result.outputs[0].metrics.sqnr_db
    assert sqnr > 100 if level == 0 else 30 < sqnr < 60
    assert any("accuracy_level 4" in note for note in result.notes) == (level == 4)


def test_a_model_with_quantized_weights_only_hides_what_they_cost(tmp_path: Path) -> None:
    prepared(blockwise(4, zeros=False), tmp_path)
    with pytest.raises(UsageError, match="only weights are quantized \\(INT4\\)") as caught:
        qdebug.compare(tmp_path / "blocks.onnx", inputs={"a": np.ones((3, 40), F32)})
    assert "reference" in caught.value.hint


@pytest.mark.parametrize(("bits", "inputs", "says"), [(2, 6, "2 bits"), (4, 5, "g_idx")])
def test_blocks_that_are_not_read(bits: int, inputs: int, says: str) -> None:
    proto = blockwise(bits, zeros=False)
    if inputs == 5:
        proto.graph.node[0].input[4] = "bias"
    with pytest.raises(ModelError, match=says):
        to_qdq(Graph(proto))


@pytest.mark.parametrize("op", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_fused_products(kit: SimpleNamespace, op: str) -> None:
    rng = np.random.default_rng(3)
    constants = {
        "b": rng.integers(-64, 64, (8, 5)).astype(np.int8), "bs": F32(0.02),
        "bz": np.array(3, np.int8), "bias": rng.normal(size=5).astype(F32),
        "as": F32(0.1), "az": np.array(9, np.uint8),
    }  # fmt: skip
    feeds: dict[str, Any]
    if op == "MatMulIntegerToFloat":
        feeds = {"a": rng.integers(0, 256, (3, 8)).astype(np.uint8)}
        inputs = ["a", "b", "as", "bs", "az", "bz", "bias"]
    else:
        feeds = {"a": rng.normal(size=(3, 8)).astype(F32)}
        inputs = ["a", "b", "bs", "bz", "bias"]
    node = helper.make_node(op, inputs, ["y"], "n", domain=MS)
    proto, _ = built(([node], feeds, constants, np.dtype(F32)))
    explicit = to_qdq(Graph(onnx.shape_inference.infer_shapes(proto)))
    found = kit.run(explicit.proto, feeds)["y"]
    np.testing.assert_allclose(found, native(proto, feeds), rtol=1e-4, atol=1e-4)


def test_what_has_no_equivalent_is_refused() -> None:
    d = Draw(0, signed=False)
    case = unary("QLinearGlobalAveragePool", channels_last=1)(d)
    with pytest.raises(ModelError) as caught:
        to_qdq(Graph(built(case)[0]))
    assert caught.value.code == "QD-MODEL-INTEGER-OPERATOR" and "'n'" in caught.value.message


def test_a_table_of_codes_is_dequantized_before_it_is_read(kit: SimpleNamespace) -> None:
    """An embedding as ONNX Runtime quantizes it; its codes are read by an integer operator too."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "i"], ["g"], "gather"),
        node("DequantizeLinear", ["g", "s", "z"], ["f"], "dequantize"),
        node("QLinearAdd", ["g", "s", "z", "b", "s", "z", "s", "z"], ["a"], "add", domain=MS),
        node("DequantizeLinear", ["a", "s", "z"], ["d"], "last"),
        node("Sub", ["d", "f"], ["y"], "sub"),
    ]
    constants = {
        "table": rng.integers(-128, 128, (5, 4)).astype(np.int8), "s": F32(0.1),
        "z": np.array(3, np.int8), "b": rng.integers(-20, 20, 4).astype(np.int8),
    }  # fmt: skip
    feeds = {"i": np.array([4, 0, 4], np.int64)}
    proto, _ = built((nodes, feeds, constants, np.dtype(F32)))
    graph = Graph(onnx.shape_inference.infer_shapes(proto))
    assert has_qoperators(graph)
    explicit = to_qdq(graph)
    np.testing.assert_array_equal(kit.run(explicit.proto, feeds)["y"], native(proto, feeds))
    plain = import_quantized(Graph(onnx.shape_inference.infer_shapes(explicit.proto))).network
    assert set(kit.ops(plain)) == {"Add", "Gather", "Sub"}
    added = (constants["b"].astype(F32) - 3) * F32(0.1)
    found = kit.run(plain, feeds)["y"]
    np.testing.assert_allclose(found, np.broadcast_to(added, found.shape), atol=1e-6)
