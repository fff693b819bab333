"""MatMul and Gemm on INT8 kernels: sums in INT32, scaled to FP32 at once.

Literal Q/DQ adds up the same products in FP32; the two differ by its rounding alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.backends.ort_fast.literal import Literal
from qdebug.backends.ort_fast.parts import CONTRIB, Form, Part, Workshop
from qdebug.formats.base import FloatArray
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import attributes_of, make_node
from qdebug.plan.rewrite.qdq import QuantizedLayer, quantized_operands, weight_codes
from qdebug.types import Array

SMALLEST_STEP = 1e-30
"""Products of two scales below this lose bits in FP32: such layers keep their Q/DQ nodes."""


@dataclass(frozen=True)
class KernelPart:
    """A part, and the names of the nodes that it replaces."""

    part: Part
    nodes: frozenset[str]


def scaled_product(
    shop: Workshop,
    operands: tuple[str, str],
    scales: tuple[str, str],
    zero: str,
    bias: str,
    output: str,
) -> onnx.NodeProto:
    """(a − zero) · b · scales + bias. x86 has fast kernels for unsigned a and signed b only."""
    inputs = [*operands, *scales, zero, "", bias]
    return make_node("MatMulIntegerToFloat", inputs, output, domain=CONTRIB)


def matmul_part(literal: Literal, item: QuantizedLayer) -> KernelPart | None:
    """The anchor of a MatMul or Gemm layer with its bias; None where no kernel computes it."""
    node = literal.graph.by_name[item.layer.name]
    attributes = attributes_of(literal.protos[node.name])
    plain = attributes.get("alpha", 1.0) == 1.0 and attributes.get("beta", 1.0) == 1.0
    if not plain or attributes.get("transA", 0):
        return None
    left, right = node.inputs[:2]
    if len(literal.graph.shapes.get(left, ())) < 2:
        return None
    if item.layer.weight == right:
        return _weighted(literal, node, item, bool(attributes.get("transB", 0)))
    if item.layer.weight is None and node.op_type == "MatMul":
        return _product(literal, node, item)
    return None


def _weighted(
    literal: Literal, node: Node, item: QuantizedLayer, turned: bool
) -> KernelPart | None:
    shop, graph, how = literal.shop, literal.graph, item.weight
    left, right = node.inputs[:2]
    assert how is not None
    codes = weight_codes(graph, right, how)
    if codes.ndim != 2 or np.any(literal.scales[left] * how.scale < SMALLEST_STEP):
        return None
    matrix = codes.T if turned else codes
    found = _bias(graph, node, item, matrix.shape[1])
    if found is None:
        return None
    bias, output, nodes = found
    if item.bias is not None:
        bias = item.bias if bias is None else bias + item.bias
    name = node.name
    scale, zero = literal.grid(left)
    product = scaled_product(
        shop,
        (shop.name(left, Form.U8), shop.constant(matrix, f"{name}:codes")),
        (scale, shop.constant(how.scale, f"{name}:scale")),
        zero,
        "" if bias is None else shop.constant(bias, f"{name}:bias"),
        shop.name(output),
    )
    return KernelPart(shop.part([product], [(left, Form.U8)], [(output, Form.PLAIN)]), nodes)


def _product(literal: Literal, node: Node, item: QuantizedLayer) -> KernelPart | None:
    """A product of two computed tensors."""
    shop = literal.shop
    left, right = node.inputs[:2]
    if set(quantized_operands(node, item.layer)) != {left, right}:
        return None
    if len(literal.graph.shapes.get(right, ())) < 2:
        return None
    if literal.scales[left] * literal.scales[right] < SMALLEST_STEP:
        return None
    scale, zero = literal.grid(left)
    output = node.outputs[0]
    operands = (shop.name(left, Form.U8), shop.name(right, Form.S8))
    scales = (scale, literal.grid(right)[0])
    product = scaled_product(shop, operands, scales, zero, "", shop.name(output))
    needs = [(left, Form.U8), (right, Form.S8)]
    return KernelPart(shop.part([product], needs, [(output, Form.PLAIN)]), frozenset({node.name}))


def _bias(
    graph: Graph, node: Node, item: QuantizedLayer, width: int
) -> tuple[FloatArray | None, str, frozenset[str]] | None:
    """The bias [width], the tensor that holds the sum, and the nodes that make it; None where the
    third operand of a Gemm is no such bias."""
    own = frozenset({node.name})
    if len(node.inputs) > 2 and node.inputs[2]:
        bias = _row(graph.constant(node.inputs[2]), width)
        return None if bias is None else (bias, node.outputs[0], own)
    if len(item.layer.nodes) > 1:
        add = graph.by_name[item.layer.nodes[1]]
        if add.op_type == "Add":
            other = next(t for t in add.inputs if t != node.outputs[0])
            bias = _row(graph.constant(other), width)
            if bias is not None:
                return bias, add.outputs[0], own | {add.name}
    return None, node.outputs[0], own


def _row(values: Array | None, width: int) -> FloatArray | None:
    """`values` as one row of `width`; None where they are anything else."""
    if values is None or values.dtype != np.float32 or values.size not in (1, width):
        return None
    if values.size > 1 and values.shape[-1] != width:
        return None
    return np.broadcast_to(values.reshape(-1), (width,)).astype(np.float32)
