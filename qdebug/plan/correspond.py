"""Which tensor of a quantized model stands for which tensor of its FP32 model.

A quantizer inserts, renames, folds and leaves out nodes. So the two graphs are walked side by side
in execution order, through Q/DQ pairs: a node corresponds to the one that computes the same from
what corresponds to its inputs. Between nodes that fit alike their weights decide, then their names;
names also where the walk finds nothing. Whether what was matched is the same quantity is measured
afterwards (pipeline/proof.py); here nothing is computed but distances of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import onnx

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.network.subgraphs import free_name, rename_reads
from qdebug.plan.quantize import QUANTIZERS, quantizer_of
from qdebug.plan.rewrite.constants import ConstantValues
from qdebug.plan.rewrite.edit import copy_node
from qdebug.plan.rewrite.restore import Absorbed, absorbs, bounds_of
from qdebug.types import Array

_ALIKE: Sequence[frozenset[str]] = (
    frozenset({"Gemm", "MatMul"}),
    frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"}),
    frozenset({"Upsample", "Resize"}),
    frozenset({"GlobalAveragePool", "ReduceMean"}),
    frozenset({"Relu", "Clip"}),
)
"""Operators that may compute the same; the measurement decides."""
_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
_PASSING = frozenset({"Identity", "Cast", "Dropout"})
_UNRELATED = 0.7
"""Of weights that are further apart, relative to their norm, neither is made from the other."""
_CLEARLY = 0.5
"""A weight that is to decide between nodes is at most half as far away as any other."""


class How(StrEnum):
    """By what a tensor was matched."""

    NAME = "name"
    STRUCTURE = "structure"
    WEIGHT = "weight"


@dataclass(frozen=True)
class Match:
    """A tensor of the FP32 model and the one that stands for it.

    Attributes:
        tensor: of the FP32 model.
        candidate: of the quantized model, as the user's file names it.
        how: what they were matched by.
        transformation: what is done to the candidate's values before they are compared, such as
            "after Relu"; "" for nothing.
    """

    tensor: str
    candidate: str
    how: How
    transformation: str = ""


@dataclass(frozen=True)
class Unmatched:
    """A tensor of the FP32 model that nothing stands for, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True)
class Proof:
    """Whether tensors that were matched are the same quantity, as samples show.

    Attributes:
        samples: how many were looked at.
        proven: tensors of the FP32 model that are the same without rounding.
        unproven: tensor -> why it is not: weights that are no rounding of the FP32 model's.
        refuted: tensors that are something else.
        changed: node -> what is no rounding among its constants, for people.
    """

    samples: int
    proven: tuple[str, ...]
    unproven: Mapping[str, str]
    refuted: tuple[Unmatched, ...]
    changed: Mapping[str, str]


@dataclass(frozen=True)
class Alignment:
    """A quantized model in the names of its FP32 model.

    Attributes:
        graph: the quantized model, in which a tensor or node has the name of one of the FP32 model
            if and only if it stands for it.
        matches: in execution order.
        absorbed: activations that its quantizers took the place of, in the new names.
        unmatched: tensors of the FP32 model.
    """

    graph: Graph
    matches: tuple[Match, ...]
    absorbed: tuple[Absorbed, ...]
    unmatched: tuple[Unmatched, ...]


def align(reference: Graph, quantized: Graph) -> Alignment:
    """Match the tensors of two models. Model inputs and outputs keep their names."""
    walk = _Walk(reference, quantized)
    for node in reference.nodes:
        if node.op_type != "Constant" and any(reference.is_float(t) for t in node.outputs if t):
            walk.visit(node)
    for tensor in reference.outputs:
        walk.match_output(tensor)
    return walk.alignment()


@dataclass
class _Walk:
    """What was found so far."""

    reference: Graph
    quantized: Graph
    tensors: dict[str, str] = field(default_factory=dict)
    """Reference tensor -> quantized tensor."""
    how: dict[str, How] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    """Quantized node -> reference node."""
    stands: dict[str, str] = field(default_factory=dict)
    """Reference tensor -> root of the quantized tensor that later nodes read in its place."""
    fused: dict[str, Node] = field(default_factory=dict)
    """Reference product -> the quantized node that adds its bias as well."""
    absorbed: list[Absorbed] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = ConstantValues(self.quantized)
        self.known = ConstantValues(self.reference)
        self.readers: dict[str, list[Node]] = {}
        for node in self.quantized.nodes:
            if node.op_type in {*QUANTIZERS, "DequantizeLinear", *_PASSING, "Constant"}:
                continue
            for root in dict.fromkeys(_root(self.quantized, t) for t in node.reads):
                self.readers.setdefault(root, []).append(node)
        self.stands |= {spec.name: spec.name for spec in self.reference.inputs}

    def visit(self, node: Node) -> None:
        """Find what stands for the outputs of a reference node."""
        passes = node.op_type in _PASSING and self.reference.is_float(node.inputs[0])
        if passes and node.outputs[0] not in self.reference.outputs:
            root = self.stands.get(_root(self.reference, node.inputs[0]))
            if root is not None:
                self.stands[node.outputs[0]] = root
            self.reasons[node.outputs[0]] = f"it only passes on '{node.inputs[0]}'"
            return
        found, how = self._found(node)
        if found is None:
            self._missing(node)
            return
        self.nodes[found.name] = node.name
        last = found if len(node.outputs) > 1 else self._last(node, found)
        if last is None:
            self.fused[node.outputs[0]] = found
            self.reasons[node.outputs[0]] = (
                f"the quantized model adds the bias within '{found.name}'"
            )
            return
        for mine, other in zip(node.outputs, last.outputs, strict=False):
            if mine and other:
                self._match(mine, other, how)

    def match_output(self, tensor: str) -> None:
        """An output of both models is compared, whatever computes it."""
        if tensor in self.quantized.outputs and self.tensors.get(tensor) != tensor:
            self._match(tensor, tensor, How.NAME)

    def _match(self, mine: str, other: str, how: How) -> None:
        self.tensors[mine] = other
        self.stands[mine] = other
        self.how[mine] = How.NAME if mine == other else how
        self.reasons.pop(mine, None)

    def _found(self, node: Node) -> tuple[Node | None, How]:
        """The quantized node that computes what `node` does."""
        if node.op_type == "Add":
            fused = next((self.fused[t] for t in node.inputs if t in self.fused), None)
            if fused is not None:
                return fused, How.STRUCTURE
        fitting = [n for n in self._readers_of_inputs(node) if self._fits(node, n)]
        chosen = self._chosen(node, fitting)
        if chosen is not None:
            return chosen, How.STRUCTURE
        if not fitting:
            chosen = self._by_weight(node)
            if chosen is not None:
                return chosen, How.WEIGHT
            chosen = self._by_name(node)
            if chosen is not None:
                return chosen, How.NAME
        else:
            names = ", ".join(f"'{n.name}'" for n in fitting[:3])
            self.reasons[node.outputs[0]] = f"several nodes of the quantized model fit: {names}"
        return None, How.STRUCTURE

    def _readers_of_inputs(self, node: Node) -> list[Node]:
        """Quantized nodes that read what stands for all computed inputs of `node`."""
        roots = []
        for tensor in node.reads:
            if self.known.is_constant(tensor) or not self.reference.is_float(tensor):
                continue
            root = self.stands.get(tensor)
            if root is None:
                return []
            roots.append(root)
        if not roots:
            return []
        return [
            n
            for n in self.readers.get(_root(self.quantized, roots[0]), [])
            if self._reads_in_order(node, n, [_root(self.quantized, r) for r in roots])
        ]

    def _reads_in_order(self, node: Node, other: Node, roots: Sequence[str]) -> bool:
        computed = [
            _root(self.quantized, t)
            for t in other.reads
            if not self.values.is_constant(t) and self.quantized.is_float(_root(self.quantized, t))
        ]
        if node.op_type in _COMMUTATIVE:
            return sorted(computed) == sorted(roots)
        return computed == list(roots)

    def _fits(self, node: Node, other: Node) -> bool:
        """Whether the operator, its attributes and the sizes of its constants agree."""
        if other.name in self.nodes or other.domain != node.domain:
            return False
        same = node.op_type == other.op_type
        if not same and not any({node.op_type, other.op_type} <= kinds for kinds in _ALIKE):
            return False
        if self._other_size(node.outputs[0], other.outputs[0]):
            return False
        mine, its = bounds_of(self.reference, node), bounds_of(self.quantized, other)
        if mine is not None and its is not None:
            return mine == its
        return (not same or self._same_attributes(node, other)) and self._same_sizes(node, other)

    def _other_size(self, mine: str, other: str) -> bool:
        """Whether two tensors of one rank have an axis, but for the first, of different sizes: the
        channels of a layer may have been split, or pruned."""
        shapes = self.reference.shapes.get(mine), self.quantized.shapes.get(other)
        if shapes[0] is None or shapes[1] is None or len(shapes[0]) != len(shapes[1]):
            return False
        known = [
            (a, b)
            for a, b in zip(shapes[0][1:], shapes[1][1:], strict=True)
            if isinstance(a, int) and isinstance(b, int)
        ]
        return any(a != b for a, b in known)

    def _same_attributes(self, node: Node, other: Node) -> bool:
        mine = self.reference.attributes(node)
        its = self.quantized.attributes(other)
        keys = {"strides", "dilations", "group", "pads", "perm", "kernel_shape"}
        return all(mine[k] == its[k] for k in keys & mine.keys() & its.keys())

    def _same_sizes(self, node: Node, other: Node) -> bool:
        mine = [self.known.shape(t) for t in node.inputs[:2] if self.known.is_constant(t)]
        its = [self.values.shape(t) for t in other.inputs[:2] if self.values.is_constant(t)]
        if node.op_type not in QUANTIZABLE_OPS or not mine or not its:
            return True
        return sorted(mine[0]) == sorted(its[0])

    def _chosen(self, node: Node, fitting: Sequence[Node]) -> Node | None:
        fitting = [n for n in fitting if self._related(node, n)]
        if len(fitting) < 2:
            return next(iter(fitting), None)
        nearest = self._nearest(node, fitting)
        named = [n for n in fitting if n.name == node.name or n.outputs[0] == node.outputs[0]]
        return nearest or (named[0] if len(named) == 1 else None)

    def _related(self, node: Node, other: Node) -> bool:
        """Whether their weights may be of one origin, or their names say so."""
        if other.name == node.name or other.outputs[0] == node.outputs[0]:
            return True
        mine, its = self._weight(self.known, node), self._weight(self.values, other)
        if node.op_type not in QUANTIZABLE_OPS or mine is None or its is None:
            return True
        return _distance(mine, its) < _UNRELATED

    def _nearest(self, node: Node, fitting: Sequence[Node]) -> Node | None:
        """The node whose weight is clearly nearest to that of `node`."""
        weight = self._weight(self.known, node)
        if weight is None or not fitting:
            return None
        ranked = sorted(
            ((_distance(weight, self._weight(self.values, n)), i) for i, n in enumerate(fitting))
        )
        best, index = ranked[0]
        if best < 1 and (len(ranked) == 1 or best < _CLEARLY * ranked[1][0]):
            return fitting[index]
        return None

    @staticmethod
    def _weight(values: ConstantValues, node: Node) -> Array | None:
        constants = [t for t in node.inputs if t and values.is_constant(t)]
        return values.value(constants[0]) if constants else None

    def _by_weight(self, node: Node) -> Node | None:
        """A product of the same weight, wherever it is: behind nodes that were rewritten."""
        if node.op_type not in QUANTIZABLE_OPS:
            return None
        weight = self._weight(self.known, node)
        if weight is None or weight.size < 2:
            return None
        fitting = [
            n
            for n in self.quantized.nodes
            if n.op_type in QUANTIZABLE_OPS
            and self._fits(node, n)
            and self._weight(self.values, n) is not None
        ]
        return self._nearest(node, fitting)

    def _by_name(self, node: Node) -> Node | None:
        """The node of that name, or the one that writes the tensor of that name."""
        same = self.quantized.by_name.get(node.name)
        writer = self.quantized.producers.get(node.outputs[0])
        for other in (same, writer):
            if other is not None and self._fits(node, other):
                return other
        return None

    def _last(self, node: Node, found: Node) -> Node | None:
        """The quantized node after which the values are those of `node`: past a BatchNormalization
        that the FP32 model has folded, or a bias that it adds within. None where `found` adds a
        bias that the FP32 model adds afterwards."""
        own = node.op_type in QUANTIZABLE_OPS
        if not own:
            return found
        next_one = self._only_reader(self.reference, self.reference.consumers, node.outputs[0])
        adds = next_one is not None and self._adds_constant(self.known, next_one)
        has_bias = len(found.inputs) > 2 and bool(found.inputs[2])
        if adds and has_bias and len(node.inputs) < 3:
            return None
        last = found
        while True:
            readers = self.readers.get(last.outputs[0], [])
            if len(readers) != 1 or last.outputs[0] in self.quantized.outputs:
                return last
            after = readers[0]
            folded = after.op_type == "BatchNormalization" and not self._normalizes(next_one)
            added = self._adds_constant(self.values, after) and not adds and not has_bias
            if not folded and not (added and len(node.inputs) > 2):
                return last
            last = after

    def _normalizes(self, node: Node | None) -> bool:
        """Whether a reference node is a BatchNormalization, or an activation before one: what
        quantizes may have taken the activation's place."""
        while node is not None and bounds_of(self.reference, node) is not None:
            node = self._only_reader(self.reference, self.reference.consumers, node.outputs[0])
        return node is not None and node.op_type == "BatchNormalization"

    @staticmethod
    def _only_reader(
        graph: Graph, readers: Mapping[str, Sequence[Node]], tensor: str
    ) -> Node | None:
        found = readers.get(tensor, ())
        return found[0] if len(found) == 1 and tensor not in graph.outputs else None

    @staticmethod
    def _adds_constant(values: ConstantValues, node: Node) -> bool:
        return node.op_type == "Add" and any(values.is_constant(t) for t in node.inputs)

    def _missing(self, node: Node) -> None:
        """Nothing computes what `node` does: perhaps a quantizer took its place."""
        output = node.outputs[0]
        bounds = bounds_of(self.reference, node)
        source = self.stands.get(node.inputs[0]) if node.inputs else None
        if bounds is not None and source is not None:
            item = Absorbed(source, *bounds, node.inputs[0], output, node.name)
            if absorbs(self.quantized, item):
                self.absorbed.append(item)
                self.stands[output] = source
                return
            self.reasons[output] = (
                f"the quantized model has no {item.what} after '{source}', and what quantizes it "
                "does not clip at its bounds"
            )
            return
        for tensor in node.outputs:
            if tensor:
                self.reasons.setdefault(tensor, "no node of the quantized model computes it")

    def alignment(self) -> Alignment:
        """The quantized model in the names of the FP32 model, and what was found."""
        names = {other: mine for mine, other in self.tensors.items()}
        graph = _renamed(self.quantized, names, self.nodes, self.reference)
        absorbed = tuple(
            Absorbed(names.get(a.source, a.source), a.low, a.high, a.before, a.after, a.node)
            for a in self.absorbed
        )
        after = {a.after: a for a in self.absorbed}
        matches = []
        for node in self.reference.nodes:
            for tensor in node.outputs:
                if tensor in self.tensors:
                    matches.append(Match(tensor, self.tensors[tensor], self.how[tensor]))
                elif tensor in after:
                    item = after[tensor]
                    how = How.NAME if item.source == tensor else How.STRUCTURE
                    matches.append(Match(tensor, item.source, how, f"after {item.what}"))
        unmatched = tuple(
            Unmatched(t, self.reasons.get(t, "no node of the quantized model computes it"))
            for t in self.reference.activations()
            if t not in self.tensors and t not in after
        )
        return Alignment(graph, tuple(matches), absorbed, unmatched)


def _root(graph: Graph, tensor: str) -> str:
    """The tensor that `tensor` is, before it was quantized, cast or passed on."""
    while True:
        node = graph.producers.get(tensor)
        if node is None:
            return tensor
        if node.op_type == "DequantizeLinear":
            quantizer = quantizer_of(graph, node)
            if quantizer is None:
                return tensor
            tensor = quantizer.inputs[0]
        elif node.op_type in _PASSING and graph.is_float(node.inputs[0]):
            tensor = node.inputs[0]
        else:
            return tensor


def _distance(one: Array, other: Array | None) -> float:
    """How far two weights are apart, relative to the first; inf for other sizes. Filters are
    compared up to a factor for each channel: BatchNormalization may be folded into one only."""
    if other is None or one.size != other.size:
        return float("inf")
    mine, its = one.astype(np.float64), other.astype(np.float64)
    norm = float(np.linalg.norm(mine)) or 1.0
    if one.ndim > 2 and one.shape == other.shape:
        a, b = mine.reshape(len(mine), -1), its.reshape(len(its), -1)
        energy = np.maximum((b * b).sum(axis=1), 1e-300)
        factor = (a * b).sum(axis=1) / energy
        return float(np.linalg.norm(a - factor[:, None] * b)) / norm
    turned = one.ndim == other.ndim == 2 and one.shape == other.shape[::-1]
    candidates = [its.T] if turned else []
    if one.shape == other.shape or not turned:
        candidates.append(its.reshape(one.shape))
    return min(float(np.linalg.norm(mine - c)) for c in candidates) / norm


def _renamed(
    graph: Graph, tensors: Mapping[str, str], nodes: Mapping[str, str], reference: Graph
) -> Graph:
    """`graph` in which these tensors and nodes have new names, and no other one has a name of
    `reference`."""
    fixed = {*(spec.name for spec in graph.inputs), *graph.outputs}
    theirs = {t for n in reference.nodes for t in n.outputs}
    taken = {*graph.tensors, *graph.outputs, *theirs, *reference.initializers}
    new: dict[str, str] = {}
    for tensor in graph.producers:
        wanted = tensors.get(tensor)
        if tensor in fixed or wanted == tensor:
            continue
        if wanted is not None:
            new[tensor] = wanted
        elif tensor in theirs:
            new[tensor] = free_name(f"{tensor}_quantized_model", taken)
    # The names that converters make up may be those of a constant here and of a tensor there.
    for constant in theirs.intersection(graph.initializers).difference(new):
        new[constant] = free_name(f"{constant}_quantized_model", taken)
    named = {n.name for n in reference.nodes}
    node_names = {*named, *graph.by_name}
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:], proto.graph.value_info[:]
    for weight in proto.graph.initializer:
        weight.name = new.get(weight.name, weight.name)
    for original in graph.proto.graph.node:
        node = copy_node(original)
        rename_reads(node, new)
        node.output[:] = [new.get(t, t) for t in original.output]
        if original.name in nodes:
            node.name = nodes[original.name]
        elif original.name in named:
            node.name = free_name(f"{original.name}_quantized_model", node_names)
        proto.graph.node.append(node)
    return Graph.inferred(proto)
