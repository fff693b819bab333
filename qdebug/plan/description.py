"""A network as data: its nodes, what they read and how large it is, without its weights.

A run file keeps one, so that whoever looks at a result needs no model file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.formats.registry import BY_ONNX_TYPE
from qdebug.network.graph import FLOAT_TYPES, Graph, Node
from qdebug.network.layers import Layers
from qdebug.plan.quantize import Grid
from qdebug.result import from_json, to_json

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class DescribedNode:
    """A node of a network.

    Attributes:
        name: as in the model. op: its ONNX type.
        inputs: the tensors that it reads, constants left out. outputs: those that it computes.
        weight: the shape of its largest constant operand of floating point; None without one.
        layer: the name of the layer that it is fused into; "" for a node outside all layers.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weight: tuple[int, ...] | None
    layer: str


@dataclass(frozen=True)
class DescribedGrid:
    """The values that a quantized tensor can take: from `low` to `high`, `step` apart (the largest
    step, where there are several)."""

    low: float
    high: float
    step: float


@dataclass(frozen=True)
class DescribedTensor:
    """An activation.

    Attributes:
        shape: -1 for an axis that is not fixed; None where nothing is known.
        grid: what the candidate rounds it to; None where it does not.
    """

    name: str
    shape: tuple[int, ...] | None
    grid: DescribedGrid | None = None


@dataclass(frozen=True)
class Description:
    """A network, in execution order, as it computes in FP32: without Q/DQ.

    Attributes:
        inputs, outputs: tensors by name.
        tensors: all that flows in it, the inputs first.
    """

    nodes: tuple[DescribedNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[DescribedTensor, ...]

    def to_text(self) -> str:
        """JSON, as a run file keeps it."""
        return json.dumps(to_json(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Description:
        """What `to_text` gave.

        Raises:
            ValueError: it is not that.
        """
        try:
            found: Description = from_json(cls, json.loads(text))
        except (TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"no description of a network: {error}") from error
        return found


def describe(graph: Graph, layers: Layers, grids: Mapping[str, Grid]) -> Description:
    """Describe a network.

    Args:
        graph: Q/DQ pairs in it are left out, and what reads them reads what they round.
        layers: of the graph.
        grids: what activations are rounded to, by tensor.
    """
    shown = [n for n in graph.nodes if n.op_type not in _QDQ and not _is_constant(graph, n)]
    nodes = tuple(_described(graph, layers, node) for node in shown)
    inputs = tuple(spec.name for spec in graph.inputs)
    names = dict.fromkeys([*inputs, *(t for node in nodes for t in node.outputs)])
    tensors = tuple(
        DescribedTensor(name, _shape(graph, name), _grid(grids.get(name))) for name in names
    )
    outputs = tuple(_source(graph, name) for name in graph.outputs)
    return Description(nodes, inputs, outputs, tensors)


def _is_constant(graph: Graph, node: Node) -> bool:
    return all(t in graph.initializers for t in node.outputs if t)


def _described(graph: Graph, layers: Layers, node: Node) -> DescribedNode:
    sources = list(dict.fromkeys(_source(graph, tensor) for tensor in node.reads))
    constants = [t for t in sources if t in graph.initializers]
    layer = layers.of_node.get(node.name)
    return DescribedNode(
        node.name,
        node.op_type,
        tuple(t for t in sources if t not in graph.initializers),
        tuple(t for t in node.outputs if t),
        _weight(graph, constants),
        layer.name if layer else "",
    )


def _source(graph: Graph, tensor: str) -> str:
    """What a chain of Q/DQ nodes rounds; any other tensor itself."""
    while (node := graph.producers.get(tensor)) is not None and node.op_type in _QDQ:
        tensor = node.inputs[0]
    return tensor


def _weight(graph: Graph, constants: list[str]) -> tuple[int, ...] | None:
    found = [
        tuple(graph.initializers[t].dims)
        for t in constants
        if graph.initializers[t].data_type in FLOAT_TYPES | BY_ONNX_TYPE.keys()
    ]
    shapes = [shape for shape in found if shape]
    return max(shapes, key=math.prod, default=None)


def _shape(graph: Graph, tensor: str) -> tuple[int, ...] | None:
    shape = graph.shapes.get(tensor)
    return None if shape is None else tuple(d if isinstance(d, int) else -1 for d in shape)


def _grid(grid: Grid | None) -> DescribedGrid | None:
    """None also of a scale that is NaN or Inf, as quantizers write it: it has no values."""
    if grid is None:
        return None
    low, high = grid.shown
    shown = DescribedGrid(low, high, grid.step)
    return shown if all(map(math.isfinite, (low, high, shown.step))) else None
