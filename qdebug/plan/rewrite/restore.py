"""Put back the activation functions that a quantizer absorbed.

A Relu or a Clip before a QuantizeLinear changes no code where the codes end at its bounds, so
quantizers leave it out. The tensor that QuantizeLinear then reads has the name of the activation's
output and values that the FP32 model never had. With the activation in its place again the model
gives the same codes, bit for bit, and its tensors are those of the FP32 model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.quantize import QUANTIZERS, Grid, grid_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.edit import Editor, copy_node

RELU, CLIP = "Relu", "Clip"
RELU6 = 6.0
_NEVER_NEGATIVE = frozenset({"Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs", "Sqrt"})


@dataclass(frozen=True)
class Absorbed:
    """An activation that is missing in a quantized model.

    Attributes:
        source: the tensor of the quantized model that it would read: what its QuantizeLinear reads.
        low, high: its bounds; None for none.
        before, after: the names that its input and its output get.
        node: the name that it gets.
    """

    source: str
    low: float | None
    high: float | None
    before: str
    after: str
    node: str

    @property
    def what(self) -> str:
        """What it is, for people."""
        if self.low == 0 and self.high is None:
            return RELU
        if self.low == 0 and self.high == RELU6:
            return "Relu6"
        low, high = ("" if x is None else f"{x:g}" for x in (self.low, self.high))
        return f"{CLIP}({low}, {high})"


def bounds_of(graph: Graph, node: Node) -> tuple[float | None, float | None] | None:
    """The bounds of a Relu or a Clip; None for another operator, or for bounds that are
    computed."""
    if node.domain or node.op_type not in (RELU, CLIP):
        return None
    if node.op_type == RELU:
        return 0.0, None
    values = ConstantValues(graph)
    bounds: list[float | None] = []
    for tensor in (*node.inputs[1:3], "", "")[:2]:
        value = values.value(tensor) if tensor and values.is_constant(tensor) else None
        if tensor and (value is None or value.size != 1):
            return None
        bounds.append(None if value is None else float(value.reshape(())))
    return bounds[0], bounds[1]


def suspects(quantized: Graph) -> dict[str, Grid]:
    """Tensors that all their readers quantize to codes that end at 0: each may have been the input
    of a Relu. By name, with the grid."""
    found = {}
    for tensor, grids in _quantized_only(quantized):
        maker = quantized.producers.get(tensor)
        if maker is None or maker.op_type in _NEVER_NEGATIVE:
            continue
        bounds = bounds_of(quantized, maker)
        if bounds is not None and bounds[0] is not None and bounds[0] >= 0:
            continue
        ends = all(g.axis is None and int(g.zero_point) == g.format.lowest for g in grids)
        if ends and not _clipped_afterwards(quantized, tensor):
            found[tensor] = grids[0]
    return found


def _clipped_afterwards(graph: Graph, tensor: str) -> bool:
    """Whether the activation is still there: all that reads the quantized values cuts off what is
    negative."""
    waiting, readers = [tensor], []
    while waiting:
        for node in graph.consumers.get(waiting.pop(), ()):
            if node.op_type in {*QUANTIZERS, "DequantizeLinear"}:
                waiting += node.outputs
            else:
                readers.append(node)
    bounds = [bounds_of(graph, node) for node in readers]
    return bool(bounds) and all(b is not None and b[0] is not None and b[0] >= 0 for b in bounds)


def guessed(tensors: Sequence[str], grids: Mapping[str, Grid]) -> list[Absorbed]:
    """The activations that were absorbed at `tensors`, from where their codes end: Relu6 where that
    is 6, and below 6 in a network that has one; elsewhere Relu."""
    tops = {t: grids[t].range[1] for t in tensors}
    sixes = any(np.isclose(top, RELU6, rtol=1e-5) for top in tops.values())
    return [
        Absorbed(
            source=tensor,
            low=0.0,
            high=RELU6 if sixes and tops[tensor] <= RELU6 * (1 + 1e-5) else None,
            before=f"{tensor}_before_activation",
            after=tensor,
            node=f"{tensor}_activation",
        )
        for tensor in tensors
    ]


def restore(quantized: Graph, missing: Sequence[Absorbed]) -> onnx.ModelProto:
    """`quantized` with these activations in their place. Every code stays what it was where the
    range of the quantizer ends at their bounds or before.

    Raises:
        PlanError: as `check`.
    """
    editor = Editor(quantized)
    by_source = {item.source: item for item in missing}
    reads: dict[str, str] = {}
    for proto in quantized.proto.graph.node:
        node = copy_node(proto)
        rename_reads(node, reads)
        after: dict[str, Absorbed] = {}
        for i, tensor in enumerate(proto.output):
            item = by_source.get(tensor)
            if item is None:
                continue
            if item.source == item.after:  # what made it now makes the activation's input
                node.output[i] = editor.tensor_name(item.before)
            else:
                reads[tensor] = editor.tensor_name(item.after)
            after[node.output[i]] = item
        editor.emit(node)
        for before, item in after.items():
            _add_activation(editor, item, before, reads.get(item.source, item.after))
    return editor.finish("the model with its activations restored")


def _add_activation(editor: Editor, item: Absorbed, before: str, after: str) -> None:
    if item.low == 0 and item.high is None:
        editor.add(RELU, before, output=after, name=item.node)
        return
    bounds = [
        "" if bound is None else editor.initializer(np.array(bound, np.float32), f"{after}_{side}")
        for side, bound in (("min", item.low), ("max", item.high))
    ]
    editor.add(CLIP, before, *bounds, output=after, name=item.node)


def absorbs(quantized: Graph, missing: Absorbed) -> bool:
    """Whether all that reads the tensor of an activation that is missing quantizes it to codes
    that end at its bounds: putting it back changes no code."""
    if missing.source in quantized.outputs:
        return False
    readers = quantized.consumers.get(missing.source, ())
    grids = [grid_of(quantized, r) if r.op_type == "QuantizeLinear" else None for r in readers]
    if not grids:
        return False
    return all(g is not None and g.clips_at(missing.low, missing.high) for g in grids)


def _quantized_only(graph: Graph) -> Iterator[tuple[str, list[Grid]]]:
    """The tensors whose only readers are QuantizeLinear nodes, with the grids of these."""
    for tensor in graph.producers:
        readers = graph.consumers.get(tensor, ())
        if tensor in graph.outputs or not readers:
            continue
        grids = [
            grid_of(graph, r)
            for r in readers
            if r.op_type == "QuantizeLinear" and r.inputs[0] == tensor
        ]
        known = [g for g in grids if g is not None]
        if len(known) == len(readers):
            yield tensor, known
