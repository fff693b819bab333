"""Which matrix products of an engine feed which, through whatever lies between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    behind: dict[str, dict[int, EngineLayer]] = defaultdict(dict)
    edges: list[Edge] = []
    for layer in info.layers:
        products = {k: x for tensor in layer.inputs for k, x in behind[tensor.name].items()}
        if layer.role is Role.MATRIX:
            edges += [Edge(writer, layer) for writer in products.values()]
            products = {id(layer): layer}
        for tensor in layer.outputs:  # several layers may fill one
            behind[tensor.name] |= products
    return tuple(edges)


def left_high(edges: Sequence[Edge]) -> tuple[EngineLayer, ...]:
    """Products in floating point that read from quantized ones and feed quantized ones, all of
    whose neighbours are quantized."""
    layers = {x.name: x for edge in edges for x in (edge.writer, edge.reader)}
    before, after = defaultdict(set), defaultdict(set)
    for edge in edges:
        before[edge.reader.name].add(edge.writer.precision)
        after[edge.writer.name].add(edge.reader.precision)
    return tuple(
        layer
        for name, layer in layers.items()
        if layer.precision in FLOATS
        and all(found[name] and found[name] <= {*QUANTIZED} for found in (before, after))
    )


def unread_dequantizers(info: EngineInfo) -> Mapping[str, EngineLayer]:
    """Q/DQ pairs that no quantized product reads -> the layer that executes them, where that is
    proven. Such a pair rounds and clips, and costs time, without making anything faster.

    Where the file names operators these are DequantizeLinear nodes; one that passes INT8 on as it
    is (a pooling of maxima) is not counted, nor is one beside the Add that sums a product up: with
    its own pair the residual is read in INT8 by the product's kernel. Else they are the layers that
    quantize and whose results, through what only moves them, nothing but dequantizing layers read.
    """
    if info.op_types:
        return {
            name: layers[-1]
            for name, layers in info.of_node.items()
            if info.op_types.get(name) == "DequantizeLinear"
            and not any(x.precision in ("", *QUANTIZED) for x in layers)
            and not _is_residual(info.by_name[name], info)
        }
    quantizers = (x for x in info.layers if x.origin == "QDQ" and x.quantizes)
    return {layer.name: layer for layer in quantizers if _only_dequantized(layer, info)}


def _is_residual(node: OnnxNode, info: EngineInfo) -> bool:
    """Whether all that reads a DequantizeLinear are Adds whose other operand is a product's."""
    readers = info.readers_of(node)
    return bool(readers) and all(
        reader.op_type == "Add"
        and any(_from_product(tensor, info) for tensor in {*reader.inputs} - {*node.outputs})
        for reader in readers
    )


def _from_product(tensor: str, info: EngineInfo) -> bool:
    """Whether a tensor is a product's result, normalized perhaps."""
    maker = info.makers.get(tensor)
    while maker is not None and maker.op_type == "BatchNormalization" and maker.inputs:
        maker = info.makers.get(maker.inputs[0])
    return maker is not None and maker.op_type in QUANTIZABLE_OPS


def _only_dequantized(layer: EngineLayer, info: EngineInfo) -> bool:
    """Whether all that reads what a layer writes dequantizes it, or moves it to what does."""
    io = {tensor.name for tensor in info.io}
    read = {t.name: info.layers_reading.get(t.name, ()) for t in layer.outputs}
    return (
        bool(read)
        and all(readers and tensor not in io for tensor, readers in read.items())
        and all(
            reader.role is Role.REFORMAT
            and (reader.changes_type or _only_dequantized(reader, info))
            for readers in read.values()
            for reader in readers
        )
    )
