"""Take rounding out of a quantized model: its Q/DQ pairs, and that of its constants.

What is left computes what the FP32 model does, if the tensors that were matched are the same
quantities: the error of quantization, however large, is gone, and a wrong match stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.model.graph import Graph, Node
from qdebug.plan.quantize import QUANTIZERS, grid_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32
from qdebug.plan.rewrite.strip import spread, strip_qdq
from qdebug.types import Array

_SAME = 1e-5
"""Relative to the largest value: two float constants that differ by less are one."""
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Refined:
    """A quantized model without rounding.

    Attributes:
        graph: in FP32, with the constants of the FP32 model where those of the quantized model are
            roundings of them.
        changed: node -> what is no rounding among its constants, for people.
    """

    graph: Graph
    changed: Mapping[str, str]


def refine(reference: Graph, aligned: Graph) -> Refined:
    """`aligned`, a quantized model in the names of `reference`, without rounding.

    Raises:
        ModelError: it computes on codes directly.
        PlanError: as `check`.
    """
    editor = Editor(aligned)
    mine, its = ConstantValues(reference), ConstantValues(aligned)
    changed: dict[str, str] = {}
    for proto in aligned.proto.graph.node:
        node = copy_node(proto)
        original = reference.by_name.get(proto.name)
        if original is not None:
            wrong = _exchange(editor, node, aligned.by_name[proto.name], original, (mine, its))
            if wrong:
                changed[proto.name] = wrong
        editor.emit(node)
    plain = strip_qdq(_typed(raise_to_fp32(editor.finish("the model with FP32 weights"))))
    return Refined(_typed(plain), changed)


def _typed(proto: onnx.ModelProto) -> Graph:
    return Graph(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def _exchange(
    editor: Editor,
    node: onnx.NodeProto,
    view: Node,
    original: Node,
    values: tuple[ConstantValues, ConstantValues],
) -> str:
    """Let `node` read the constants of the FP32 model; return what it does not, and why."""
    mine, its = values
    wanted = [t for t in original.inputs if t and mine.is_constant(t)]
    places = [i for i, t in enumerate(view.inputs) if t and its.is_constant(t)]
    for tensor, place in zip(wanted, places, strict=False):
        other = its.value(view.inputs[place])
        value = _as_stored(mine.value(tensor), other, its.graph, view, place)
        if value is None or other is None or value.dtype.kind != "f":
            continue
        far = _steps_apart(its, view.inputs[place], value, other)
        if far <= 1:
            node.input[place] = editor.initializer(
                value.astype(np.float32), f"{view.inputs[place]}_fp32"
            )
            continue
        what = "weight" if view.op_type in _WEIGHTED and place < 2 else "bias"
        if view.op_type not in _WEIGHTED:
            what = "constant"
        steps = f"up to {far:.3g} steps" if np.isfinite(far) else "more than float32's rounding"
        return f"{what} differs from the FP32 model's by {steps}"
    return ""


def _as_stored(
    value: Array | None, other: Array | None, graph: Graph, node: Node, place: int
) -> Array | None:
    """The FP32 model's constant in the shape of the other; without the BatchNormalization that it
    has folded and the quantized model has not. None where the shapes do not fit."""
    if value is None or other is None:
        return None
    factor = _folded_factor(graph, node)
    if factor is not None:
        if place >= 2:  # the shift of the normalization is in it
            return None
        axis = 1 if node.op_type == "ConvTranspose" else 0
        shape = [1] * value.ndim
        shape[axis] = -1
        value = value / factor.reshape(shape)
    if value.shape == other.shape:
        return value
    if value.ndim == other.ndim == 2 and value.shape == other.shape[::-1]:
        return value.T
    return value.reshape(other.shape) if value.size == other.size else None


def _folded_factor(graph: Graph, node: Node) -> Array | None:
    """What a BatchNormalization right after a convolution multiplies each channel by."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    tensor = node.outputs[0]
    while True:
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1:
            return None
        reader = readers[0]
        if reader.op_type not in {*QUANTIZERS, "DequantizeLinear"}:
            break
        tensor = reader.outputs[0]
    if reader.op_type != "BatchNormalization":
        return None
    scale, variance = graph.constant(reader.inputs[1]), graph.constant(reader.inputs[4])
    if scale is None or variance is None or np.any(scale == 0):
        return None
    epsilon = float(graph.attributes(reader).get("epsilon", 1e-5))
    return np.asarray(scale / np.sqrt(variance.astype(np.float64) + epsilon))


def _steps_apart(values: ConstantValues, tensor: str, value: Array, other: Array) -> float:
    """By how many steps of its quantization a constant differs from the FP32 one, at most; values
    beyond the range of the codes do not count. inf for one that is not quantized and differs."""
    difference = np.abs(value.astype(np.float64) - other.astype(np.float64))
    least = _SAME * float(np.abs(value).max(initial=0.0))
    if difference.max(initial=0.0) <= least:
        return 0.0
    step, low, high = _grid(values.graph, tensor, other)
    if step is None:
        return float("inf")
    clipped = ((other <= low) & (value < other)) | ((other >= high) & (value > other))
    far = np.where(clipped, 0.0, np.maximum(difference - least, 0) / step)
    return float(far.max(initial=0.0))


def _grid(graph: Graph, tensor: str, shaped: Array) -> tuple[Array | float | None, Array, Array]:
    """Step, least and largest value of a constant's quantization, in a shape that broadcasts."""
    nothing = np.asarray(-np.inf), np.asarray(np.inf)
    node = graph.producers.get(tensor)
    direct = node is not None and node.op_type == "DequantizeLinear"
    while node is not None and node.op_type != "DequantizeLinear":
        node = graph.producers.get(node.inputs[0]) if node.inputs else None
    if node is None:
        return None, *nothing
    scale = graph.constant(node.inputs[1])
    if scale is None:
        return None, *nothing
    grid = grid_of(graph, node)
    if not direct or grid is None:
        attributes = graph.attributes(node)
        block = int(attributes.get("block_size", 0))
        if direct and block:
            return spread(scale, shaped, int(attributes.get("axis", 1)), block), *nothing
        return float(np.abs(scale).max()), *nothing
    axis = 0 if grid.axis is None else grid.axis
    steps = spread(grid.scale, shaped, axis, 0).astype(np.float64)
    zero = spread(grid.zero_point, shaped, axis, 0)
    return steps, (grid.lowest - zero) * steps, (grid.highest - zero) * steps
