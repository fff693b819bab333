"""Small models all in FP16, run as TensorRT's kernels compute them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.fp16_emulation.rounding import keep_fp16_rounding
from qdebug.backends.simulation import SimulationBackend
from qdebug.types import Fp16Kernels

Array = np.ndarray[Any, Any]
Shape = Sequence[int | str | None] | None
HALF = TensorProto.FLOAT16


def half_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """FP16 everywhere; the last output of the last node is the model's."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, HALF, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[-1], HALF, None)],
        [numpy_helper.from_array(np.asarray(a, np.float16), n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def run_model(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Array],
    kernels: Fp16Kernels = Fp16Kernels.TENSORRT,
) -> Array:
    """The model's output, in float64."""
    with np.errstate(over="ignore"):
        halves = {name: array.astype(np.float16) for name, array in feeds.items()}
    (found,) = SimulationBackend(1, kernels).open(proto, []).run(halves).values()
    return found.astype(np.float64)


def run_node(
    node: onnx.NodeProto,
    feeds: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    *,
    shapes: Mapping[str, Shape] | None = None,
    kernels: Fp16Kernels = Fp16Kernels.TENSORRT,
    opset: int = 17,
) -> Array:
    """One node; `shapes` are those declared of inputs where they are not all known."""
    inputs = {name: array.shape for name, array in feeds.items()} | dict(shapes or {})
    return run_model(half_model([node], inputs, weights, opset), feeds, kernels)


def is_left_alone(proto: onnx.ModelProto) -> bool:
    """Whether nothing is computed otherwise than with exact sums."""
    tensorrt = keep_fp16_rounding(proto, Fp16Kernels.TENSORRT)
    return bool(tensorrt == keep_fp16_rounding(proto, Fp16Kernels.EXACT))
