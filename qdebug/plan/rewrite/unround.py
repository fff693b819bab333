"""Take the rounding out of some layers of a quantized model, and leave it in the others.

A layer rounds what its nodes read through Q/DQ pairs, its constants, and what it computes between
its own nodes. Without its rounding it reads what those pairs quantize, and the constants of the
FP32 model. Other readers of the same pairs still read them. What the layer writes is rounded where
others read it, as before; only a pair that writes an output of the model belongs to the layer that
computes that output, or to the Concat whose values are only moved from there on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.network.subgraphs import all_names, free_name, rename_reads
from qdebug.network.weights import tensor_of
from qdebug.plan.quantize import QUANTIZERS, grid_of, quantizer_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.cut import Branches
from qdebug.plan.rewrite.edit import copy_node, make_node
from qdebug.plan.rewrite.qoperator import moves
from qdebug.plan.rewrite.refine import with_fp32_constants
from qdebug.plan.rewrite.strip import dequantized

_PAIRS = QUANTIZERS | {"DequantizeLinear"}


@dataclass(frozen=True)
class Unrounded:
    """A quantized model of which some layers may be taken without rounding.

    Attributes:
        graph: the model, and the constants that layers without rounding read.
        plain: node -> as it computes without rounding, where that differs.
        copies: tensor that only nodes of `plain` read -> the node that makes it.
        owners: node -> the layer that it belongs to; nodes of no layer are left out.
        lazy: nodes that are left out where nothing reads what they write.
        changed: layers that keep constants of their own without rounding, which are no roundings
            of the FP32 model's.
    """

    graph: Graph
    plain: Mapping[str, onnx.NodeProto]
    copies: Mapping[str, onnx.NodeProto]
    owners: Mapping[str, str]
    lazy: Collection[str]
    changed: tuple[str, ...]

    @property
    def layers(self) -> tuple[str, ...]:
        """Layers that round anything, in execution order."""
        found = (self.owners.get(n.name) for n in self.graph.nodes if n.name in self.plain)
        return tuple(dict.fromkeys(x for x in found if x is not None))


def unrounded(reference: Graph, candidate: Graph, layers: Iterable[Layer]) -> Unrounded:
    """`candidate`, a quantized model in the names of `reference`, prepared to be taken without
    the rounding of any of `layers`.

    Raises:
        PlanError: as `check`.
    """
    exact = with_fp32_constants(reference, candidate, biases=True)
    graph, renamed = _prepared(candidate, exact.graph)
    walk = _Walk(reference, graph, exact.graph, renamed)
    layers = list(layers)
    walk.find_owners(layers)
    plain = {}
    for node in graph.nodes:
        if node.name not in walk.lazy:
            proto = walk.plain_node(node)
            if proto != graph.protos[node.name]:
                plain[node.name] = proto
    changed = tuple(x.name for x in layers if not exact.changed.keys().isdisjoint(x.nodes))
    return Unrounded(graph, plain, walk.copies, walk.owners, walk.lazy, changed)


def _prepared(candidate: Graph, exact: Graph) -> tuple[Graph, dict[str, str]]:
    """`candidate` with the constants of `exact` too, whose own constants are dequantized, and whose
    outputs are written by nodes that nothing else reads; and the new names of tensors."""
    tensors, nodes = all_names(exact.proto.graph)
    proto = onnx.ModelProto()
    proto.CopyFrom(candidate.proto)
    del proto.graph.node[:]
    known = candidate.initializers
    proto.graph.initializer.extend(x for x in exact.proto.graph.initializer if x.name not in known)
    renamed = {
        t: free_name(f"{t}_rounded", tensors)
        for t in candidate.outputs
        if (maker := candidate.producers.get(t)) is not None and maker.op_type in _PAIRS
    }
    for original in candidate.proto.graph.node:
        values = _constant_of(candidate, candidate.by_name[original.name])
        if values is not None:
            proto.graph.initializer.append(values)
            continue
        node = copy_node(original)
        rename_reads(node, renamed)
        node.output[:] = [renamed.get(t, t) for t in original.output]
        proto.graph.node.append(node)
    for output, rounded in renamed.items():
        name = free_name(f"{output}_output", nodes)
        proto.graph.node.append(make_node("Identity", [rounded], output, name))
        proto.graph.value_info.append(onnx.ValueInfoProto(name=rounded))
        proto.graph.value_info[-1].type.tensor_type.elem_type = candidate.types.get(
            output, TensorProto.FLOAT
        )
    return Graph(proto), renamed


def _constant_of(graph: Graph, node: Node) -> TensorProto | None:
    """What a DequantizeLinear makes of constant integers; None for another node."""
    if node.op_type != "DequantizeLinear" or node.outputs[0] in graph.outputs:
        return None
    codes, *others = [graph.constant(t) for t in node.inputs if t]
    if codes is None or codes.dtype.kind not in "iu" or any(value is None for value in others):
        return None
    with np.errstate(over="ignore"):
        return tensor_of(dequantized(graph, node), node.outputs[0])


class _Walk:
    def __init__(
        self, reference: Graph, graph: Graph, exact: Graph, renamed: dict[str, str]
    ) -> None:
        self.reference = reference
        self.graph = graph
        self.exact = exact
        self.renamed = renamed
        self.copies: dict[str, onnx.NodeProto] = {}
        self.owners: dict[str, str] = {}
        self._shared: set[str] = set()
        self._names: dict[str, str] = {}
        self._tensors, self._nodes = all_names(graph.proto.graph)
        constants = ConstantValues(graph)
        self.lazy = frozenset(
            n.name
            for n in graph.nodes
            if n.op_type in _PAIRS or all(constants.is_constant(t) for t in n.outputs if t)
        )

    def find_owners(self, layers: Iterable[Layer]) -> None:
        """Which nodes belong to which layer; those between the tensors that several layers read and
        the FP32 model's belong to none."""
        branches = Branches(self.reference, self.graph)
        readers: Counter[str] = Counter()
        found: list[tuple[str, Collection[str]]] = []
        last: dict[str, str] = {}
        for layer in layers:
            branch = branches.of(layer)
            if branch is None:
                continue
            own = [n for n in branch.nodes if n not in self.lazy]
            if self._moves_only(layer):
                joins = self._joins(layer.name)
                if joins and any(self._is_output(n) for n in own):
                    last |= dict.fromkeys(own, joins)
                continue
            readers.update(own)
            found.append((layer.name, own))
        for name, nodes in found:
            self.owners |= {n: name for n in nodes if readers[n] == 1}
        self.owners |= {n: self.owners[joins] for n, joins in last.items() if joins in self.owners}
        self._shared = {n for n, count in readers.items() if count > 1}

    def plain_node(self, node: Node) -> onnx.NodeProto:
        """The node without rounding."""
        known = self.exact.protos.get(node.name)
        proto = copy_node(self.graph.protos[node.name] if known is None else known)
        rename_reads(proto, self.renamed)
        given = {t for t in node.reads if t not in self.graph.initializers}
        names = {t: self.plain_tensor(t) for t in given}
        rename_reads(proto, {old: new for old, new in names.items() if old != new})
        for i, tensor in enumerate(node.inputs[: len(proto.input)]):
            if proto.input[i] in self.exact.initializers:  # FP32, of a node that may be in FP16
                proto.input[i] = self._of_type(proto.input[i], tensor)
        return proto

    def plain_tensor(self, tensor: str) -> str:
        """What a tensor is without the rounding that its reader adds."""
        if tensor not in self._names:
            self._names[tensor] = self._plain(tensor)
        return self._names[tensor]

    def _plain(self, tensor: str) -> str:
        node = self.graph.producers.get(tensor)
        if node is None:
            return tensor
        if node.op_type == "DequantizeLinear":
            quantizer = quantizer_of(self.graph, node)
            if quantizer is None:
                return tensor
            source = self.plain_tensor(quantizer.inputs[0])
            mover = self.graph.producers.get(source)
            if mover is not None and self._repeated(mover, quantizer):
                source = self._copied(mover, source)
            return self._of_type(source, tensor)
        if node.name in self._shared:
            return self._copied(node, tensor)
        return tensor

    def _copied(self, node: Node, tensor: str) -> str:
        """`tensor` as `node` makes it of what is not rounded."""
        proto = self.plain_node(node)
        if list(proto.input) == list(self.graph.protos[node.name].input):
            return tensor
        proto.name = free_name(f"{node.name}_plain", self._nodes)
        names = {t: free_name(f"{t}_plain", self._tensors) for t in node.outputs if t}
        proto.output[:] = [names.get(t, t) for t in node.outputs]
        self.copies |= dict.fromkeys(names.values(), proto)
        return names[tensor]

    def _of_type(self, source: str, tensor: str) -> str:
        """`source` in the type of `tensor`."""
        kinds = self.graph.types.get(source), self.graph.types.get(tensor)
        if None in kinds or kinds[0] == kinds[1]:
            return source
        name = free_name(f"{source}_cast", self._tensors)
        node = free_name(name, self._nodes)
        self.copies[name] = make_node("Cast", [source], name, node, to=kinds[1])
        return name

    def _moves_only(self, layer: Layer) -> bool:
        """Whether a layer rounds only what all its readers round to the same codes: it moves the
        values."""
        node = self.graph.by_name.get(layer.name)
        if node is None or len(layer.nodes) > 1:
            return False
        readers = [r for t in node.outputs for r in self.graph.consumers.get(t, ())]
        shown = any(t in self.graph.outputs for t in node.outputs)
        return bool(readers) and not shown and all(self._repeated(node, r) for r in readers)

    def _joins(self, mover: str) -> str:
        """The Concat whose values a node moves, over other nodes that do; "" for none."""
        node: Node | None = self.graph.by_name[mover]
        while node is not None and (node.op_type in _PAIRS or moves(self.graph, node)):
            node = self.graph.producers.get(node.inputs[0])
        return node.name if node is not None and node.op_type == "Concat" else ""

    def _is_output(self, node: str) -> bool:
        return any(t in self.graph.outputs for t in self.graph.by_name[node].outputs)

    def _repeated(self, mover: Node, quantizer: Node) -> bool:
        """Whether what is quantized was quantized to the same codes before it was moved."""
        if quantizer.op_type != "QuantizeLinear" or not moves(self.graph, mover):
            return False
        before = self.graph.producers.get(mover.inputs[0])
        if before is None or before.op_type != "DequantizeLinear":
            return False
        mine, its = (grid_of(self.graph, n) for n in (quantizer, before))
        if mine is None or its is None or mine.axis is not None or its.axis is not None:
            return False
        same = mine.scale == its.scale and mine.zero_point == its.zero_point
        return bool(same) and mine.format == its.format
