"""Isolate layers: a graph in which each chosen layer reads reference activations.

Its inputs are tensors of the reference run, its outputs what the layers of the lowered model
compute from them. Fed with the reference's tensors, it gives the *local* error of every layer in
one pass instead of one run per layer. It works on any model with Q/DQ, including the user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto, helper

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.network.subgraphs import free_name, rename_reads
from qdebug.network.weights import renamed
from qdebug.plan.quantize import QUANTIZERS
from qdebug.plan.rewrite.edit import check, copy_node, make_node

_NARROW: Mapping[int, str] = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}

INSERTED_OPS = QUANTIZERS | {"DequantizeLinear", "Cast"}


@dataclass(frozen=True)
class LocalGraph:
    """Isolated layers.

    Attributes:
        proto: the graph; its inputs are tensors of the reference, under their own names.
        outputs: layer name -> the graph output that holds the layer's result.
        originals: tensor that a layer computes here -> its name in the lowered model.
        reads: layer name -> the reference tensors to feed that its result depends on.
    """

    proto: onnx.ModelProto
    outputs: Mapping[str, str]
    originals: Mapping[str, str]
    reads: Mapping[str, frozenset[str]]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The reference tensors to feed."""
        return tuple(v.name for v in self.proto.graph.input)


def cut_layers(reference: Graph, lowered: Graph, layers: Iterable[Layer]) -> LocalGraph | None:
    """A graph of isolated `layers` of the lowered model; None when there are none.

    Layers with subgraphs and layers that read only constants are left out.

    Raises:
        PlanError: as `check`.
    """
    cutter = _Cutter(reference, lowered)
    outputs = {}
    for layer in layers:
        output = cutter.add(layer)
        if output:
            outputs[layer.name] = output
    if not outputs:
        return None
    proto = check(cutter.finish(), "the graph of isolated layers")
    return LocalGraph(proto, outputs, cutter.originals, cutter.reads)


@dataclass
class Branch:
    """The nodes of one layer in the lowered model, with the Q/DQ and Cast nodes around them."""

    own: frozenset[str]
    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)
    """Tensor of the lowered model -> the reference tensor to feed in its place."""


class Branches:
    """Finds what each layer of the lowered model computes from tensors of the reference."""

    def __init__(self, reference: Graph, lowered: Graph) -> None:
        self.reference = reference
        self.lowered = lowered

    def of(self, layer: Layer) -> Branch | None:
        """Where a layer reads nothing but constants, has a subgraph, or is not there: None."""
        last = self.lowered.producers.get(layer.output)
        if last is None:
            return None
        branch = Branch(frozenset({*layer.nodes, last.name}))
        if not self._collect(branch, layer.output) or not branch.leaves:
            return None
        return branch

    def _collect(self, branch: Branch, tensor: str) -> bool:
        """Walk up from `tensor` to reference tensors; False where a subgraph is in the way."""
        if tensor in self.lowered.initializers or tensor in branch.leaves:
            return True
        producer = self.lowered.producers.get(tensor)
        if producer is not None and producer.name in branch.nodes:
            return True
        source = self._reference_of(branch, tensor, producer)
        if source is not None:
            branch.leaves[tensor] = source
            return True
        assert producer is not None  # a tensor that nothing computes is its own source
        if producer.implicit_inputs:
            return False
        branch.nodes[producer.name] = producer
        # A list, not a generator: every branch must be walked.
        found = [self._collect(branch, t) for t in producer.reads]
        return all(found)

    def _reference_of(self, branch: Branch, tensor: str, producer: Node | None) -> str | None:
        """The reference tensor that `tensor` stands for. None where the walk goes on, because a
        node of the layer computes it, or a Q/DQ or Cast that the reference does not have."""
        if producer is None:
            return tensor  # an input of the model
        if producer.name in branch.own:
            return None
        same = self.reference.by_name.get(producer.name)
        if same is not None and same.op_type == producer.op_type:
            return same.outputs[producer.outputs.index(tensor)]
        if producer.op_type in INSERTED_OPS:
            return None
        # The nodes of a user's Q/DQ model may have other names than those of its FP32 reference.
        known = self.reference.producers.get(tensor)
        return None if known is None or known.name in branch.own else tensor


class _Cutter:
    def __init__(self, reference: Graph, lowered: Graph) -> None:
        self._branches = Branches(reference, lowered)
        self.reference = reference
        self.lowered = lowered
        self._order = {n.name: i for i, n in enumerate(lowered.nodes)}
        self._taken = {*reference.tensors, *lowered.tensors}
        self._names: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._shared: dict[str, dict[str, str]] = {}
        self._inputs: dict[str, None] = {}
        self._narrow: dict[tuple[str, int], str] = {}
        self._outputs: dict[str, str] = {}
        self.originals: dict[str, str] = {}
        self.reads: dict[str, frozenset[str]] = {}

    def add(self, layer: Layer) -> str | None:
        """Add `layer`; return the name of its output, or None where it cannot be isolated."""
        branch = self._branches.of(layer)
        if branch is None:
            return None
        renamed = {t: self._feed(t, source) for t, source in branch.leaves.items()}
        local: set[str] = set()
        for name in sorted(branch.nodes, key=self._order.__getitem__):
            node = branch.nodes[name]
            if name in branch.own or not local.isdisjoint(node.reads):
                local.update(node.outputs)
                own = {t: free_name(f"{t}:local", self._taken) for t in node.outputs if t}
                self.originals |= {new: old for old, new in own.items()}
                renamed |= own
            elif name in self._shared:
                renamed |= self._shared[name]
                continue
            else:
                # A pair before an output of a quantized model writes a tensor that bears the name
                # of the reference's, which is an input here.
                theirs = [t for t in node.outputs if t in self.reference.producers]
                self._shared[name] = {t: free_name(f"{t}:pair", self._taken) for t in theirs}
                renamed |= self._shared[name]
            self._emit(self.lowered.protos[name], renamed)
        output = renamed[layer.output]
        self._outputs[output] = layer.output
        self.reads[layer.name] = frozenset(branch.leaves.values())
        return output

    def finish(self) -> onnx.ModelProto:
        """The graph of all layers added."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.lowered.proto)
        graph = proto.graph
        for part in ("node", "input", "output", "value_info", "initializer"):
            graph.ClearField(part)
        graph.node.extend(self._nodes)
        used = {t for node in self._nodes for t in node.input}
        for name in sorted(used & set(self.lowered.initializers)):
            graph.initializer.append(renamed(self.lowered.initializers[name], name))
        graph.input.extend(self._value(self.reference, t, t) for t in self._inputs)
        graph.output.extend(
            self._value(self.lowered, tensor, name) for name, tensor in self._outputs.items()
        )
        return proto

    def _feed(self, tensor: str, source: str) -> str:
        """The input for reference tensor `source`, as narrow as the lowered `tensor` is."""
        self._inputs[source] = None
        kind = self.lowered.types.get(tensor, 0)
        if kind == self.reference.types.get(source) or kind not in _NARROW:
            return source
        if (source, kind) not in self._narrow:
            narrow = free_name(f"{source}:{_NARROW[kind]}", self._taken)
            self._narrow[source, kind] = narrow
            name = free_name(narrow, self._names)
            self._nodes.append(make_node("Cast", [source], narrow, name, to=kind))
        return self._narrow[source, kind]

    def _emit(self, proto: onnx.NodeProto, renamed: dict[str, str]) -> None:
        node = copy_node(proto)
        node.name = free_name(node.name, self._names)  # two branches may hold one node
        rename_reads(node, renamed)
        for i, tensor in enumerate(node.output):
            node.output[i] = renamed.get(tensor, tensor)
        self._nodes.append(node)

    @staticmethod
    def _value(graph: Graph, tensor: str, name: str) -> onnx.ValueInfoProto:
        kind = graph.types.get(tensor, TensorProto.FLOAT)
        shape = None if tensor in graph.unsure_ranks else graph.shapes.get(tensor)
        return helper.make_tensor_value_info(name, kind, shape)
