"""Small models, and an emulation of INT8 that shares no code with qdebug's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import ModelFile
from qdebug.network.prepare import Model, prepare_model
from qdebug.plan.lower import Lowered, lower
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.rewrite.edit import check
from qdebug.types import Precision

KINDS = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "h": TensorProto.FLOAT16}
KINDS |= {"i": TensorProto.INT64, "b": TensorProto.BOOL, "u": TensorProto.UINT8}
KINDS |= {"c": TensorProto.INT8}


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | Mapping[str, str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A checked model; an input is a shape (FP32) or (letter of its type, shape)."""

    def value(name: str, spec: Any) -> onnx.ValueInfoProto:
        kind, shape = spec if isinstance(spec[0], str) and spec[0] in KINDS else ("f", spec)
        return helper.make_tensor_value_info(name, KINDS[kind], shape)

    kinds = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, "f")
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, spec) for name, spec in inputs.items()],
        [helper.make_tensor_value_info(name, KINDS[kind], None) for name, kind in kinds.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=11)
    inferred = onnx.shape_inference.infer_shapes(proto)
    del proto.graph.output[:]
    proto.graph.output.extend(inferred.graph.output)
    if not domains:
        check(proto, "the test's model")
    return proto


def model_of(proto: onnx.ModelProto) -> Model:
    """A prepared model without folding: the nodes are exactly those given."""
    file = ModelFile(Path("m.onnx"), proto, "sha", "digest")
    quantized = any("quantizelinear" in n.op_type.lower() for n in proto.graph.node)
    graph = Graph(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    return Model(file, graph, {n.name: (n.name,) for n in graph.nodes}, quantized)


def run(
    graph: Graph | onnx.ModelProto, feeds: Mapping[str, Any], capture: Sequence[str] = ()
) -> dict[str, Any]:
    """Outputs and captured tensors of one execution on ONNX Runtime."""
    proto = graph.proto if isinstance(graph, Graph) else graph
    session = SimulationBackend(1).open(proto, capture)
    try:
        return dict(session.run(feeds))
    finally:
        session.close()


def bound(proto: onnx.ModelProto | Model, plan: PrecisionPlan) -> BoundPlan:
    model = proto if isinstance(proto, Model) else model_of(proto)
    return bind_plan(plan, model, find_layers(model.graph))


def lowered(proto: onnx.ModelProto | Model, plan: PrecisionPlan) -> Lowered:
    """The plan lowered; the result is valid ONNX with full type checks."""
    result = lower(bound(proto, plan))
    # lower() ran the checker; this is what its full_check adds, and it takes unknown shapes.
    onnx.shape_inference.infer_shapes(result.graph.proto, check_type=True, strict_mode=True)
    names = [n.name for n in result.graph.nodes]
    assert len(set(names)) == len(names)
    return result


def int8(
    amax: Mapping[str, Any] | None = None, layers: Mapping[str, Any] | None = None, **kw: Any
) -> PrecisionPlan:
    """An INT8 plan from plain numbers and words."""
    tensors = {
        name: TensorRange(tuple(v) if isinstance(v, (list, tuple)) else float(v))
        for name, v in (amax or {}).items()
    }
    pins = {name: Precision(p) for name, p in (layers or {}).items()}
    return PrecisionPlan(kw.pop("precision", Precision.INT8), layers=pins, tensors=tensors, **kw)


def fake(x: Any, amax: Any, axis: int | None = None) -> Any:
    """Independent fake quantization in float32."""
    x = np.asarray(x, np.float32)
    scale = np.asarray(amax, np.float64) / 127
    scale = np.where(scale == 0, 1, scale).astype(np.float32)
    if axis is not None:
        scale = np.expand_dims(scale, [i for i in range(x.ndim) if i != axis % x.ndim])
    codes = np.minimum(np.maximum(np.round(x / scale), np.float32(-128)), np.float32(127))
    return (codes * scale).astype(np.float32)


def channel_amax(weight: Any, axis: int | None) -> Any:
    if axis is None:
        return np.abs(weight).max()
    return np.abs(np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)).max(1)


def ops(graph: Graph | onnx.ModelProto) -> list[str]:
    proto = graph.proto if isinstance(graph, Graph) else graph
    return [n.op_type for n in proto.graph.node]


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """All of the above, for the tests of this folder."""
    return SimpleNamespace(
        make=make,
        node=helper.make_node,
        model_of=model_of,
        prepare=lambda proto, opset=13: prepare_model(
            ModelFile(Path("m.onnx"), proto, "sha", "digest"), opset
        ),
        run=run,
        bound=bound,
        lowered=lowered,
        int8=int8,
        fake=fake,
        channel_amax=channel_amax,
        ops=ops,
    )


@pytest.fixture(scope="session")
def residual_net() -> Callable[..., onnx.ModelProto]:
    """conv1-relu1, conv2 + conv1's output - relu2, pool, fc; input x [N, 3, 8, 8]."""

    def build(opset: int = 17) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        node = helper.make_node
        nodes = [
            node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
            node("Relu", ["c1"], ["r1"], "relu1"),
            node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4),
            node("Add", ["c2", "r1"], ["s"], "add"),
            node("Relu", ["s"], ["r2"], "relu2"),
            node("GlobalAveragePool", ["r2"], ["p"], "pool"),
            node("Flatten", ["p"], ["f"], "flatten"),
            node("Gemm", ["f", "w3", "b3"], ["out"], "fc", transB=1),
        ]
        constants = {
            "w1": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
            "b1": rng.normal(size=4).astype(np.float32),
            "w2": rng.normal(size=(4, 4, 3, 3)).astype(np.float32) / 6,
            "w3": rng.normal(size=(5, 4)).astype(np.float32),
            "b3": rng.normal(size=5).astype(np.float32),
        }
        return make(nodes, {"x": ("N", 3, 8, 8)}, ["out"], constants, opset)

    return build


@pytest.fixture(scope="session")
def images() -> Any:
    return np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
