"""Insert Q/DQ pairs at the inputs of quantized layers.

Placement follows NVIDIA's guidance on explicit quantization: at the inputs of Conv, ConvTranspose,
Gemm and MatMul and on the other branch of a residual Add; one pair per tensor and format, shared
by all its readers; weights as constants in codes with a DequantizeLinear; bias in floating point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.errors import PlanError
from qdebug.formats.base import FloatArray, Format
from qdebug.formats.registry import INT8
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.rewrite.edit import Editor, copy_node, make_node
from qdebug.types import Array


@dataclass(frozen=True)
class WeightQuantization:
    """How a weight is quantized: `axis` is None for one scale per tensor. `values` are quantized in
    place of the constant's own, where they are given. With a `block`, `scale` has the rank of the
    weight, and each is that of so many values along `axis`."""

    scale: FloatArray
    axis: int | None
    values: FloatArray | None = None
    format: Format = INT8
    block: int | None = None

    def scale_for(self, shape: Sequence[int]) -> tuple[FloatArray, int | None]:
        """The scale and the axis for Format.encode, of a weight of this shape."""
        if self.block is None or self.axis is None:
            return self.scale, self.axis
        each = np.repeat(self.scale, self.block, self.axis)
        return each.take(range(shape[self.axis]), self.axis), None


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer that reads its operands through Q/DQ pairs, with their scales and the format of the
    activations. `bias` is added to the anchor's output, [output channels]; None adds nothing."""

    layer: Layer
    activations: Mapping[str, FloatArray]
    weight: WeightQuantization | None
    bias: FloatArray | None = None
    format: Format = INT8


def insert_qdq(graph: Graph, layers: Sequence[QuantizedLayer]) -> onnx.ModelProto:
    """`graph` with the operands of `layers` quantized. Float types stay FP32.

    Raises:
        PlanError: a weight is not FP32.
    """
    pairs = _Pairs(graph)
    by_node = {name: item for item in layers for name in item.layer.nodes}
    for proto in graph.proto.graph.node:
        node = copy_node(proto)
        item = by_node.get(node.name)
        if item is not None:
            _quantize_operands(pairs, graph.by_name[node.name], node, item)
        added = None if item is None else _add_bias(pairs, node, item)
        pairs.editor.emit(node)
        if added is not None:
            pairs.editor.emit(added)
    return pairs.editor.finish("the model with Q/DQ")


def weight_axis(node: Node, graph: Graph, weight: str) -> int | None:
    """The output-channel axis of a layer's constant operand; None when it has none."""
    rank = len(graph.initializers[weight].dims)
    position = list(node.inputs).index(weight)
    if node.op_type == "Conv":
        return 0 if position == 1 else None
    if node.op_type == "ConvTranspose":
        return 1 if position == 1 else None
    if node.op_type == "Gemm":
        flag = "transA" if position == 0 else "transB"
        transposed = graph.attributes(node).get(flag, 0)
        return (1 if transposed else 0) if position == 0 else (0 if transposed else 1)
    if rank < 2:
        return None  # MatMul with a vector: one output channel
    return rank - 2 if position == 0 else rank - 1


def weight_codes(graph: Graph, tensor: str, how: WeightQuantization) -> Array:
    """The codes of a constant, of its shape.

    Raises:
        PlanError: it is not FP32.
    """
    values = graph.constant(tensor) if how.values is None else how.values
    if values is None or values.dtype != np.float32:
        kind = None if values is None else values.dtype
        raise PlanError(
            f"weight '{tensor}' is {kind}, but {how.format.label} starts from float32 weights",
            "Give the FP32 model that it was made from.",
            code="QD-PLAN-NOT-FP32",
        )
    return how.format.encode(values, *how.scale_for(values.shape))


def bias_node(graph: Graph, layer: Layer) -> str | None:
    """The node whose constant takes in what is added to the anchor's output: the anchor, or the
    bias Add behind a MatMul; None where no constant is one value per output channel."""
    anchor = graph.by_name[layer.name]
    if anchor.op_type == "Gemm" and layer.weight == anchor.inputs[0]:
        return None  # its bias is added along the other axis
    if anchor.op_type in ("Conv", "ConvTranspose", "Gemm"):
        plain = anchor.op_type != "Gemm" or graph.attributes(anchor).get("beta", 1.0) == 1.0
        bias = anchor.inputs[2] if len(anchor.inputs) > 2 else ""
        if not bias:
            return layer.name
        values = graph.constant(bias)
        return layer.name if plain and values is not None and values.ndim <= 1 else None
    if len(layer.nodes) > 1 and graph.by_name[layer.nodes[1]].op_type == "Add":
        add = graph.by_name[layer.nodes[1]]
        other = next((t for t in add.inputs if t != anchor.outputs[0]), "")
        return add.name if graph.constant(other) is not None else None
    return None


def along_channels(graph: Graph, layer: Layer, values: FloatArray) -> FloatArray:
    """`values`, one per output channel of a layer's anchor, in a shape that is added to its output;
    [] where the output has no channels."""
    anchor = graph.by_name[layer.name]
    rank = len(graph.initializers[layer.weight].dims) if layer.weight else 4
    if anchor.op_type in ("Conv", "ConvTranspose"):
        return values.reshape(-1, *[1] * (rank - 2))
    if rank < 2:
        return values.reshape(())
    matrix = len(graph.shapes.get(anchor.outputs[0], (0, 0))) > 1
    return values.reshape(-1, 1) if matrix and layer.weight == anchor.inputs[0] else values


class _Pairs:
    """Q/DQ pairs made so far, each once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.editor = Editor(graph)
        self._activations: dict[tuple[str, Format], str] = {}
        self._weights: dict[tuple[str, int | None, Format], str] = {}
        self._zeros: dict[Format, str] = {}

    def activation(self, tensor: str, scale: FloatArray, form: Format) -> str:
        """The dequantized form of a computed tensor.

        Raises:
            PlanError: the tensor is not FP32.
        """
        if (tensor, form) not in self._activations:
            edit = self.editor
            kind = self.graph.types.get(tensor, onnx.TensorProto.FLOAT)
            if kind != onnx.TensorProto.FLOAT:
                raise PlanError(
                    f"tensor '{tensor}' is {onnx.TensorProto.DataType.Name(kind).lower()}, "
                    f"but {form.label} starts from float32",
                    "Give the FP32 model that it was made from.",
                    code="QD-PLAN-NOT-FP32",
                )
            operands = [edit.initializer(scale, f"{tensor}_scale"), self._zero_point(form)]
            codes = edit.add(
                "QuantizeLinear",
                tensor,
                *operands,
                output=edit.tensor_name(f"{tensor}_QuantizeLinear_Output"),
                name=f"{tensor}_QuantizeLinear",
            )
            self._activations[tensor, form] = edit.add(
                "DequantizeLinear",
                codes,
                *operands,
                output=edit.tensor_name(f"{tensor}_DequantizeLinear_Output"),
                name=f"{tensor}_DequantizeLinear",
            )
        return self._activations[tensor, form]

    def weight(self, tensor: str, how: WeightQuantization) -> str:
        """The dequantized form of a constant, whose codes are made once."""
        key = (tensor, how.axis, how.format)
        if key not in self._weights:
            edit = self.editor
            operands = [
                edit.initializer(weight_codes(self.graph, tensor, how), f"{tensor}_quantized"),
                edit.initializer(how.scale, f"{tensor}_scale"),
                edit.initializer(
                    np.zeros(how.scale.shape, how.format.dtype), f"{tensor}_zero_point"
                ),
            ]
            where = {} if how.axis is None else {"axis": how.axis}
            if how.block is not None:
                where["block_size"] = how.block
            self._weights[key] = edit.add(
                "DequantizeLinear",
                *operands,
                output=edit.tensor_name(f"{tensor}_DequantizeLinear_Output"),
                name=f"{tensor}_DequantizeLinear",
                **where,
            )
        return self._weights[key]

    def _zero_point(self, form: Format) -> str:
        if form not in self._zeros:
            zero = np.zeros((), form.dtype)
            self._zeros[form] = self.editor.initializer(zero, "qdebug_zero_point")
        return self._zeros[form]


def quantized_operands(view: Node, layer: Layer) -> tuple[str, ...]:
    """The tensors that a node of a quantized layer reads quantized, its weight included, where
    activations are. Only the first two inputs are operands; the third of Conv and Gemm is the
    bias."""
    if view.name == layer.name:
        known = {*layer.quantized_inputs, layer.weight}
    elif view.op_type == "Add":
        known = {*layer.quantized_inputs}
    else:
        return ()
    return tuple(t for t in view.inputs[:2] if t in known)


def _quantize_operands(
    pairs: _Pairs, view: Node, node: onnx.NodeProto, item: QuantizedLayer
) -> None:
    reads: dict[str, str] = {}
    for tensor in quantized_operands(view, item.layer):
        if tensor == item.layer.weight and item.weight is not None:
            reads[tensor] = pairs.weight(tensor, item.weight)
        elif tensor in item.activations:
            reads[tensor] = pairs.activation(tensor, item.activations[tensor], item.format)
    bias = list(node.input[2:])
    rename_reads(node, reads)
    for i, tensor in enumerate(bias, start=2):
        node.input[i] = tensor


def _add_bias(pairs: _Pairs, node: onnx.NodeProto, item: QuantizedLayer) -> onnx.NodeProto | None:
    """Let `node`, a copy, take in the bias of its layer where it is the one to; in place. What has
    no constant for it gets an Add, which is returned."""
    if item.bias is None:
        return None
    graph, edit, layer = pairs.graph, pairs.editor, item.layer
    place = bias_node(graph, layer)
    if node.name != (place or layer.name):
        return None
    wanted = f"{node.name}_corrected_bias"
    if place is None:
        shift = edit.initializer(along_channels(graph, layer, item.bias), wanted)
        whole = node.output[0]
        node.output[0] = edit.tensor_name(f"{whole}_uncorrected")
        return make_node("Add", [node.output[0], shift], whole, edit.node_name(wanted))
    if place == layer.name:
        own = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        total = item.bias if own is None else np.asarray(own + item.bias, np.float32)
        del node.input[2:]
        node.input.append(edit.initializer(total, wanted))
        return None
    position = next(i for i, t in enumerate(node.input) if t in graph.initializers)
    own = graph.constant(node.input[position])
    assert own is not None
    total = np.asarray(own + along_channels(graph, layer, item.bias), np.float32)
    node.input[position] = edit.initializer(total, wanted)
    return None
