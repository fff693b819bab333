"""Which matrix products of an engine feed which, through whatever lies between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qdebug.engine_info.layers import EngineInfo, EngineLayer, Role
from qdebug.engine_info.tensors import FLOATS, QUANTIZED


@dataclass(frozen=True)
class Edge:
    """The product `reader` reads what `writer` computed, with no other product between."""

    writer: EngineLayer
    reader: EngineLayer

    @property
    def changes(self) -> bool:
        """Whether the precision changes on the way, as far as it is known."""
        before, after = self.writer.precision, self.reader.precision
        return bool(before and after) and before != after


def product_edges(info: EngineInfo) -> tuple[Edge, ...]:
    """All such pairs, in execution order of the reader."""
    writers: dict[str, list[int]] = {}
    nearest: list[tuple[int, ...]] = []
    edges = []
    for i, layer in enumerate(info.layers):
        sources = [w for tensor in layer.inputs for w in writers.get(tensor.name, ())]
        behind = tuple(dict.fromkeys(p for w in sources for p in nearest[w]))
        if layer.role is Role.MATRIX:
            edges += [Edge(info.layers[p], layer) for p in behind]
        nearest.append((i,) if layer.role is Role.MATRIX else behind)
        for tensor in layer.outputs:
            # Several layers may fill one tensor (a Concat that costs nothing).
            writers.setdefault(tensor.name, []).append(i)
    return tuple(edges)


def left_high(edges: Sequence[Edge]) -> tuple[EngineLayer, ...]:
    """Products in floating point all of whose neighbours are quantized."""
    neighbours: dict[str, tuple[EngineLayer, list[EngineLayer]]] = {}
    for edge in edges:
        for one, other in ((edge.writer, edge.reader), (edge.reader, edge.writer)):
            neighbours.setdefault(one.name, (one, []))[1].append(other)
    return tuple(
        layer
        for layer, others in neighbours.values()
        if layer.precision in FLOATS and all(o.precision in QUANTIZED for o in others)
    )


def unread_dequantizers(info: EngineInfo) -> Mapping[str, EngineLayer]:
    """DequantizeLinear nodes that no quantized product reads -> the layer that executes them.

    Such a pair rounds and clips, and costs time, without making anything faster. One that passes
    INT8 on as it is (a pooling of maxima) is not counted. Where the file does not name operators,
    the layers that TensorRT marks as added for Q/DQ are taken.
    """
    if not info.op_types:
        return {layer.name: layer for layer in info.layers if layer.origin == "QDQ"}
    found = {}
    for name, layers in info.of_node.items():
        if info.op_types.get(name) == "DequantizeLinear" and not any(
            layer.precision in ("", *QUANTIZED) for layer in layers
        ):
            found[name] = layers[-1]
    return found
