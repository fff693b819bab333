"""A correction of a layer computes the same wherever it is executed: as lowered, as a candidate put
together from parts, literally and by INT8 kernels, and where a walk stands; and against numpy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import pytest
from lowered_models import model_of
from onnx import helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.decide.remedies.quantized import quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.decide.remedies.walk import Walk
from qdebug.formats.registry import INT8
from qdebug.network.layers import find_layers
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.lower import lower
from qdebug.plan.plan import (
    BoundPlan,
    Correction,
    Granularity,
    PrecisionPlan,
    TensorRange,
    bind_plan,
)
from qdebug.plan.quantize import scale_of
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.types import Array, Precision

AMAX = 3.0
STRIDE = {"strides": [2, 2]}


@dataclass(frozen=True)
class Kind:
    """A layer: the anchor's operator, and the shapes of input, weight and biases."""

    op_type: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    channels: int
    bias: tuple[int, ...] | None = None
    added: tuple[int, ...] | None = None
    left: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "conv": Kind("Conv", (2, 4, 6, 6), (8, 4, 3, 3), 8, attributes={"pads": [1] * 4}),
    "conv-bias": Kind("Conv", (2, 4, 6, 6), (8, 4, 3, 3), 8, (8,)),
    "conv1d": Kind("Conv", (2, 4, 6), (8, 4, 3), 8, (8,)),
    "depthwise": Kind("Conv", (2, 4, 6, 6), (4, 1, 3, 3), 4, (4,), attributes={"group": 4}),
    "transposed": Kind("ConvTranspose", (2, 4, 5, 5), (4, 3, 2, 2), 3, attributes=STRIDE),
    "transposed-bias": Kind("ConvTranspose", (2, 4, 5, 5), (4, 3, 2, 2), 3, (3,)),
    "gemm": Kind("Gemm", (5, 6), (6, 4), 4),
    "gemm-bias": Kind("Gemm", (5, 6), (4, 6), 4, (4,), attributes={"transB": 1}),
    "gemm-scalar-bias": Kind("Gemm", (5, 6), (6, 4), 4, ()),
    "gemm-beta": Kind("Gemm", (5, 6), (6, 4), 4, (4,), attributes={"beta": 0.5}),
    "gemm-left": Kind("Gemm", (6, 5), (4, 6), 4, (5,), left=True),
    "matmul": Kind("MatMul", (2, 5, 6), (6, 4), 4),
    "matmul-add": Kind("MatMul", (2, 5, 6), (6, 4), 4, added=(4,)),
    "matmul-add-one": Kind("MatMul", (2, 5, 6), (6, 4), 4, added=(1,)),
    "matmul-left": Kind("MatMul", (2, 6, 5), (4, 6), 4, left=True),
    "matmul-left-add": Kind("MatMul", (2, 6, 5), (4, 6), 4, added=(4, 1), left=True),
    "matmul-vector": Kind("MatMul", (2, 5, 6), (6,), 1),
}  # fmt: skip


def _network(kind: Kind, weights: Granularity) -> tuple[BoundPlan, Any, Array, dict[str, Array]]:
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=kind.w).astype(np.float32)}
    operands = ["w", "x"] if kind.left else ["x", "w"]
    if kind.bias is not None:
        constants["b"] = np.asarray(rng.normal(size=kind.bias), np.float32)
        operands.append("b")
    nodes = [helper.make_node(kind.op_type, operands, ["y"], "anchor", **kind.attributes)]
    if kind.added is not None:
        constants["a"] = rng.normal(size=kind.added).astype(np.float32)
        nodes.append(helper.make_node("Add", ["a", "y"], ["z"], "add"))
    nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["out"], "relu"))
    model = model_of(nodes, constants, ["out"], list(kind.x))
    layers = find_layers(model.graph)
    plan = PrecisionPlan(Precision.INT8, tensors={"x": TensorRange(AMAX)}, weights=weights)
    x = rng.normal(size=kind.x).astype(np.float32)
    return bind_plan(plan, model, layers), model, x, constants


def _correction(kind: Kind, parts: str) -> Correction:
    rng = np.random.default_rng(1)
    weight = rng.normal(size=kind.w).astype(np.float32)
    bias = rng.normal(size=kind.channels).astype(np.float32)
    return Correction(weight if "w" in parts else None, bias if "b" in parts else None)


def _run(proto: onnx.ModelProto, x: Array) -> Array:
    return SimulationBackend(1).open(proto, ()).run({"x": x})["out"]


def _expected(bound: BoundPlan, kind: Kind, x: Array, correction: Correction) -> Array:
    """The FP32 network with other constants, fed with what Q/DQ makes of its input; what is added
    to each channel, by hand."""
    graph = bound.layers.graph
    axis = weight_axis(graph.by_name["anchor"], graph, "w")
    axis = axis if bound.plan.weights is Granularity.PER_CHANNEL else None
    values = graph.constant("w") if correction.weight is None else correction.weight
    assert values is not None
    others = tuple(i for i in range(values.ndim) if i != axis)
    amax = np.abs(values).max() if axis is None else np.abs(values).max(axis=others)
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    proto.graph.node.pop()  # Relu
    last = proto.graph.node[-1].output[0]
    proto.graph.output[0].name = last
    for tensor in proto.graph.initializer:
        if tensor.name == "w":
            rounded = INT8.quantize(values, scale_of(amax), axis)
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, "w"))
    found = SimulationBackend(1).open(proto, ()).run({"x": INT8.quantize(x, scale_of(AMAX))})[last]
    if correction.bias is not None:
        place = [1] * found.ndim
        where = 1 if kind.op_type.startswith("Conv") else (found.ndim - 2 if kind.left else -1)
        if len(kind.w) > 1:
            place[where] = -1
        found = found + correction.bias.reshape(place if len(kind.w) > 1 else ())
    return np.maximum(found, 0)


@pytest.mark.parametrize("weights", Granularity)
@pytest.mark.parametrize("parts", ["w", "b", "wb"])
@pytest.mark.parametrize("name", KINDS)
def test_a_correction_computes_the_same_everywhere(
    name: str, parts: str, weights: Granularity, tmp_path: Any
) -> None:
    kind = KINDS[name]
    bound, model, x, _ = _network(kind, weights)
    correction = _correction(kind, parts)
    bound = replace(bound, corrections={"anchor": correction})
    expected = _expected(bound, kind, x, correction)
    tolerance = 1e-5 * np.abs(expected).max()
    lowered = _run(lower(bound).graph.proto, x)
    np.testing.assert_allclose(lowered, expected, rtol=0, atol=tolerance)
    np.savez(tmp_path / "x.npz", x=x)
    samples = whole(open_samples(str(tmp_path / "x.npz"), model.graph.inputs))
    backend = SimulationBackend(1)
    study = Study(backend, backend, samples, lambda n, t: {}, lambda n: n)
    (site,) = Walk(study, quantized(model, bound))
    added = _added(kind, bound)
    found = np.maximum(site.outputs()[0] + added, 0)
    np.testing.assert_allclose(found, lowered, rtol=0, atol=tolerance)


def _added(kind: Kind, bound: BoundPlan) -> Any:
    return 0 if kind.added is None else bound.layers.graph.constant("a")


@pytest.mark.parametrize("name", KINDS)
def test_a_pinned_layer_computes_with_its_own_constants(name: str) -> None:
    kind = KINDS[name]
    bound, model, x, _ = _network(kind, Granularity.PER_CHANNEL)
    bound = replace(bound, corrections={"anchor": _correction(kind, "wb")})
    own = _run(model.graph.proto, x)
    pinned = replace(bound, precisions={**bound.precisions, "anchor": Precision.FP32})
    np.testing.assert_array_equal(_run(lower(pinned).graph.proto, x), own)


@pytest.mark.parametrize("name", KINDS)
def test_no_correction_is_no_change(name: str) -> None:
    kind = KINDS[name]
    bound, _, x, _ = _network(kind, Granularity.PER_CHANNEL)
    empty = replace(bound, corrections={"anchor": Correction()})
    np.testing.assert_array_equal(
        _run(lower(empty).graph.proto, x), _run(lower(bound).graph.proto, x)
    )
