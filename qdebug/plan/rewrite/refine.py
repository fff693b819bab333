"""Take rounding out of a quantized model: its Q/DQ pairs, and that of its constants.

What is left computes what the FP32 model does, if the tensors that were matched are the same
quantities: the error of quantization, however large, is gone, and a wrong match stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.errors import ModelError
from qdebug.formats.base import along
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.plan.quantize import QUANTIZERS, grid_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32
from qdebug.plan.rewrite.strip import spread, strip_qdq
from qdebug.types import Array

_SAME = 1e-5
"""Relative to the largest value: two float constants that differ by less are one."""


@dataclass(frozen=True)
class Refined:
    """A quantized model without rounding, of all values or of constants only.

    Attributes:
        graph: with the constants of the FP32 model where those of the quantized model are
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
    exact = with_fp32_constants(reference, aligned)
    try:
        plain = strip_qdq(Graph.inferred(raise_to_fp32(exact.graph.proto)))
    except ModelError as error:  # which asks for the FP32 model, and that is `reference`
        hint = (
            "This form of arithmetic on integers cannot be compared layer by layer. Quantize the "
            "FP32 model again in the Q/DQ format (QuantFormat.QDQ of ONNX Runtime's "
            "quantize_static)."
        )
        raise error.reworded(error.message, hint) from error
    return Refined(Graph.inferred(plain), exact.changed)


def with_fp32_constants(reference: Graph, aligned: Graph, *, biases: bool = False) -> Refined:
    """`aligned` with its Q/DQ pairs, but with the constants of `reference` where its own are
    roundings of them. With `biases` also where a quantizer corrected the bias of a layer whose
    weight is one.

    Raises:
        PlanError: as `check`.
    """
    editor = Editor(aligned)
    mine, its = ConstantValues(reference), ConstantValues(aligned)
    changed: dict[str, str] = {}
    shifts: dict[str, str] = {}
    for proto in aligned.proto.graph.node:
        node = copy_node(proto)
        original = reference.by_name.get(proto.name)
        if proto.name in shifts:
            _only_add(editor, node, shifts[proto.name], aligned.by_name[proto.name], its)
        elif original is not None:
            view = aligned.by_name[proto.name]
            normalized = normalization_behind(aligned, view)
            if normalized is None:
                wrong = _exchange(editor, node, view, original, (mine, its), biases)
            else:
                wrong = _exchange_folded(editor, node, original, (mine, its), normalized)
                if not wrong:
                    bias = original.inputs[2] if len(original.inputs) > 2 else ""
                    shifts[normalized.name] = _shift(editor, mine, bias, original)
            if wrong:
                changed[proto.name] = wrong
        editor.emit(node)
    return Refined(Graph(editor.finish("the model with FP32 weights")), changed)


def _exchange(
    editor: Editor,
    node: onnx.NodeProto,
    view: Node,
    original: Node,
    values: tuple[ConstantValues, ConstantValues],
    biases: bool,
) -> str:
    """Let `node` read the constants of the FP32 model; return what it does not, and why."""
    mine, its = values
    wanted = [t for t in original.inputs if t and mine.is_constant(t)]
    places = [i for i, t in enumerate(view.inputs) if t and its.is_constant(t)]
    for tensor, place in zip(wanted, places, strict=False):
        other = its.value(view.inputs[place])
        value = _as_stored(mine.value(tensor), other)
        if value is None or other is None or value.dtype.kind != "f":
            continue
        far = _steps_apart(its, view.inputs[place], value, other)
        what = "weight" if view.op_type in QUANTIZABLE_OPS and place < 2 else "bias"
        if view.op_type not in QUANTIZABLE_OPS:
            what = "constant"
        if far <= 1 or (biases and what == "bias"):
            kind = np.float64 if other.dtype == np.float64 else np.float32
            name = f"{view.inputs[place]}_fp32"
            node.input[place] = editor.initializer(value.astype(kind), name)
            continue
        return f"{what} {_differs(far)}"
    return ""


def _as_stored(value: Array | None, other: Array | None) -> Array | None:
    """The FP32 model's constant in the shape of the other; None where the shapes do not fit."""
    if value is None or other is None:
        return None
    if value.shape == other.shape:
        return value
    if value.ndim == other.ndim == 2 and value.shape == other.shape[::-1]:
        return value.T
    return value.reshape(other.shape) if value.size == other.size else None


def normalization_behind(graph: Graph, node: Node) -> Node | None:
    """The BatchNormalization right after a convolution, which the FP32 model has folded."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return None
    tensor = node.outputs[0]
    while True:
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1:
            return None
        if readers[0].op_type not in {*QUANTIZERS, "DequantizeLinear"}:
            return readers[0] if readers[0].op_type == "BatchNormalization" else None
        tensor = readers[0].outputs[0]


def _exchange_folded(
    editor: Editor,
    node: onnx.NodeProto,
    original: Node,
    values: tuple[ConstantValues, ConstantValues],
    normalized: Node,
) -> str:
    """Let a convolution that is normalized afterwards have the folded weight of the FP32 model;
    return why not. The weights are compared up to a factor for each channel, which is what the
    normalization multiplies by, rounded or not."""
    mine, its = values
    weight, other = mine.value(original.inputs[1]), its.value(node.input[1])
    gamma, variance = its.value(normalized.inputs[1]), its.value(normalized.inputs[4])
    if weight is None or other is None or weight.shape != other.shape:
        return "weight has another shape than the FP32 model's"
    if gamma is None or variance is None:
        return "BatchNormalization has parameters that are computed"
    axis = 1 if node.op_type == "ConvTranspose" else 0
    a = np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1).astype(np.float64)
    b = np.moveaxis(other, axis, 0).reshape(a.shape).astype(np.float64)
    energy = (b * b).sum(axis=1)
    factor = (a * b).sum(axis=1) / np.where(energy > 0, energy, 1)
    factor = np.where(factor == 0, 1, factor)
    if np.any((factor * gamma < 0) & (energy > 0) & (np.abs(a).max(axis=1) > 0)):
        return "weight has another sign than the FP32 model's"
    unscaled = weight / along(factor, axis, weight.ndim)
    far = _steps_apart(its, node.input[1], unscaled, other)
    if far > 1:
        return f"weight {_differs(far)}"
    node.input[1] = editor.initializer(weight.astype(np.float32), f"{node.input[1]}_fp32")
    del node.input[2:]
    return ""


def _shift(editor: Editor, values: ConstantValues, bias: str, original: Node) -> str:
    """The bias of the FP32 model's folded convolution, as a constant."""
    value = values.value(bias) if bias else None
    weight = values.value(original.inputs[1])
    assert weight is not None  # it was exchanged
    channels = weight.shape[1 if original.op_type == "ConvTranspose" else 0]
    return editor.initializer(
        np.zeros(channels, np.float32) if value is None else value.astype(np.float32),
        f"{original.name}_shift",
    )


def _only_add(
    editor: Editor, node: onnx.NodeProto, shift: str, view: Node, values: ConstantValues
) -> None:
    """Let a BatchNormalization only add `shift`: the rest is in the weight before it."""
    gamma = values.value(view.inputs[1])
    assert gamma is not None
    epsilon = float(values.graph.attributes(view).get("epsilon", 1e-5))
    one, zero = np.ones(gamma.shape, np.float32), np.zeros(gamma.shape, np.float32)
    constants = (one, zero, one - np.float32(epsilon))
    names = [editor.initializer(c, f"{view.name}_plain") for c in constants]
    node.input[1:] = [names[0], shift, names[1], names[2]]


def _differs(far: float) -> str:
    if not np.isfinite(far):
        return "differs from the FP32 model's by more than float32's rounding"
    return f"differs from the FP32 model's by up to {far:,.{0 if far >= 100 else 1}f} steps"


def _steps_apart(values: ConstantValues, tensor: str, value: Array, other: Array) -> float:
    """By how many steps of its quantization a constant differs from the FP32 one, at most; values
    beyond the range of the codes do not count, nor those whose scale is no positive number. inf for
    one that is not quantized and differs."""
    wide, own = value.astype(np.float64), other.astype(np.float64)
    difference = np.abs(np.subtract(wide, own, out=np.zeros_like(wide), where=wide != own))
    least = _SAME * float(np.abs(value).max(initial=0.0, where=np.isfinite(value)))
    if difference.max(initial=0.0) <= least:
        return 0.0
    step, low, high = _grid(values.graph, tensor, other)
    if step is None:
        return float("inf")
    valid = np.isfinite(step) & (np.asarray(step) > 0)
    clipped = ((other <= low) & (value < other)) | ((other >= high) & (value > other))
    far = np.maximum(difference - least, 0) / np.where(valid, step, 1)
    return float(far.max(initial=0.0, where=valid & ~clipped))


def _grid(graph: Graph, tensor: str, other: Array) -> tuple[Array | float | None, Array, Array]:
    """Of a constant's quantization the step around its values `other`, the least and the largest
    value, in shapes that broadcast."""
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
            scales = spread(scale, other, int(attributes.get("axis", 1)), block)
            form = format_of_codes(graph, node)
            return (scales if form is None else form.step(other, scales)), *nothing
        return float(np.abs(scale).max()) if grid is None else grid.step, *nothing
    axis, form = grid.axis or 0, grid.format
    scales = spread(grid.scale, other, axis, 0)
    zero = spread(grid.zero_point, other, axis, 0)
    low, high = (scales.astype(np.float64) * (end - zero) for end in (form.lowest, form.largest))
    return form.step(other, scales), low, high
