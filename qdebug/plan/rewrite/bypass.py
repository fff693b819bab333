"""Remove Q/DQ pairs of activations from isolated layers, to measure what each pair adds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from qdebug.plan.rewrite.cut import LocalGraph
from qdebug.plan.rewrite.edit import check


@dataclass(frozen=True)
class Pair:
    """A Q/DQ pair through which a layer reads an activation.

    Attributes:
        source: the reference tensor.
        quantized: what QuantizeLinear reads: `source`, or `source` in FP16.
        restored: the output of DequantizeLinear.
    """

    source: str
    quantized: str
    restored: str


def pairs_of(local: LocalGraph) -> dict[str, tuple[Pair, ...]]:
    """The pairs that each layer reads, in the order it reads them."""
    walker = _Walker(local.proto)
    return {layer: walker.pairs(output) for layer, output in local.outputs.items()}


def bypass(local: LocalGraph, chosen: Mapping[str, Collection[Pair]]) -> onnx.ModelProto:
    """`local` with these layers reading the tensors of these pairs unquantized.

    Raises:
        PlanError: as `check`.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(local.proto)
    walker = _Walker(proto)
    kinds = _half_sources(proto)
    casts: dict[tuple[str, int], str] = {}
    for layer, pairs in chosen.items():
        plain = {pair.restored: pair.quantized for pair in pairs}
        for node in walker.branch(local.outputs[layer]):
            for i, tensor in enumerate(node.input):
                if tensor in plain:
                    wanted = TensorProto.FLOAT16 if _gives_half(walker, tensor) else None
                    node.input[i] = _as(plain[tensor], wanted, kinds, casts)
    new = [
        helper.make_node("Cast", [source], [result], f"{result}:cast", to=kind)
        for (source, kind), result in casts.items()
    ]
    inputs = {v.name for v in proto.graph.input}
    for node in reversed(new):  # a cast reads an input of the graph, or another cast of one
        at = 0 if node.input[0] in inputs else _after(proto, node.input[0])
        proto.graph.node.insert(at, node)
    return check(proto, "the graph of layers without Q/DQ")


def _as(
    tensor: str, wanted: int | None, halves: set[str], casts: dict[tuple[str, int], str]
) -> str:
    """`tensor` in the type that the reader had: cast where Q reads another type than DQ gives."""
    kind = wanted or TensorProto.FLOAT
    is_half = tensor in halves
    if is_half == (kind == TensorProto.FLOAT16):
        return tensor
    return casts.setdefault((tensor, kind), f"{tensor}:as{kind}")


class _Walker:
    """Walks upwards from the outputs of layers."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.producers = {t: n for n in proto.graph.node for t in n.output if t}
        self.constants = {t.name: t for t in proto.graph.initializer}

    def branch(self, output: str) -> list[onnx.NodeProto]:
        """The nodes that `output` depends on, last one first."""
        found: dict[str, onnx.NodeProto] = {}
        waiting = [output]
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is not None and node.name not in found:
                found[node.name] = node
                waiting += reversed([t for t in node.input if t])
        return list(found.values())

    def pairs(self, output: str) -> tuple[Pair, ...]:
        """The pairs in the branch of `output`."""
        found = {}
        for node in self.branch(output):
            if node.op_type != "DequantizeLinear":
                continue
            quantizer = self.producers.get(node.input[0])
            if quantizer is None or quantizer.op_type != "QuantizeLinear":
                continue  # the codes of a weight
            source = quantizer.input[0]
            origin = self.producers.get(source)
            while origin is not None and origin.op_type in ("Cast", "Identity"):
                source = origin.input[0]
                origin = self.producers.get(source)
            if origin is None and source not in self.constants:
                found[node.output[0]] = Pair(source, quantizer.input[0], node.output[0])
        return tuple(found.values())


def _gives_half(walker: _Walker, restored: str) -> bool:
    """Whether a DequantizeLinear gives FP16: the type of its scale."""
    scale = walker.constants.get(walker.producers[restored].input[1])
    return scale is not None and scale.data_type == TensorProto.FLOAT16


def _half_sources(proto: onnx.ModelProto) -> set[str]:
    """Tensors in FP16: inputs, and those that casts make."""
    half = {
        v.name for v in proto.graph.input if v.type.tensor_type.elem_type == TensorProto.FLOAT16
    }
    for node in proto.graph.node:
        kind = next((a.i for a in node.attribute if a.name == "to"), None)
        half_source = node.op_type == "Identity" and node.input[0] in half
        if half_source or (node.op_type == "Cast" and kind == TensorProto.FLOAT16):
            half.add(node.output[0])
    return half


def _after(proto: onnx.ModelProto, tensor: str) -> int:
    return next(i for i, n in enumerate(proto.graph.node) if tensor in n.output) + 1
