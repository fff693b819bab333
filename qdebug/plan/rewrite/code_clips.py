"""Leave out the Clip between QuantizeLinear and DequantizeLinear that narrows codes, as Brevitas
writes it: to −127 … 127 of INT8, or to fewer bits in a wider type.
"""

from __future__ import annotations

import numpy as np
import onnx

from qdebug.errors import ModelError
from qdebug.formats.base import Format
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.quantize import grid_of
from qdebug.plan.rewrite.edit import Editor, copy_node


def without_code_clips(graph: Graph, path: str) -> tuple[onnx.ModelProto, int]:
    """`graph` without these Clips, and how many there were. Of constants no code changes; of an
    activation at most the lowest one does, −128, which stands for what is clipped anyway.

    Args:
        path: of the model, for messages.

    Raises:
        ModelError: one keeps fewer codes of an activation than its format has.
        PlanError: as `check`.
    """
    instead: dict[str, str] = {}
    editor = Editor(graph)
    for proto in graph.proto.graph.node:
        node = graph.by_name[proto.name]
        maker = graph.producers.get(node.inputs[0]) if node.op_type == "Clip" else None
        form = format_of_codes(graph, maker) if maker is not None and _is_quantizer(maker) else None
        if maker is None or form is None:
            kept = copy_node(proto)
            rename_reads(kept, instead)
            editor.emit(kept)
            continue
        low, high = _bounds(graph, node, form)
        if not _changes_nothing(graph, maker, form, low, high):
            raise ModelError(
                f"{path}: node '{node.name}' (Clip) keeps the codes from {low} to {high} of "
                f"{form.label} values that are computed: fewer bits than {form.label} has",
                f"Export it with a format of that size (INT4 from opset 21 on), or with all codes "
                f"of {form.label}.",
                code="QD-MODEL-CODE-CLIP",
            )
        instead[node.outputs[0]] = node.inputs[0]
    if not instead:
        return graph.proto, 0
    return editor.finish("the model without Clips of codes"), len(instead)


def _is_quantizer(node: Node) -> bool:
    return node.op_type == "QuantizeLinear"


def _bounds(graph: Graph, node: Node, form: Format) -> tuple[int, int]:
    """Where a Clip ends; the ends of the format where it has no constant there."""
    ends = [int(form.lowest), int(form.largest)]
    for place, tensor in enumerate(node.inputs[1:3]):
        value = graph.constant(tensor) if tensor else None
        if value is not None and value.size == 1:
            ends[place] = int(value.reshape(-1)[0])
    return ends[0], ends[1]


def _changes_nothing(graph: Graph, maker: Node, form: Format, low: int, high: int) -> bool:
    if high >= form.largest and low <= min(form.lowest + 1, -form.largest):
        return True
    values, grid = graph.constant(maker.inputs[0]), grid_of(graph, maker)
    if values is None or grid is None:
        return False
    codes = form.encode(values.astype(np.float32), grid.scale, grid.axis, grid.zero_point)
    return bool(codes.min() >= low and codes.max() <= high)
