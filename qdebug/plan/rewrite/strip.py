"""Remove the Q/DQ pairs of a quantized model, to get the FP32 model it was made from.

Weights that are stored as INT8 come back as their dequantized values, so the error of their
quantization cannot be seen; pass the original FP32 model as the reference to see it.
"""

from __future__ import annotations

import numpy as np
import onnx

from qdebug.errors import ModelError
from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.quantize import QUANTIZERS, quantizer_of
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.types import Array
from qdebug.wording import option


def strip_qdq(graph: Graph) -> onnx.ModelProto:
    """`graph` without its Q/DQ pairs.

    Raises:
        ModelError: INT8 values are used by something other than a DequantizeLinear.
    """
    editor = Editor(graph)
    instead: dict[str, str] = {}
    inputs = {spec.name for spec in graph.inputs}  # codes that the user gives stand for themselves
    for original in graph.proto.graph.node:
        view = graph.by_name[original.name]
        if view.op_type in QUANTIZERS:
            _check_readers(graph, view)
            _check_scale_readers(graph, view)
        elif view.op_type == "DequantizeLinear" and view.inputs[0] not in inputs:
            instead[view.outputs[0]] = _source(graph, view, editor, instead)
        else:
            node = copy_node(original)
            rename_reads(node, instead)
            editor.emit(node)
    for output in graph.outputs:
        if output in instead:  # a DequantizeLinear produced it; it must still exist
            editor.add("Identity", instead[output], output=output)
    return editor.finish("the model without Q/DQ")


def _source(graph: Graph, dq: Node, editor: Editor, instead: dict[str, str]) -> str:
    quantizer = quantizer_of(graph, dq)
    if quantizer is not None:
        return instead.get(quantizer.inputs[0], quantizer.inputs[0])
    return editor.initializer(dequantized(graph, dq), f"{dq.inputs[0]}_dequantized")


def dequantized(graph: Graph, dq: Node) -> Array:
    """The values that a DequantizeLinear makes of constant codes.

    Raises:
        ModelError: the codes or the scale are computed, or do not fit each other.
    """
    operands = [graph.constant(t) if t else None for t in dq.inputs]
    codes, scale = operands[0], operands[1]
    if codes is None or scale is None:
        raise ModelError(
            f"node '{dq.name}' dequantizes values that no QuantizeLinear produced",
            _give_reference(),
            code="QD-MODEL-NO-FP32-FORM",
        )
    zero = operands[2] if len(operands) > 2 and operands[2] is not None else np.zeros_like(scale)
    attributes = graph.attributes(dq)
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    try:
        steps = codes.astype(np.float32) - spread(zero.astype(np.float32), codes, axis, block)
        values = steps * spread(scale.astype(np.float32), codes, axis, block)
    except (ValueError, IndexError) as error:
        raise ModelError(
            f"node '{dq.name}': its scale {list(scale.shape)} or zero point does not fit its codes "
            f"{list(codes.shape)} on axis {axis}",
            "Export the model again.",
            code="QD-MODEL-INVALID",
        ) from error
    return np.asarray(values.astype(scale.dtype))


def spread(values: Array, codes: Array, axis: int, block: int) -> Array:
    """Scales or zero points in a shape that broadcasts over `codes`."""
    if block:  # one for every `block` neighbours along the axis
        return np.repeat(values, block, axis).take(np.arange(codes.shape[axis]), axis)
    if values.size == 1:
        return values.reshape((1,) * codes.ndim)
    return along(values, axis, codes.ndim)


def _check_readers(graph: Graph, quantize: Node) -> None:
    codes = quantize.outputs[0]
    if codes in graph.outputs:
        raise ModelError(
            f"output '{codes}' of the model holds the INT8 values of node '{quantize.name}', so "
            "there is no FP32 output to compare with",
            _give_reference(),
            code="QD-MODEL-NO-FP32-FORM",
        )
    for reader in graph.consumers.get(codes, ()):
        if reader.op_type != "DequantizeLinear":
            raise ModelError(
                f"node '{reader.name}' ({reader.op_type}) computes on INT8 values directly, so the "
                "FP32 model cannot be recovered from this one",
                _give_reference(),
                code="QD-MODEL-NO-FP32-FORM",
            )


def _check_scale_readers(graph: Graph, quantize: Node) -> None:
    """Scales and zero points that a DynamicQuantizeLinear computes go with it."""
    for tensor in quantize.outputs[1:]:
        for reader in graph.consumers.get(tensor, ()):
            if reader.op_type != "DequantizeLinear":
                raise ModelError(
                    f"node '{reader.name}' ({reader.op_type}) computes with '{tensor}', the scale "
                    f"or zero point of node '{quantize.name}', so the FP32 model cannot be "
                    "recovered from this one",
                    _give_reference(),
                    code="QD-MODEL-NO-FP32-FORM",
                )


def _give_reference() -> str:
    return f"Give the FP32 model as well: {option('reference', 'fp32.onnx')}."
