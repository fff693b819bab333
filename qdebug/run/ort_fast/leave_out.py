"""Put a quantized model together, in which some layers compute without rounding."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import onnx

from qdebug.model.graph import Node, reads_of
from qdebug.model.layers import Layers
from qdebug.plan.rewrite.unround import Unrounded
from qdebug.run.ort_fast.assemble import Assembled
from qdebug.run.ort_fast.cut_points import Emitted, cut_points_of, places_of
from qdebug.run.ort_fast.parts import Form, Part, Workshop
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

    def assemble(self, high: frozenset[str]) -> Assembled:
        """The model in which the layers `high` compute without rounding; `REST` may be one."""
        with self._lock:
            return self._assemble(high)

    def _assemble(self, high: frozenset[str]) -> Assembled:
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
            parts = self._plain if model.owners.get(node.name, REST) in high else self._rounded
            emit(parts.get(node.name) or self._rounded[node.name])
        for output in model.graph.outputs:
            if output not in made and output in self._lazy:
                emit(self._lazy[output])
        for one in emitted:
            for name in one.part.constants:
                shop.declaration(name)  # here, where no other thread does
        constant = tuple(t for t in model.graph.outputs if t in model.graph.initializers)
        cuts = cut_points_of(model.graph, emitted, marks, to_the_bit=False)
        return Assembled(cuts, shop, tuple(one.part for one in emitted), constant)

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
