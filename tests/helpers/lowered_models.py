"""Small models in a plan, and what their lowered candidates give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import ModelFile
from qdebug.network.prepare import Model
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Fp16Kernels, Precision

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
SCALE, WEIGHT_SCALE = 2.0**-4, 2.0**-6
EXACT_SUMS = Fp16Kernels.EXACT
Array = np.ndarray[Any, Any]
Pins = Mapping[str, Precision]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, Array],
    outputs: Sequence[str],
    shape: Sequence[int | str],
    opset: int = 17,
) -> Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=t) for t in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    file = ModelFile(Path("m.onnx"), proto, "sha", "digest")
    return Model(file, Graph(inferred), {n.name: (n.name,) for n in nodes}, False)


def bind(model: Model, plan: PrecisionPlan | None = None, amax: float = 127 * SCALE) -> BoundPlan:
    """Every tensor with the same scale."""
    layers = find_layers(model.graph)
    plan = plan or PrecisionPlan(INT8)
    tensors = {t: TensorRange(amax) for t in bind_plan(plan, model, layers).needed_ranges()}
    return bind_plan(plan.with_ranges(tensors, "test"), model, layers)


def with_pins(bound: BoundPlan, pins: Pins) -> BoundPlan:
    return replace(bound, precisions={**bound.precisions, **pins})


def by_the_long_way(
    bound: BoundPlan, pins: Pins, x: Array, half: Fp16Kernels = EXACT_SUMS
) -> dict[str, Array]:
    graph = lower(with_pins(bound, pins)).graph
    return dict(SimulationBackend(1, half).open(graph.proto, []).run({"x": x}))
