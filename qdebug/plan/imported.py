"""Read a model that somebody else quantized as a network without rounding and, for each operand
that its nodes read, what rounds it.

Whatever is asked of such a model is then a choice of what its nodes read: all operands as the file
has them give the bits of the file, none of them rounded the FP32 network, and those of one layer
exact that layer in FP32. Q/DQ pairs, constants in codes and biases are taken over as they are, of
any format, with any scale. In a model without such pairs, which computes in FP16 or BF16, a node is
exact in FP32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.errors import ModelError
from qdebug.formats.base import Format
from qdebug.formats.registry import BY_ONNX_TYPE
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.network.subgraphs import all_names, free_name, reads_of, rename_reads
from qdebug.network.weights import tensor_of
from qdebug.plan.exact_constants import exact_constants
from qdebug.plan.quantize import QUANTIZERS, grid_of, quantizer_of
from qdebug.plan.rewrite.cast import cast_nodes
from qdebug.plan.rewrite.constants import ConstantValues, dequantized
from qdebug.plan.rewrite.cut import Branches
from qdebug.plan.rewrite.edit import Editor, copy_node, make_node
from qdebug.plan.rewrite.qoperator import moves
from qdebug.plan.rewrite.raise_fp32 import raise_to_fp32
from qdebug.types import Array
from qdebug.wording import option

PAIRS = QUANTIZERS | {"DequantizeLinear"}
REST = ""
"""Stands for the layer of all nodes that belong to none."""
Reads = Mapping[str, Mapping[str, str]]
"""Node -> a tensor that it reads in the file -> what it reads in its place."""


@dataclass(frozen=True)
class Imported:
    """A quantized model as a network and what rounds its operands.

    Attributes:
        graph: the model as the file has it, whose outputs are written by nodes that nothing else
            reads.
        makers: what is only computed where it is read: the nodes of Q/DQ pairs and of constants.
        exact: what each node reads without any rounding, where that differs.
        before: the output of each pair -> what the pair rounds, in the same type.
        renamed: outputs of the file that a pair writes -> that tensor in `graph`.
        changed: node -> what is no rounding of the FP32 model's among its constants, for people.
        narrow: node -> the format that it computes in, FP16 or BF16, where nothing is quantized.
            `graph` is in FP32 then.
        reads: what nodes read in this state, where that is something else than in the file.
        wide: those of `narrow` that compute in FP32 in this state.
    """

    graph: Graph
    makers: Mapping[str, onnx.NodeProto]
    exact: Reads
    before: Mapping[str, str]
    renamed: Mapping[str, str]
    changed: Mapping[str, str]
    narrow: Mapping[str, Format] = field(default_factory=dict)
    reads: Reads = field(default_factory=dict)
    wide: frozenset[str] = frozenset()

    @property
    def rounding(self) -> tuple[str, ...]:
        """The nodes that round, or read anything that is rounded."""
        found = self.exact.keys() | self.narrow.keys()
        return tuple(n.name for n in self.graph.nodes if n.name in found)

    def reading(self, reads: Reads) -> Imported:
        """The model with other operands, besides those of this state."""
        every = dict(self.reads)
        for node, names in reads.items():
            every[node] = {**every.get(node, {}), **names}
        return replace(self, reads=every)

    def without(self, nodes: Iterable[str]) -> Imported:
        """The model in which these nodes round nothing, nor read anything that is rounded."""
        wide = frozenset(nodes)
        model = self.reading({n: self.exact[n] for n in wide if n in self.exact})
        return replace(model, wide=self.wide | wide)

    def with_constants(self, *wanted: tuple[str, Array]) -> tuple[Imported, list[str]]:
        """The model with more constants, for `reading`, and the names that they got."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self.graph.proto)
        taken = {*all_names(proto.graph)[0], *self.makers}
        names = [free_name(name, taken) for name, _ in wanted]
        values = (values for _, values in wanted)
        proto.graph.initializer.extend(map(tensor_of, values, names))
        return replace(self, graph=Graph(proto)), names

    @cached_property
    def lowered(self) -> onnx.ModelProto:
        """One explicit model of this state.

        Raises:
            PlanError: as `check`.
        """
        editor, made = Editor(self.graph), set[str]()

        def emit(proto: onnx.NodeProto) -> None:
            node = copy_node(proto)
            rename_reads(node, dict(self.reads.get(proto.name, {})))
            for tensor in reads_of(node):
                if tensor in self.makers and tensor not in made:
                    emit(self.makers[tensor])
            editor.emit(node)
            made.update(node.output)

        lazy = {proto.name for proto in self.makers.values()}
        for proto in self.graph.proto.graph.node:
            if proto.name not in lazy:
                emit(proto)
        for output in self.graph.outputs:
            if output in self.makers and output not in made:
                emit(self.makers[output])
        model = editor.finish("the quantized model")
        for form in set(self.narrow.values()):
            nodes = {n for n, own in self.narrow.items() if own is form} - self.wide
            model = cast_nodes(Graph.inferred(model), nodes, form)
        return model

    @cached_property
    def network(self) -> onnx.ModelProto:
        """The network without rounding, in FP32. Constants are those of the FP32 model, as far as
        they are known.

        Raises:
            PlanError: as `check`.
        """
        graph = self.graph
        stored = [
            node
            for node in graph.nodes
            if node.op_type == "DequantizeLinear" and graph.constant(node.inputs[0]) is not None
        ]
        with np.errstate(over="ignore", invalid="ignore"):
            values = [(f"{n.inputs[0]}_dequantized", dequantized(graph, n)) for n in stored]
        model, names = self.with_constants(*values)
        free = {node.outputs[0]: name for node, name in zip(stored, names, strict=True)}
        reads = {n.name: {t: free[t] for t in n.reads if t in free} for n in graph.nodes}
        return raise_to_fp32(model.reading(reads).without(self.rounding).lowered)

    def owners(self, reference: Graph, layers: Iterable[Layer]) -> dict[str, str]:
        """Which layer each node that reads anything rounded belongs to; REST for those that lie
        before several layers. A pair that writes an output of the model belongs to the layer that
        computes it, or to the Concat whose values are only moved from there on."""
        branches, readers = Branches(reference, self.graph), Counter[str]()
        rounding = frozenset(self.rounding)
        found: dict[str, str] = {}
        last: dict[str, str] = {}
        for layer in layers:
            branch = branches.of(layer)
            own = [] if branch is None else list(branch.nodes)
            if layer.name in self.reads:  # it only moves values
                last |= dict.fromkeys(own, _joins(self.graph, layer.name))
            elif not rounding.isdisjoint(own):
                readers.update(own)
                found |= dict.fromkeys(own, layer.name)
        found |= {n: found[joins] for n, joins in last.items() if joins in found}
        return {n: found[n] if n in found and readers[n] < 2 else REST for n in self.rounding}


def import_quantized(
    graph: Graph, reference: Graph | None = None, *, biases: bool = False
) -> Imported:
    """Read a model in which Q/DQ pairs round.

    Args:
        graph: the model, without operators that compute on codes (`to_qdq`).
        reference: the FP32 model in whose names it is; None where that is not known.
        biases: biases of the FP32 model count as exact also where the model's own are none of its
            roundings, beside a weight that is one.

    Raises:
        ModelError: codes are used by something else than a DequantizeLinear.
        PlanError: as `check`.
    """
    hint = _QUANTIZE_AGAIN
    if reference is None:
        hint = f"Give the FP32 model as well: {option('reference', 'fp32.onnx')}."
    for node in graph.nodes:
        why = _on_codes(graph, node)
        if why:
            raise ModelError(why, hint, code="QD-MODEL-NO-FP32-FORM")
    narrow = narrow_nodes(graph)
    added = [] if reference is None else list(exact_constants(reference, graph, biases=biases))
    if narrow:
        graph = _raised(graph)
    return replace(_Import(graph, added).result(), narrow=narrow)


def narrow_nodes(graph: Graph) -> dict[str, Format]:
    """The nodes that compute in FP16 or BF16; none where anything is quantized."""
    if any(node.op_type in PAIRS for node in graph.nodes):
        return {}
    kinds = {n.name: graph.types.get(n.outputs[0], 0) for n in graph.nodes}
    computing = (n.name for n in graph.nodes if n.op_type not in _TYPED)
    return {name: BY_ONNX_TYPE[kinds[name]] for name in computing if kinds[name] in _NARROW}


def _raised(graph: Graph) -> Graph:
    """A model in FP16 or BF16 in FP32, where values are rounded by what they are cast to."""
    raised = raise_to_fp32(graph.proto)
    tensors, names = all_names(raised.graph)
    nodes = list(raised.graph.node)
    del raised.graph.node[:]
    for node in nodes:
        kind = graph.types.get(node.output[0], 0)
        if node.op_type == "Cast" and kind in _NARROW and graph.is_float(node.input[0]):
            narrow, name = free_name(node.output[0], tensors), free_name(node.name, names)
            raised.graph.node.append(make_node("Cast", [node.input[0]], narrow, name, to=kind))
            node.input[0] = narrow
        raised.graph.node.append(node)
    return Graph.inferred(raised, data_prop=False)


_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_TYPED = frozenset({"Cast", "Constant", "Identity"})
"""Operators that compute nothing."""


class _Import:
    def __init__(self, graph: Graph, constants: Iterable[tuple[str, str, Array | str]]) -> None:
        self._tensors, self._nodes = all_names(graph.proto.graph)
        self._constants: dict[tuple[str, str], str] = {}
        self._changed: dict[str, str] = {}
        added = []
        for name, tensor, value in constants:
            if isinstance(value, str):
                self._changed[name] = value
                continue
            constant = free_name(f"{tensor}_fp32", self._tensors)
            self._constants[name, tensor] = constant
            added.append(tensor_of(value, constant))
        self._graph, self._renamed = self._prepared(graph, added)
        values = ConstantValues(self._graph)
        self._makers = {
            t: self._graph.protos[node.name]
            for node in self._graph.nodes
            if node.op_type in PAIRS
            or _clips_codes(self._graph, node)
            or _rounded_by(self._graph, node) is not None
            or all(values.is_constant(t) for t in node.outputs if t)
            for t in node.outputs
            if t
        }
        self._before: dict[str, str] = {}

    def _prepared(
        self, graph: Graph, added: Collection[TensorProto]
    ) -> tuple[Graph, dict[str, str]]:
        """The graph with outputs by nodes of their own; and the new names of what these read."""
        renamed = {
            t: free_name(f"{t}_rounded", self._tensors)
            for t in graph.outputs
            if (maker := graph.producers.get(t)) is not None and maker.op_type in PAIRS
        }
        proto = onnx.ModelProto()
        proto.CopyFrom(graph.proto)
        inner = proto.graph
        inner.initializer.extend(added)
        del inner.node[:]
        for original in graph.proto.graph.node:
            node = copy_node(original)
            rename_reads(node, renamed)
            node.output[:] = [renamed.get(t, t) for t in original.output]
            inner.node.append(node)
        for output, rounded in renamed.items():
            name = free_name(f"{output}_output", self._nodes)
            inner.node.append(make_node("Identity", [rounded], output, name))
            inner.value_info.append(onnx.ValueInfoProto(name=rounded))
            kind = graph.types.get(output, TensorProto.FLOAT)
            inner.value_info[-1].type.tensor_type.elem_type = kind
        return Graph(proto), renamed

    def result(self) -> Imported:
        exact: dict[str, dict[str, str]] = {}
        readers = [n for n in self._graph.nodes if n.outputs and n.outputs[0] not in self._makers]
        for node in readers:
            reads = {t: self._of_node(node, t) for t in node.reads}
            exact[node.name] = {t: source for t, source in reads.items() if source != t}
        moved = {n.name: exact.pop(n.name) for n in readers if self._only_moves(n)}
        return Imported(
            self._graph,
            self._makers,
            {name: reads for name, reads in exact.items() if reads},
            self._before,
            self._renamed,
            self._changed,
            reads=moved,
        )

    def _of_node(self, node: Node, tensor: str) -> str:
        """What a node reads without rounding."""
        shown = {new: old for old, new in self._renamed.items()}.get(tensor, tensor)
        constant = self._constants.get((node.name, shown))
        return self._exact(tensor) if constant is None else self._of_type(constant, tensor)

    def _exact(self, tensor: str) -> str:
        """What a tensor is before all the pairs that round it."""
        node = self._graph.producers.get(tensor)
        quantizer = None if node is None else _rounded_by(self._graph, node)
        if quantizer is None:
            return tensor
        self._before[tensor] = self._of_type(quantizer.inputs[0], tensor)
        return self._of_type(self._exact(quantizer.inputs[0]), tensor)

    def _of_type(self, source: str, tensor: str) -> str:
        """`source` in the type of `tensor`."""
        kinds = self._graph.types.get(source), self._graph.types.get(tensor)
        if None in kinds or kinds[0] == kinds[1]:
            return source
        name = f"{source}_cast_to_{kinds[1]}"
        if name not in self._makers:
            node = free_name(name, self._nodes)
            self._makers[name] = make_node("Cast", [source], name, node, to=kinds[1])
        return name

    def _only_moves(self, mover: Node) -> bool:
        """Whether a node moves values that are rounded before it and, to the same codes, again by
        all that read it: it may as well move what is not rounded."""
        if not moves(self._graph, mover):
            return False
        before = self._graph.producers.get(mover.inputs[0])
        readers = [r for t in mover.outputs for r in self._graph.consumers.get(t, ())]
        shown = any(t in self._graph.outputs for t in mover.outputs)
        if before is None or before.op_type != "DequantizeLinear" or shown or not readers:
            return False
        own = grid_of(self._graph, before)
        for reader in readers:
            other = grid_of(self._graph, reader) if reader.op_type == "QuantizeLinear" else None
            if own is None or other is None or not own.same_codes(other):
                return False
        return True


def _rounded_by(graph: Graph, node: Node) -> Node | None:
    """The other half of the pair whose last node this is: a QuantizeLinear, or a Cast to FP16."""
    if node.op_type == "DequantizeLinear":
        return quantizer_of(graph, node)
    maker = graph.producers.get(node.inputs[0]) if node.op_type == "Cast" else None
    if maker is None or maker.op_type != "Cast" or not graph.is_float(maker.inputs[0]):
        return None
    return maker if graph.types.get(node.inputs[0], 0) in _NARROW else None


def _clips_codes(graph: Graph, node: Node) -> bool:
    """Whether a node only clips the codes of a pair."""
    readers = graph.consumers.get(node.outputs[0], ()) if node.op_type == "Clip" else ()
    return any(r.op_type == "DequantizeLinear" for r in readers)


def _joins(graph: Graph, layer: str) -> str:
    """The Concat whose values a layer moves, over other nodes that do; "" for none."""
    node = graph.by_name.get(layer)
    while node is not None and (node.op_type in PAIRS or moves(graph, node)):
        node = graph.producers.get(node.inputs[0])
    return node.name if node is not None and node.op_type == "Concat" else ""


_QUANTIZE_AGAIN = (
    "This form of arithmetic on integers cannot be compared layer by layer. Quantize the FP32 "
    "model again in the Q/DQ format (QuantFormat.QDQ of ONNX Runtime's quantize_static)."
)


def _on_codes(graph: Graph, node: Node) -> str:
    """Why the FP32 model cannot be recovered from one with this node, for people; "" where it
    can."""
    if node.op_type == "DequantizeLinear":
        codes = node.inputs[0]
        if codes not in graph.producers or graph.constant(codes) is not None:
            return ""  # codes that the user gives stand for themselves
        made = quantizer_of(graph, node) is not None
        return (
            "" if made else f"node '{node.name}' dequantizes values that no QuantizeLinear produced"
        )
    for tensor in node.outputs if node.op_type in QUANTIZERS else ():
        if tensor in graph.outputs:
            return (
                f"output '{tensor}' of the model holds the INT8 values of node '{node.name}', so "
                "there is no FP32 output to compare with"
            )
        what = "on INT8 values directly"
        if tensor != node.outputs[0]:  # of a DynamicQuantizeLinear
            what = f"with '{tensor}', the scale or zero point of node '{node.name}'"
        for reader in graph.consumers.get(tensor, ()):
            if reader.op_type != "DequantizeLinear" and not _clips_codes(graph, reader):
                return (
                    f"node '{reader.name}' ({reader.op_type}) computes {what}, so the FP32 model "
                    "cannot be recovered from this one"
                )
    return ""
