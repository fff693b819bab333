"""Remove Q/DQ pairs from isolated layers, to measure what each pair adds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from qdebug.network.graph import Graph, Node
from qdebug.plan.imported import import_quantized
from qdebug.plan.quantize import quantizer_of
from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.edit import check
from qdebug.plan.rewrite.restore import bounds_of


@dataclass(frozen=True)
class Pair:
    """A Q/DQ pair through which a layer reads an activation, or one between its own nodes.

    Attributes:
        source: the reference tensor; of an inner pair that of the lowered model.
        quantized: what QuantizeLinear reads: `source`, or `source` in FP16.
        restored: the output of DequantizeLinear.
        inner: it rounds what the layer itself computes.
        dynamic: its range is taken from the values of each execution.
        bounds: of the Relu or Clip that alone reads what it restores, None for none: beyond them
            its error does not matter.
    """

    source: str
    quantized: str
    restored: str
    inner: bool = False
    dynamic: bool = False
    bounds: tuple[float | None, float | None] | None = None


def pairs_of(local: LocalGraph) -> dict[str, tuple[Pair, ...]]:
    """The pairs that each layer reads, in the order it reads them."""
    graph = Graph(local.proto)
    return {layer: _pairs(graph, local, output) for layer, output in local.outputs.items()}


def bypass(
    local: LocalGraph, chosen: Mapping[str, Collection[Pair]], *, show_inner: bool = False
) -> onnx.ModelProto:
    """`local` with these layers reading the tensors of these pairs unquantized.

    Args:
        show_inner: give what the inner pairs would quantize as outputs too.

    Raises:
        PlanError: as `check`.
    """
    model = import_quantized(Graph.inferred(local.proto, data_prop=False))
    for layer, pairs in chosen.items():
        restored = [model.renamed.get(pair.restored, pair.restored) for pair in pairs]
        instead = {tensor: model.before[tensor] for tensor in restored}
        branch = _branch(model.graph, local.outputs[layer])
        model = model.reading({node.name: instead for node in branch})
    if not show_inner:
        return model.lowered
    proto = onnx.ModelProto()
    proto.CopyFrom(model.lowered)
    for tensor in dict.fromkeys(p.quantized for pairs in chosen.values() for p in pairs if p.inner):
        kind = model.graph.types[tensor]
        proto.graph.output.append(helper.make_tensor_value_info(tensor, kind, None))
    return check(proto, "the graph of layers without Q/DQ")


def _branch(graph: Graph, output: str) -> list[Node]:
    """The nodes that `output` depends on, last one first."""
    found: dict[str, Node] = {}
    waiting = [output]
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is not None and node.name not in found:
            found[node.name] = node
            waiting += reversed([t for t in node.inputs if t])
    return list(found.values())


def _pairs(graph: Graph, local: LocalGraph, output: str) -> tuple[Pair, ...]:
    """The pairs in the branch of `output`."""
    found = {}
    for node in _branch(graph, output):
        if node.op_type != "DequantizeLinear":
            continue
        quantizer = quantizer_of(graph, node)
        if quantizer is None:
            continue  # the codes of a weight
        dynamic = quantizer.op_type == "DynamicQuantizeLinear"
        restored, source = node.outputs[0], quantizer.inputs[0]
        readers = graph.consumers.get(restored, ())
        bounds = bounds_of(graph, readers[0]) if len(readers) == 1 else None
        inner = local.originals.get(source)
        if inner is not None:
            found[restored] = Pair(inner, source, restored, True, dynamic, bounds)
            continue
        origin = graph.producers.get(source)
        while origin is not None and origin.op_type in ("Cast", "Identity"):
            source = origin.inputs[0]
            origin = graph.producers.get(source)
        if origin is None and source not in graph.initializers:
            found[restored] = Pair(source, quantizer.inputs[0], restored, False, dynamic, bounds)
    return tuple(found.values())
