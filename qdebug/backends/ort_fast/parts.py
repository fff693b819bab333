"""Parts of a model as bytes, and the constants they share.

Protocol Buffers merge messages whose encodings are concatenated, so a model is the concatenation of
the encoded models that hold one node, or one constant, each. A candidate is then put together
without building, copying or encoding a single message. Constants are declared as external data and
handed to every session as the same array in memory; the largest are mapped from a file
(model/weights.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, rename_reads
from qdebug.network.weights import external_bytes, is_large, place_of, renamed, tensor_of
from qdebug.plan.rewrite.edit import make_node
from qdebug.types import Array

CONTRIB = "com.microsoft"
_INLINE_BYTES = 1024
"""Constants up to this size are encoded with the model; shape inference reads some of them."""


class Form(StrEnum):
    """In which form a tensor of the model exists in a candidate.

    PLAIN: as in the model. HALF: FP16. FAKE: after a Q/DQ pair, FP32. U8, S8: INT8 codes, with
    zero point 128 and 0. The LAST forms are rank 4 with the channels last: FP32, after a Q/DQ
    pair, codes with zero point 128.
    """

    PLAIN = "plain"
    HALF = "half"
    FAKE = "fake"
    U8 = "u8"
    S8 = "s8"
    PLAIN_LAST = "plain_last"
    FAKE_LAST = "fake_last"
    U8_LAST = "u8_last"


Formed = tuple[str, Form]
"""A tensor of the model in a form."""


@dataclass(frozen=True)
class Part:
    """Nodes that are emitted together.

    Attributes:
        fragment: their encoding.
        needs, gives: the tensors they read and write, constants left out.
        constants: names of the constants they read.
    """

    fragment: bytes
    needs: tuple[Formed, ...]
    gives: tuple[Formed, ...]
    constants: tuple[str, ...]


class Workshop:
    """Makes parts of one model, and holds every constant they read."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arrays: dict[str, Array] = {}
        """Constants that are handed to the sessions."""
        self._declared: dict[str, bytes] = {}
        self._mark = _mark_for(graph)
        self._count = 0
        self.header = self._header()
        self.mapped_bytes = external_bytes(graph.proto)
        """What the weights of the model take that lie in files."""
        self.stored: dict[str, TensorProto] = {}
        """Constants that were declared and lie in files."""

    def name(self, tensor: str, form: Form = Form.PLAIN) -> str:
        """The name of `tensor` in `form`."""
        return tensor if form is Form.PLAIN else f"{tensor}{self._mark}{form}"

    def tensor_name(self, hint: str) -> str:
        """A new name for a tensor that only one part uses, as builders of nodes take it (see
        `plan.rewrite.edit.NodeBuilder`). It is unique in every candidate, whatever its parts."""
        self._count += 1
        return f"{hint}{self._mark}{self._count}"

    def constant(self, values: Any, hint: str) -> str:
        """Add a constant under `hint`, which is marked as ours; the same hint is added once."""
        name = f"{hint}{self._mark}c"
        if name not in self._declared:
            self._declare(name, np.ascontiguousarray(values))
        return name

    def declaration(self, name: str) -> bytes:
        """The encoding of a constant; one of the model is declared when it is first asked for."""
        if name not in self._declared:
            values = self.graph.constant(name)
            assert values is not None
            stored = self.graph.initializers[name]
            if place_of(stored) is not None:
                self.stored[name] = renamed(stored, name)
                self._declared[name] = encode(initializer=[self.stored[name]])
            elif values.dtype.kind in "fiub":
                self._declare(name, values)
            else:  # text: numpy has no memory for it that a runtime could read
                self._declared[name] = encode(initializer=[self.graph.initializers[name]])
        return self._declared[name]

    def part(
        self, nodes: Sequence[onnx.NodeProto], needs: Iterable[Formed], gives: Iterable[Formed]
    ) -> Part:
        """`nodes` as a part; what is constant of what they need is found out here."""
        constants = self.graph.initializers
        wanted = dict.fromkeys(needs)
        read = dict.fromkeys(t for node in nodes for t in node.input if t)
        read |= dict.fromkeys(tensor for tensor, _ in wanted)
        return Part(
            encode(node=nodes),
            tuple(x for x in wanted if x[0] not in constants),
            tuple(gives),
            tuple(t for t in read if t in self._declared or t in constants),
        )

    def choice(
        self, switch: str, one: Sequence[Part], other: Sequence[Part], gives: tuple[Formed, ...]
    ) -> Part:
        """A part that computes `one`, or `other` where the Boolean input `switch` is true. Both
        are parts in order, and make what is in `gives`; what they read exists outside."""
        parts = [*one, *other]
        made = {x for part in parts for x in part.gives}
        node = make_node("If", [switch], self.name(*gives[0]))
        node.output[:] = [self.name(*x) for x in gives]
        for attribute, branch in (("then_branch", other), ("else_branch", one)):
            graph = self._branch(branch, node.output)
            node.attribute.append(helper.make_attribute(attribute, graph))
        return Part(
            encode(node=[node]),
            tuple(dict.fromkeys(x for part in parts for x in part.needs if x not in made)),
            gives,
            tuple(dict.fromkeys(name for part in parts for name in part.constants)),
        )

    def _branch(self, parts: Sequence[Part], outputs: Iterable[str]) -> onnx.GraphProto:
        """`parts` as a graph, in which every tensor has a name of its own."""
        nodes = [n for p in parts for n in onnx.ModelProto.FromString(p.fragment).graph.node]
        names = {t: self.tensor_name(t) for node in nodes for t in node.output if t}
        for node in nodes:
            rename_reads(node, names)
            node.output[:] = [names.get(t, t) for t in node.output]
        given = [onnx.ValueInfoProto(name=names[t]) for t in outputs]
        return helper.make_graph(nodes, self.tensor_name("branch"), [], given)

    def switch(self, layer: str) -> str:
        """The name of the input that switches `layer`."""
        return f"{layer}{self._mark}switch"

    def _declare(self, name: str, values: Array) -> None:
        if values.nbytes <= _INLINE_BYTES or is_large(values):
            tensor = tensor_of(values, name)
            if is_large(values):
                self.stored[name] = tensor
            self._declared[name] = encode(initializer=[tensor])
            return
        declared = TensorProto(
            name=name,
            dims=values.shape,
            data_type=helper.np_dtype_to_tensor_dtype(values.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        entry = declared.external_data.add()
        entry.key, entry.value = "location", "memory"
        self._declared[name] = encode(initializer=[declared])
        self.arrays[name] = values

    def _header(self) -> bytes:
        """All of the model but its nodes and constants. The shapes that were inferred decide what
        ONNX Runtime fuses (SkipLayerNormalization)."""
        proto = self.graph.proto
        inputs = {spec.name for spec in self.graph.inputs}
        head = onnx.ModelProto(
            ir_version=proto.ir_version,
            opset_import=[o for o in proto.opset_import if o.domain != CONTRIB],
        )
        head.opset_import.append(helper.make_opsetid(CONTRIB, 1))
        head.graph.name = proto.graph.name or "candidate"
        head.graph.sparse_initializer.extend(proto.graph.sparse_initializer)
        head.graph.input.extend(v for v in proto.graph.input if v.name in inputs)
        head.graph.output.extend(proto.graph.output)
        head.graph.value_info.extend(proto.graph.value_info)
        return head.SerializeToString()


def encode(**fields: Any) -> bytes:
    """A model with nothing but these fields of its graph."""
    return onnx.ModelProto(graph=onnx.GraphProto(**fields)).SerializeToString()


def _mark_for(graph: Graph) -> str:
    """A text that no name of the model contains, those in subgraphs included."""
    names = "\n".join(all_names(graph.proto.graph)[0])
    mark = ":q:"
    while mark in names:
        mark += ":"
    return mark
