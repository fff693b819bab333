"""Which number format the codes of a QuantizeLinear or DequantizeLinear are in."""

from __future__ import annotations

from onnx import TensorProto

from qdebug.errors import ModelError
from qdebug.formats.base import Format
from qdebug.formats.registry import BY_ONNX_TYPE, FORMATS
from qdebug.network.graph import Graph, Node
from qdebug.wording import option


def code_type(graph: Graph, node: Node) -> int:
    """The onnx.TensorProto type of the codes that a QuantizeLinear or DequantizeLinear writes or
    reads."""
    zero_point = node.inputs[2] if len(node.inputs) > 2 else ""
    if zero_point in graph.initializers:
        return graph.initializers[zero_point].data_type
    if node.op_type == "DequantizeLinear":
        codes = node.inputs[0]
        if codes in graph.initializers:
            return graph.initializers[codes].data_type
        return graph.types.get(codes, TensorProto.UINT8)
    return int(graph.attributes(node).get("output_dtype", 0)) or TensorProto.UINT8


def format_of_codes(graph: Graph, node: Node) -> Format | None:
    """The format of these codes; None for others, as of a bias that is stored as INT32."""
    return BY_ONNX_TYPE.get(code_type(graph, node))


def check_formats(path: str, graph: Graph) -> None:
    """Refuse a model with codes of a format that cannot be executed or explained.

    Raises:
        ModelError: it has some; the message names the format and the node.
    """
    for node in graph.nodes:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        kind = code_type(graph, node)
        if kind in BY_ONNX_TYPE or kind == TensorProto.INT32:
            continue
        known = ", ".join(f.label for f in FORMATS if f.needs_scale)
        raise ModelError(
            f"{path}: {node.op_type} '{node.name}' has codes of {TensorProto.DataType.Name(kind)}, "
            "a format that qdebug does not read",
            f"Formats that are read: {known}. `qdebug inspect` lists what the model asks for, and "
            f"the FP32 model can be tested with {option('precision')}.",
            code="QD-MODEL-NUMBER-FORMAT",
        )
