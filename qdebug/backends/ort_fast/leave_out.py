"""Put a quantized model together, in which some layers compute without rounding."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx

from qdebug.backends.ort_fast.assemble import Assembled
from qdebug.backends.ort_fast.cut_points import Emitted, cut_points_of, places_of, segments_of
from qdebug.backends.ort_fast.parts import Form, Part, Workshop
from qdebug.network.graph import Node, reads_of
from qdebug.network.layers import Layers
from qdebug.plan.rewrite.unround import Unrounded
from qdebug.types import Array

REST = ""
"""Stands for all nodes that belong to no layer, among the layers that compute without rounding."""


class LeaveOutAssembler:
    """Assembles a quantized model without the rounding of some layers, from several threads if
    need be."""

    def __init__(self, model: Unrounded, layers: Layers) -> None:
        """`layers` are those of the FP32 model."""
        self._model = model
        self._shop = Workshop(model.graph)
        constants = model.graph.initializers
        self._nodes = [
            n
            for n in model.graph.nodes
            if n.name not in model.lazy and not all(t in constants for t in n.outputs)
        ]
        protos = model.graph.protos
        self._rounded = {n.name: self._part(protos[n.name]) for n in self._nodes}
        self._plain = {name: self._part(proto) for name, proto in model.plain.items()}
        lazy = [n for n in model.graph.nodes if n.name in model.lazy]
        self._lazy = {t: part for n in lazy for t, part in self._gives(protos[n.name])}
        for proto in model.copies.values():
            self._lazy |= dict(self._gives(proto))
        self._places = places_of(layers, [self._seen(n) for n in self._nodes])
        self._lock = threading.Lock()

    @property
    def constants(self) -> Mapping[str, Array]:
        """The constants that sessions are handed, by name; grows as candidates are assembled."""
        return self._shop.arrays

    @property
    def segments(self) -> Mapping[str, int]:
        """How many places lie before each layer."""
        return segments_of(self._places, [self._model.owners.get(n.name) for n in self._nodes])

    def assemble(self, high: frozenset[str], either: Sequence[str] = ()) -> Assembled:
        """The model in which the layers `high` compute without rounding; `REST` may be one. The
        layers `either` have a switch to the other way."""
        with self._lock:
            return self._assemble(high, either)

    def _assemble(self, high: frozenset[str], either: Sequence[str]) -> Assembled:
        model, shop = self._model, self._shop
        emitted: list[Emitted] = []
        made: set[str] = set()
        marks, places = [], set(self._places)

        def emit(part: Part) -> None:
            for tensor, _ in part.needs:
                if tensor not in made and tensor in self._lazy:
                    emit(self._lazy[tensor])
            emitted.append(Emitted(part, converts=False))
            made.update(tensor for tensor, _ in part.gives)

        for i, node in enumerate(self._nodes):
            if i in places:
                marks.append(len(emitted))
            emit(self._way(node, high, either))
        for output in model.graph.outputs:
            if output not in made and output in self._lazy:
                emit(self._lazy[output])
        for one in emitted:
            for name in one.part.constants:
                shop.declaration(name)  # here, where no other thread does
        constant = tuple(t for t in model.graph.outputs if t in model.graph.initializers)
        cuts = cut_points_of(model.graph, emitted, marks, to_the_bit=False)
        parts = tuple(one.part for one in emitted)
        return Assembled(cuts, shop, parts, constant, {x: shop.switch(x) for x in either})

    def _way(self, node: Node, high: frozenset[str], either: Sequence[str]) -> Part:
        """`node` rounded or not, or with a switch between both."""
        owner = self._model.owners.get(node.name, REST)
        one = rounded = self._rounded[node.name]
        plain = other = self._plain.get(node.name, rounded)
        if owner in high:
            one, other = plain, rounded
        if owner in either and plain is not rounded:
            return self._shop.choice(self._shop.switch(owner), [one], [other], one.gives)
        return one

    def _part(self, proto: onnx.NodeProto) -> Part:
        needs = [(t, Form.PLAIN) for t in reads_of(proto)]
        return self._shop.part([proto], needs, [(t, Form.PLAIN) for t in proto.output if t])

    def _gives(self, proto: onnx.NodeProto) -> list[tuple[str, Part]]:
        part = self._part(proto)
        return [(t, part) for t, _ in part.gives]

    def _seen(self, node: Node) -> Node:
        """`node` as it were if nothing were quantized: pairs are not among the nodes."""
        return replace(node, inputs=tuple(self._source(t) for t in node.inputs))

    def _source(self, tensor: str) -> str:
        maker = self._model.graph.producers.get(tensor)
        while maker is not None and maker.name in self._model.lazy and maker.inputs:
            tensor = maker.inputs[0]
            maker = self._model.graph.producers.get(tensor)
        return tensor
