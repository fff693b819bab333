"""Remove the Q/DQ pairs of a model that carries them: the FP32 model it was made from.

Weights that are stored as INT8 come back as their dequantized values, so the error that their
quantization made cannot be seen; pass the original FP32 model as the reference to see it.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from qdebug.errors import ModelError
from qdebug.model.graph import Graph, Node
from qdebug.plan.rewrite.edit import check, copy_node, rename_reads


def strip_qdq(graph: Graph) -> onnx.ModelProto:
    """`graph` without its Q/DQ pairs.

    Raises:
        ModelError: INT8 values are used by something other than a DequantizeLinear.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:], proto.graph.value_info[:]
    instead: dict[str, str] = {}
    for original in graph.proto.graph.node:
        view = graph.by_name[original.name]
        if view.op_type == "QuantizeLinear":
            _check_readers(graph, view)
            continue
        if view.op_type == "DequantizeLinear":
            instead[view.outputs[0]] = _source(graph, view, proto, instead)
            continue
        node = copy_node(original)
        rename_reads(node, instead)
        proto.graph.node.append(node)
    _keep_outputs(proto, instead)
    return check(proto, "the model without Q/DQ")


def _source(graph: Graph, dq: Node, proto: onnx.ModelProto, instead: dict[str, str]) -> str:
    codes = dq.inputs[0]
    producer = graph.producers.get(codes)
    if producer is not None and producer.op_type == "QuantizeLinear":
        return instead.get(producer.inputs[0], producer.inputs[0])
    name = f"{codes}_dequantized"
    proto.graph.initializer.append(numpy_helper.from_array(_dequantized(graph, dq), name))
    return name


def _dequantized(graph: Graph, dq: Node) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    operands = [graph.constant(t) if t else None for t in dq.inputs]
    codes, scale = operands[0], operands[1]
    if codes is None or scale is None:
        raise ModelError(
            f"node '{dq.name}' dequantizes values that no QuantizeLinear made",
            "Give the FP32 model as well: --reference fp32.onnx.",
        )
    zero = operands[2] if len(operands) > 2 and operands[2] is not None else np.zeros_like(scale)
    proto = next(n for n in graph.proto.graph.node if n.name == dq.name)
    axis = next((a.i for a in proto.attribute if a.name == "axis"), 1)
    shape = [1] * codes.ndim
    if scale.size > 1:
        shape[axis] = -1
    steps = codes.astype(np.float32) - zero.astype(np.float32).reshape(shape)
    return np.asarray(steps * scale.astype(np.float32).reshape(shape), np.float32)


def _check_readers(graph: Graph, quantize: Node) -> None:
    for reader in graph.consumers.get(quantize.outputs[0], ()):
        if reader.op_type != "DequantizeLinear":
            raise ModelError(
                f"node '{reader.name}' ({reader.op_type}) computes on INT8 values directly, so the "
                "FP32 model cannot be recovered from this one",
                "Give the FP32 model as well: --reference fp32.onnx.",
            )


def _keep_outputs(proto: onnx.ModelProto, instead: dict[str, str]) -> None:
    """A graph output that a DequantizeLinear wrote must still exist."""
    for value in proto.graph.output:
        if value.name in instead:
            proto.graph.node.append(
                onnx.helper.make_node("Identity", [instead[value.name]], [value.name], value.name)
            )
