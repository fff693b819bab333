"""How much work each layer is, for the shapes that the samples really have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from qdebug.model.graph import Graph, Node
from qdebug.model.layers import Layer, Layers

Shapes = Mapping[str, tuple[int | str | None, ...]]


@dataclass(frozen=True)
class Work:
    """What one execution of a layer computes.

    Attributes:
        macs: multiply-accumulates of Conv, ConvTranspose, Gemm and MatMul; 0 for other layers.
        elements: values it writes.
    """

    macs: float
    elements: float


def work_of(layers: Layers, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Work]:
    """The work of every layer, by name, when the model is fed arrays of these shapes.

    An axis that stays unknown counts as 1.
    """
    shapes = _shapes(layers.graph, input_shapes)
    return {layer.name: _work(layers.graph, layer, shapes) for layer in layers}


def _shapes(graph: Graph, input_shapes: Mapping[str, Sequence[int]]) -> Shapes:
    """Shapes inferred anew from those of the inputs; the weights stay behind."""
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.value_info[:]
    for value in proto.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, input_shapes.get(value.name, ()), strict=False
        ):
            dim.dim_value = size
    for value in proto.graph.output:  # they may name axes that have a size now
        value.type.tensor_type.ClearField("shape")
    return Graph(onnx.shape_inference.infer_shapes(proto, data_prop=True)).shapes


def _work(graph: Graph, layer: Layer, shapes: Shapes) -> Work:
    anchor = graph.by_name[layer.name]
    elements = _size(shapes.get(anchor.outputs[0], ()))
    per_element = _MACS.get(anchor.op_type if not anchor.domain else "")
    macs = elements * per_element(anchor, shapes) if per_element else 0.0
    if anchor.op_type == "ConvTranspose":
        macs = _size(shapes.get(anchor.inputs[0], ())) * _size(_shape(anchor, shapes, 1)[1:])
    return Work(macs, elements)


def _conv(node: Node, shapes: Shapes) -> float:
    # The weight is [out, in / groups, kernel …].
    return _size(_shape(node, shapes, 1)[1:])


def _matmul(node: Node, shapes: Shapes) -> float:
    return _size(_shape(node, shapes, 0)[-1:])


def _gemm(node: Node, shapes: Shapes) -> float:
    """A [M, K] by B [K, N], either of which may be transposed: √(|A|·|B| / |Y|) is K."""
    left, right = _size(_shape(node, shapes, 0)), _size(_shape(node, shapes, 1))
    return math.sqrt(left * right / max(_size(shapes.get(node.outputs[0], ())), 1.0))


_MACS = {"Conv": _conv, "ConvTranspose": _conv, "MatMul": _matmul, "Gemm": _gemm}


def _shape(node: Node, shapes: Shapes, operand: int) -> tuple[int | str | None, ...]:
    return shapes.get(node.inputs[operand], ())


def _size(shape: Sequence[int | str | None]) -> float:
    return float(math.prod(size if isinstance(size, int) else 1 for size in shape))
