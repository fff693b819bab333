"""Which matrix products of an engine feed which, through whatever lies between."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode, Role
from qdebug.engine_info.tensors import FLOATS, QUANTIZED
from qdebug.network.layers import QUANTIZABLE_OPS


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
    """Products in floating point that read from quantized ones and feed quantized ones, all of
    whose neighbours are quantized."""
    layers = {x.name: x for edge in edges for x in (edge.writer, edge.reader)}
    before: dict[str, set[str]] = {}
    after: dict[str, set[str]] = {}
    for edge in edges:
        before.setdefault(edge.reader.name, set()).add(edge.writer.precision)
        after.setdefault(edge.writer.name, set()).add(edge.reader.precision)
    return tuple(
        layer
        for name, layer in layers.items()
        if layer.precision in FLOATS
        and all(found.get(name) and found[name] <= {*QUANTIZED} for found in (before, after))
    )


def unread_dequantizers(info: EngineInfo) -> Mapping[str, EngineLayer]:
    """Q/DQ pairs that no quantized product reads -> the layer that executes them, where that is
    proven. Such a pair rounds and clips, and costs time, without making anything faster.

    Where the file names operators these are DequantizeLinear nodes; one that passes INT8 on as it
    is (a pooling of maxima) is not counted, nor is one beside the Add that sums a product up: with
    its own pair the residual is read in INT8 by the product's kernel. Else they are the layers that
    quantize and whose results, through what only moves them, nothing but dequantizing layers read.
    """
    if not info.op_types:
        return _unread_layers(info)
    found = {}
    for name, layers in info.of_node.items():
        if (
            info.op_types.get(name) == "DequantizeLinear"
            and not any(x.precision in ("", *QUANTIZED) for x in layers)
            and not _is_residual(info.by_name[name], info)
        ):
            found[name] = layers[-1]
    return found


def _is_residual(node: OnnxNode, info: EngineInfo) -> bool:
    """Whether all that reads a DequantizeLinear are Adds whose other operand is a product's."""
    readers = [n for n in info.nodes if set(n.inputs) & set(node.outputs)]
    return bool(readers) and all(
        reader.op_type == "Add"
        and any(
            _from_product(tensor, info) for tensor in reader.inputs if tensor not in node.outputs
        )
        for reader in readers
    )


def _from_product(tensor: str, info: EngineInfo) -> bool:
    """Whether a tensor is a product's result, normalized perhaps."""
    maker = info.makers.get(tensor)
    while maker is not None and maker.op_type == "BatchNormalization" and maker.inputs:
        maker = info.makers.get(maker.inputs[0])
    return maker is not None and maker.op_type in QUANTIZABLE_OPS


def _unread_layers(info: EngineInfo) -> Mapping[str, EngineLayer]:
    readers: dict[str, list[EngineLayer]] = {}
    for layer in info.layers:
        for tensor in layer.inputs:
            readers.setdefault(tensor.name, []).append(layer)
    io = {tensor.name for tensor in info.io}
    return {
        layer.name: layer
        for layer in info.layers
        if layer.origin == "QDQ" and _quantizes(layer) and _only_dequantized(layer, readers, io)
    }


def _quantizes(layer: EngineLayer) -> bool:
    reads, writes = ({t.dtype for t in ts} for ts in (layer.inputs, layer.outputs))
    return bool(reads) and reads <= {*FLOATS} and bool(writes) and writes <= {*QUANTIZED}


def _only_dequantized(
    layer: EngineLayer, readers: Mapping[str, Sequence[EngineLayer]], io: Collection[str]
) -> bool:
    for tensor in layer.outputs:
        found = readers.get(tensor.name, ())
        if not found or tensor.name in io:
            return False
        for reader in found:
            moves = reader.role is Role.REFORMAT and not reader.changes_type
            if moves and _only_dequantized(reader, readers, io):
                continue
            if not (reader.role is Role.REFORMAT and reader.changes_type):
                return False
    return bool(layer.outputs)
