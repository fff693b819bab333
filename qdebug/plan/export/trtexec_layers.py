"""Constraints as trtexec can be told them: by the names of layers, before the model is parsed.

The names in --layerPrecisions are read by trtexec's sampleOptions.cpp: entries are split at ",",
name and type at the last ":", "'" quotes, and "*" is a wildcard. Layers are named by onnx-tensorrt
(ImporterContext::registerLayer): a constant by its initializer; the first layer of a node by the
node; with an unforeseeable number where that is taken, as for what a node needs besides. The one
output of a layer that is not the node's is called as the layer, with "_output".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdebug.model.graph import Graph, Node
from qdebug.model.layers import QUANTIZABLE_OPS
from qdebug.plan.constraints import Constraints
from qdebug.plan.export.source import counted
from qdebug.types import Precision

_NO_CHOICE = frozenset({"Cast", "Shape", "Constant"})
"""Their data say their precision."""


@dataclass(frozen=True)
class LayersTold:
    """What trtexec is told, by layer name.

    Attributes:
        precisions, types: --layerPrecisions, --layerOutputTypes.
        notes: what it cannot be told.
    """

    precisions: dict[str, Precision]
    types: dict[str, Precision]
    notes: tuple[str, ...]


def layers_told(graph: Graph, asked: Constraints) -> LayersTold:
    """The constraints of the layers that have a node's name."""
    precisions: dict[str, Precision] = {}
    types: dict[str, Precision] = {}
    unsaid, unranged, several, gemms = [], [], [], []
    for node in graph.nodes:
        written = [t for t in node.outputs if t and graph.is_float(t)]
        precision = asked.precisions.get(node.name)
        if precision is None or not written or node.op_type in _NO_CHOICE:
            continue
        product = node.op_type in QUANTIZABLE_OPS
        if set(node.name) & set(",'*") or node.name in graph.initializers:
            unsaid.append(repr(node.name))
            continue
        if precision is Precision.INT8 and product and not _has_all_ranges(graph, node):
            unranged.append(repr(node.name))
            continue
        if product or precision is not Precision.INT8:
            precisions[node.name] = precision
        if len(written) > 1 or len(node.outputs) > 1:
            several.append(repr(node.name))
            continue
        inside = node.op_type == "Gemm"  # the layer of its name writes the product, less the bias
        stored = _stored(asked, precision, "" if inside else written[0])
        gemms += [repr(node.name)] * inside
        if stored is not None:
            types[node.name] = stored
    notes = _notes(unsaid, unranged, several, gemms)
    return LayersTold(precisions, types, tuple(notes))


def _stored(asked: Constraints, precision: Precision, tensor: str) -> Precision | None:
    """As `parsed_network.pin` has it."""
    if tensor in asked.stored:
        return asked.stored[tensor]
    return asked.rest if precision is Precision.INT8 and tensor not in asked.free else None


def nameable_ranges(graph: Graph, asked: Constraints) -> dict[str, float]:
    """amax of all tensors whose names are known before the model is parsed: of `ranges_in` of
    `parsed_network`, all but what the parser makes of constants that it broadcasts."""
    ranges = dict(asked.ranges)
    for node in graph.nodes:
        if node.name not in asked.others:
            continue
        other = asked.others[node.name]
        for tensor in (*node.inputs, *node.outputs):
            if tensor and tensor not in graph.initializers and graph.is_float(tensor):
                ranges.setdefault(tensor, other)
        if node.op_type == "Gemm":
            ranges.setdefault(f"{node.name}_output", other)
        if node.op_type in ("Gemm", "MatMul") and _has_all_ranges(graph, node):
            weights = [t for t in node.inputs[:2] if t in graph.initializers]
            amax = asked.weights.get(node.name, other)
            ranges |= {f"{t}_output": ranges.get(f"{t}_output", amax) for t in weights}
    return ranges


def _has_all_ranges(graph: Graph, node: Node) -> bool:
    """Whether `nameable_ranges` has all that a product reads: the parser broadcasts the operand of
    lower rank, and gives that a name of its own."""
    if node.op_type != "MatMul":
        return True
    ranks = {_rank(graph, tensor) for tensor in node.inputs[:2]}
    return len(ranks) == 1 and None not in ranks


def _rank(graph: Graph, tensor: str) -> int | None:
    shape = graph.shapes.get(tensor)
    values = graph.constant(tensor) if shape is None else None
    return len(shape) if shape is not None else values.ndim if values is not None else None


def _notes(
    unsaid: list[str], unranged: list[str], several: list[str], gemms: list[str]
) -> Iterator[str]:
    if unsaid:
        names = f"{', '.join(unsaid[:3])}{', …' if len(unsaid) > 3 else ''}"
        yield (
            f"trtexec cannot be told the precision of {counted(unsaid, 'layer')} by name: {names} "
            "(a comma, quote or asterisk in the name, or a constant of that name). The explicit "
            "way and --to polygraphy or python have them all."
        )
    if unranged:
        yield (
            f"A calibration cache cannot name the weights of {counted(unranged, 'MatMul')}, first "
            f"{unranged[0]}, which TensorRT broadcasts: without a range it runs them in higher "
            "precision, so that in the implicit way they are not constrained to INT8. --to "
            "polygraphy and python set those ranges too."
        )
    if several:
        yield (
            f"trtexec is not told how the outputs of {counted(several, 'layer')} are stored, first "
            f"{several[0]}: they have several."
        )
    if gemms:
        yield (
            "In the implicit way trtexec constrains the matrix product of a Gemm, not the addition "
            f"of its bias, which TensorRT names itself (first {gemms[0]})."
        )
