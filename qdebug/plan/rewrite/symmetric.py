"""What a builder that takes only symmetric INT8 does not take of a model that others quantized."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from qdebug.errors import UsageError
from qdebug.network.graph import Graph
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.quantize import grid_of
from qdebug.plan.rewrite.constants import dequantized
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.wording import option

_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class Quantized:
    """The quantized tensors of a model.

    Attributes:
        count: how many, weights included.
        others: those that are not signed with zero point 0, for people.
    """

    count: int
    others: tuple[str, ...]


def quantized_tensors(graph: Graph) -> Quantized:
    """What QuantizeLinear nodes read, and constants that are dequantized."""
    count, others = 0, []
    for node in graph.nodes:
        if node.op_type == "DynamicQuantizeLinear":
            count += 1
            others.append(f"'{node.inputs[0]}', whose range is taken from each execution")
        elif node.op_type in _QUANTIZING:
            stored = node.inputs[0] in graph.initializers
            if node.op_type == "DequantizeLinear" and not stored:
                continue  # counted by its QuantizeLinear
            if _is_int32(graph, node.inputs[0]):
                continue  # a bias: the sum of products, not an operand
            count += 1
            grid = grid_of(graph, node)
            if grid is not None and not grid.symmetric:
                kind = "unsigned" if grid.format.lowest == 0 else "signed"
                zero = int(grid.zero_point.flat[0])
                others.append(f"'{node.inputs[0]}', {kind} with zero point {zero}")
    return Quantized(count, tuple(others))


def check_symmetric(graph: Graph, path: str, library: str) -> None:
    """Refuse a model with pairs that `library` would not run in INT8.

    Raises:
        UsageError: one is unsigned, asymmetric or dynamic; the message names the first and counts
            them.
    """
    found = quantized_tensors(graph)
    if found.others:
        raise UsageError(
            f"{path}: {len(found.others)} of {found.count} quantized tensors are not symmetric "
            f"INT8, first {found.others[0]}: {library} takes zero point 0 of signed codes only",
            "Quantize symmetrically (in ONNX Runtime QInt8 with ActivationSymmetric), or give the "
            f"FP32 model, which is quantized so here. Without {option('backend')} the model is "
            "simulated as it is.",
            code="QD-USAGE-ASYMMETRIC",
        )


def with_float_biases(graph: Graph) -> tuple[Graph, int]:
    """`graph` with constants of INT32 that are dequantized as FP32 constants of the same values,
    and how many there were: builders of INT8 dequantize no INT32.

    Raises:
        PlanError: as `check`.
    """
    editor = Editor(graph)
    names: dict[str, str] = {}
    for proto in graph.proto.graph.node:
        view = graph.by_name[proto.name]
        if view.op_type == "DequantizeLinear" and _is_int32(graph, view.inputs[0]):
            values = dequantized(graph, view)
            names[view.outputs[0]] = editor.initializer(values, f"{view.inputs[0]}_fp32")
            continue
        node = copy_node(proto)
        rename_reads(node, names)
        editor.emit(node)
    if not names:
        return graph, 0
    plain = editor.finish("the model with FP32 biases")
    return Graph.inferred(plain), len(names)


def _is_int32(graph: Graph, tensor: str) -> bool:
    stored = graph.initializers.get(tensor)
    return stored is not None and stored.data_type == onnx.TensorProto.INT32
