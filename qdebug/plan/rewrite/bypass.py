"""Remove Q/DQ pairs from isolated layers, to measure what each pair adds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from qdebug.network.graph import Graph, Node
from qdebug.plan.quantize import quantizer_of
from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.edit import Editor, copy_node
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
    graph = Graph.inferred(local.proto, data_prop=False)
    plain: dict[str, dict[str, str]] = {}  # node -> what it reads -> what it shall read
    for layer, pairs in chosen.items():
        instead = {pair.restored: pair.quantized for pair in pairs}
        for node in _branch(graph, local.outputs[layer]):
            plain.setdefault(node.name, {}).update(instead)
    final = set(local.outputs.values())
    last = {p.restored: p for pairs in chosen.values() for p in pairs if p.restored in final}
    editor = Editor(graph)
    casts: dict[tuple[str, int], str] = {}
    for proto in graph.proto.graph.node:
        if proto.output[0] in last:  # nothing reads the pair: it is what the layer gives
            pair = last[proto.output[0]]
            kind = graph.types.get(pair.restored, onnx.TensorProto.FLOAT)
            editor.add("Cast", pair.quantized, output=pair.restored, name=proto.name, to=kind)
            continue
        node_copy = copy_node(proto)
        for i, tensor in enumerate(proto.input):
            source = plain.get(proto.name, {}).get(tensor)
            if source is None:
                continue
            kind = graph.types.get(tensor, onnx.TensorProto.FLOAT)
            if (
                graph.types.get(source, onnx.TensorProto.FLOAT) != kind
            ):  # Q reads another type than DQ gives
                if (source, kind) not in casts:
                    casts[source, kind] = editor.add("Cast", source, name=f"{source}_cast", to=kind)
                source = casts[source, kind]
            node_copy.input[i] = source
        editor.emit(node_copy)
    if show_inner:
        shown = dict.fromkeys(p.quantized for pairs in chosen.values() for p in pairs if p.inner)
        editor.proto.graph.output.extend(
            helper.make_tensor_value_info(t, graph.types[t], None) for t in shown
        )
    return editor.finish("the graph of layers without Q/DQ")


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
