"""The lowered model with its weights in blocks as MatMulNBits of ONNX Runtime, code by code.

MatMulNBits stores a weight [K, N] as codes [N, ⌈K / block⌉, bytes of a block], of which half are
negative where there are no zero points, and scales [N · ⌈K / block⌉]; see
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.errors import PlanError
from qdebug.formats.base import Format
from qdebug.formats.registry import INT4, INT8, WEIGHT_ONLY
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.weights import model_files
from qdebug.plan.export.source import ExportSource, Rendered
from qdebug.plan.lower import lower
from qdebug.plan.plan import LEAST_BLOCK
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.types import Array
from qdebug.wording import option

_DOMAIN = "com.microsoft"


def render_nbits(source: ExportSource, path: Path) -> Rendered:
    """The model, in one file.

    Raises:
        PlanError: the plan cannot be lowered, has no weights in blocks, or has blocks of a size
            that is no power of 2.
    """
    size = source.bound.plan.block_size
    if size & (size - 1):
        raise PlanError(
            f"blocks of {size} values: MatMulNBits takes powers of 2",
            f"Give {option('block_size', '128')} to what makes the plan.",
            code="QD-PLAN-BLOCK-SIZE",
        )
    if not WEIGHT_ONLY & set(source.bound.precisions.values()):
        raise PlanError(
            "no layer of the plan runs in W4 or W8, which MatMulNBits is for",
            f"Export the model with {option('to', 'onnx')}.",
            code="QD-PLAN-NOTHING-TO-QUANTIZE",
        )
    graph = lower(source.bound).graph
    proto, left = with_matmul_nbits(graph)
    notes = [
        "accuracy_level is not set: ONNX Runtime multiplies the weights with activations as they "
        "are. With 4 it rounds these to INT8, too, which is faster."
    ]
    if left:
        notes.append(
            f"{len(left)} products stay DequantizeLinear and MatMul, such as '{left[0]}': "
            "MatMulNBits takes matrices in FP32 and FP16."
        )
    return Rendered(model_files(proto, path), tuple(notes))


def with_matmul_nbits(graph: Graph) -> tuple[onnx.ModelProto, list[str]]:
    """A lowered model with MatMulNBits, and the products with weights in blocks that this is not
    for."""
    weights = {n.name: w for n in graph.nodes if (w := _blocks_of(graph, n)) is not None}
    taken = {name for name in weights if _is_taken(graph, graph.by_name[name])}
    editor = Editor(graph)
    for original in graph.proto.graph.node:
        node = graph.by_name[original.name]
        if node.name in taken:
            _emit(editor, node, weights[node.name])
        elif not _only_read_by(graph, node, taken):
            editor.emit(copy_node(original))
    if not any(o.domain == _DOMAIN for o in editor.proto.opset_import):
        editor.proto.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return editor.finish("the model with MatMulNBits"), [n for n in weights if n not in taken]


@dataclass(frozen=True)
class _Blocks:
    """A weight in blocks: codes [N, K], scales [N, blocks], and the values of a block."""

    codes: Array
    scales: Array
    size: int
    format: Format


def _blocks_of(graph: Graph, node: Node) -> _Blocks | None:
    """The right operand of a product, where it is a matrix in blocks."""
    if node.op_type not in ("Gemm", "MatMul") or node.domain:
        return None
    maker = graph.producers.get(node.inputs[1])
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    codes, scales = (graph.constant(t) for t in maker.inputs[:2])
    form = format_of_codes(graph, maker)
    quantized = graph.producers.get(node.inputs[0])
    both = quantized is not None and quantized.op_type == "DequantizeLinear"
    if codes is None or scales is None or both or codes.ndim != 2 or form not in (INT4, INT8):
        return None
    rows = bool(graph.attributes(node).get("transB", 0))  # as MatMulNBits has them: [N, K]
    codes = codes if rows else codes.T
    size = int(graph.attributes(maker).get("block_size", 0))
    if size:
        return _Blocks(codes, scales if rows else scales.T, size, form)
    whole = max(LEAST_BLOCK, 1 << (codes.shape[1] - 1).bit_length())
    return _Blocks(codes, np.broadcast_to(scales.reshape(-1, 1), (len(codes), 1)), whole, form)


def _is_taken(graph: Graph, node: Node) -> bool:
    """Whether a product has a form as MatMulNBits."""
    given = graph.attributes(node)
    plain = not given.get("transA", 0) and given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0
    return plain and graph.types.get(node.outputs[0]) in (TensorProto.FLOAT, TensorProto.FLOAT16)


def _only_read_by(graph: Graph, node: Node, names: set[str]) -> bool:
    """Whether a node dequantizes for these alone."""
    readers = [n for t in node.outputs for n in graph.consumers.get(t, ())]
    return node.op_type == "DequantizeLinear" and all(n.name in names for n in readers)


def _emit(editor: Editor, node: Node, weight: _Blocks) -> None:
    """MatMulNBits in the place of a product."""
    name = node.inputs[1]
    operands = [
        node.inputs[0],
        editor.initializer(_packed(weight), f"{name}_packed"),
        editor.initializer(np.ascontiguousarray(weight.scales).reshape(-1), f"{name}_scales"),
    ]
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    product = editor.tensor_name(f"{node.outputs[0]}_product") if bias else node.outputs[0]
    columns, terms = weight.codes.shape
    editor.add(
        "MatMulNBits",
        *operands,
        output=product,
        name=node.name,
        domain=_DOMAIN,
        K=terms,
        N=columns,
        bits=weight.format.bits,
        block_size=weight.size,
    )
    if bias:
        editor.add("Add", product, bias, output=node.outputs[0], name=f"{node.name}_bias")


def _packed(weight: _Blocks) -> Array:
    """The codes from 0 on, those of a block packed into bytes, the first into the lowest bits."""
    bits, (rows, terms) = weight.format.bits, weight.codes.shape
    blocks = -(-terms // weight.size)
    codes = np.zeros((rows, blocks * weight.size), np.int16)
    codes[:, :terms] = weight.codes.astype(np.int16)
    unsigned = (codes + (1 << (bits - 1))).astype(np.uint8).reshape(rows, blocks, -1)
    if bits == INT8.bits:
        return unsigned
    return unsigned[..., ::2] | (unsigned[..., 1::2] << np.uint8(bits))
