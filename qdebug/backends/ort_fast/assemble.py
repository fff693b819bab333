"""Put a candidate together from parts that are prepared once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import onnx
from onnx import TensorProto, helper

from qdebug.backends.fp16_emulation.rounding import mentions_narrow
from qdebug.backends.ort_fast.conv import conv_to_codes, conv_to_float
from qdebug.backends.ort_fast.cut_points import (
    CutPoint,
    Emitted,
    cut_points_of,
    inputs_for,
    places_of,
    segments_of,
)
from qdebug.backends.ort_fast.literal import SOURCES, Literal
from qdebug.backends.ort_fast.matmul import KernelPart, matmul_part
from qdebug.backends.ort_fast.parts import CONTRIB, Form, Formed, Part, Workshop, encode
from qdebug.formats.registry import SCALED
from qdebug.network.graph import Node
from qdebug.network.layers import Layer
from qdebug.plan.lower import quantized_layer
from qdebug.plan.plan import BoundPlan
from qdebug.plan.rewrite.edit import make_node
from qdebug.plan.rewrite.qdq import QuantizedLayer, quantized_operands
from qdebug.types import Array, Fp16Kernels, Precision

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Piece:
    """A model, the names of the constants that must be handed to its session, and the constants
    that lie in files."""

    model: bytes
    constants: tuple[str, ...]
    stored: tuple[TensorProto, ...]


@dataclass(frozen=True)
class Assembled:
    """A candidate; `cuts` is where it may be cut, in order. `switches` are Boolean inputs by
    layer: one that is true takes the layer in its other precision."""

    cuts: tuple[CutPoint, ...]
    _shop: Workshop
    _parts: tuple[Part, ...]
    _outputs: tuple[str, ...]
    """Outputs that are constants."""
    switches: Mapping[str, str] = field(default_factory=dict)

    @property
    def mapped_bytes(self) -> int:
        """What the weights of the model take that lie in files."""
        return self._shop.mapped_bytes

    @property
    def model(self) -> bytes:
        """All of it, encoded."""
        return self.piece(None, ()).model

    def piece(self, start: CutPoint | None, stored: Sequence[CutPoint]) -> Piece:
        """The model behind `start`, which takes the tensors that cross there as inputs too, and
        gives those that cross the cuts in `stored` as outputs."""
        shop, rest = self._shop, self._parts[start.start if start else 0 :]
        fed = {} if start is None else self.crossing(start)
        given = {name for cut in stored for name in self.crossing(cut)} - fed.keys()
        more = encode(
            input=[*inputs_for(shop.graph, fed), *map(_switch_input, self.switches.values())],
            output=[onnx.ValueInfoProto(name=name) for name in sorted(given)],
        )
        used = dict.fromkeys(self._outputs)
        used |= dict.fromkeys(name for part in rest for name in part.constants)
        declared = (shop.declaration(name) for name in used)
        model = b"".join([shop.header, more, *(part.fragment for part in rest), *declared])
        handed = tuple(name for name in used if name in shop.arrays)
        return Piece(model, handed, tuple(shop.stored[n] for n in used if n in shop.stored))

    def crossing(self, cut: CutPoint) -> dict[str, Formed]:
        """The tensors that cross `cut`, by their names in the candidate."""
        return {self._shop.name(*formed): formed for formed in cut.needs}


def _name_of(layer: Layer | None) -> str | None:
    return layer.name if layer else None


def _switch_input(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, [])


class Assembler:
    """Assembles candidates of one base plan, from several threads if need be."""

    def __init__(self, bound: BoundPlan, fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT) -> None:
        """`bound` has a range for every tensor that its INT8 layers read.

        Raises:
            PlanError: a range is missing, or a weight is not FP32.
        """
        self._layers = bound.layers
        self.graph = graph = bound.layers.graph
        self.of_node = bound.layers.of_node
        self.nodes = [
            n
            for n in graph.nodes
            if n.op_type != "Constant" or n.outputs[0] not in graph.initializers
        ]
        self._rest = bound.plan.fallback_precision
        self.shop = Workshop(self.graph)
        items = {x.name: quantized_layer(bound, x) for x in bound.layers_in(Precision.INT8)}
        self.literal = Literal(self.shop, items, fp16_kernels)
        self.pools = _pools(self.literal)
        proto = self.graph.proto
        self._mentions_narrow = mentions_narrow(proto)
        self._parts: dict[object, Any] = {}
        self._lock = threading.Lock()

    @property
    def constants(self) -> Mapping[str, Array]:
        """The constants that sessions are handed, by name; grows as candidates are assembled."""
        return self.shop.arrays

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Positions of the nodes before which candidates may be cut."""
        return places_of(self._layers, self.nodes)

    def takes(self, precisions: Mapping[str, Precision]) -> bool:
        """Whether candidates of these precisions can be assembled: not where INT8 layers compute in
        FP16 around their kernels, nor in a model that itself contains FP16 or BF16, nor with a
        layer in BF16 or in another format that needs a scale, or in INT8 and not so in the base
        plan."""
        if Precision.BF16 in precisions.values():
            return False
        scaled = {name: p for name, p in precisions.items() if p in SCALED}
        mixed = bool(scaled) and self._rest is Precision.FP16
        items = self.literal.items
        known = all(n in items and p is Precision.INT8 for n, p in scaled.items())
        return known and not mixed and not self._mentions_narrow

    def has_kernels(self, precisions: Mapping[str, Precision]) -> bool:
        """Whether candidates of these precisions are assembled, with layers in INT8."""
        return not SCALED.isdisjoint(precisions.values()) and self.takes(precisions)

    @cached_property
    def segments(self) -> Mapping[str, int]:
        """How many places lie before each layer."""
        return segments_of(self.places, [_name_of(self.of_node.get(n.name)) for n in self.nodes])

    def assemble(
        self,
        precisions: Mapping[str, Precision],
        *,
        kernels: bool,
        others: Mapping[str, Precision] | None = None,
    ) -> Assembled:
        """The model in `precisions`, by layer: on INT8 kernels, or literally as `lower` has it.
        With `others`, literally, the layers in it have a switch to their other precision."""
        with self._lock:
            return _Assembly(self, precisions, kernels, others or {}).finish()

    def once(self, key: object, make: Callable[[], _Made]) -> _Made:
        """What `make` gives, called once for each `key`."""
        if key not in self._parts:
            self._parts[key] = make()
        made: _Made = self._parts[key]
        return made


class _Assembly:
    """A candidate under construction."""

    def __init__(
        self,
        assembler: Assembler,
        precisions: Mapping[str, Precision],
        kernels: bool,
        others: Mapping[str, Precision],
    ) -> None:
        assert not (kernels and others)
        self.others = others
        self.assembler = assembler
        self.graph = assembler.graph
        self.precisions = precisions
        self.kernels = kernels
        self.of_node = assembler.of_node
        self.forms: dict[str, set[Form]] = {}
        self.emitted: list[Emitted] = []
        self.constants: dict[str, None] = {}

    def finish(self) -> Assembled:
        """All nodes in order, then the outputs in the form that the caller expects."""
        for spec in self.graph.inputs:
            self.forms[spec.name] = {Form.PLAIN}
        done: set[str] = set()
        places, marks = set(self.assembler.places), []
        for i, node in enumerate(self.assembler.nodes):
            if i in places:
                marks.append(len(self.emitted))
            if node.name not in done:
                part, covered = self._part(node)
                done |= covered
                self._emit(part)
        constant_outputs = []
        for output in self.graph.outputs:
            if output in self.graph.initializers:
                self.constants[output] = None
                constant_outputs.append(output)
            else:
                self._need(output, Form.PLAIN)
        shop, parts = self.assembler.shop, tuple(one.part for one in self.emitted)
        for name in self.constants:
            shop.declaration(name)  # here, where no other thread does
        cuts = cut_points_of(self.graph, self.emitted, marks, to_the_bit=self.kernels)
        switches = {name: shop.switch(name) for name in self.others}
        return Assembled(cuts, shop, parts, tuple(constant_outputs), switches)

    def _part(self, node: Node) -> tuple[Part, frozenset[str]]:
        """The part for `node`, and the nodes that it covers."""
        literal, once = self.assembler.literal, self.assembler.once
        layer = self.of_node.get(node.name)
        precision = self.precisions[layer.name] if layer else Precision.FP32
        if layer is not None and layer.name in self.others:
            other = self.others[layer.name]
            key = (node.name, precision, other)
            return once(key, lambda: self._choice(node, layer, precision, other)), frozenset()
        if precision is Precision.INT8 and layer is not None:
            item = literal.items[layer.name]
            if self.kernels and node.name == layer.name:
                kernel = self._kernel(item)
                if kernel is not None:
                    return kernel.part, kernel.nodes
        pool = self.assembler.pools.get(node.name)
        is_plain = precision is Precision.FP32
        if is_plain and pool is not None and self.forms[node.inputs[0]] == {Form.U8_LAST}:
            return pool, frozenset()
        return self._literal(node, layer, precision), frozenset()

    def _literal(self, node: Node, layer: Layer | None, precision: Precision) -> Part:
        """The part for `node` as it is written down in that precision."""
        literal, once = self.assembler.literal, self.assembler.once
        if precision is Precision.FP16:
            half = once((node.name, precision), lambda: literal.half(node))
            if half is not None:
                return half
        if precision is Precision.INT8 and layer is not None:
            item = literal.items[layer.name]
            return once((node.name, precision), lambda: literal.int8(node, item))
        return once((node.name, Precision.FP32), lambda: literal.plain(node))

    def _choice(self, node: Node, layer: Layer, precision: Precision, other: Precision) -> Part:
        """The part for `node` with a switch to another precision, if that makes a difference."""
        literal, shop = self.assembler.literal, self.assembler.shop
        one, two = (self._literal(node, layer, p) for p in (precision, other))
        if one == two:
            return one
        switch = shop.switch(layer.name)
        if one.gives == two.gives:
            return shop.choice(switch, [one], [two], one.gives)
        plain = tuple((tensor, Form.PLAIN) for tensor, _ in one.gives)
        return shop.choice(switch, literal.plainly(one), literal.plainly(two), plain)

    def _kernel(self, item: QuantizedLayer) -> KernelPart | None:
        literal, once, name = self.assembler.literal, self.assembler.once, item.layer.name
        if item.layer.op_type == "Conv":
            if self._is_only_quantized(item.layer.output):
                codes = once((name, "codes"), lambda: conv_to_codes(literal, item))
                if codes is not None:
                    return codes
            return once((name, "float"), lambda: conv_to_float(literal, item))
        return once((name, "float"), lambda: matmul_part(literal, item))

    def _is_only_quantized(self, tensor: str) -> bool:
        """Whether only Q/DQ pairs of one scale read `tensor`, a MaxPool in between or not."""
        if tensor in self.graph.outputs:
            return False
        return all(
            self._quantizes(reader, tensor) for reader in self.graph.consumers.get(tensor, ())
        )

    def _quantizes(self, reader: Node, tensor: str) -> bool:
        layer = self.of_node.get(reader.name)
        precision = self.precisions[layer.name] if layer else Precision.FP32
        if precision is Precision.INT8 and layer is not None:
            return tensor in quantized_operands(reader, layer)
        is_pool = precision is Precision.FP32 and reader.name in self.assembler.pools
        return is_pool and self._is_only_quantized(reader.outputs[0])

    def _emit(self, part: Part, *, converts: bool = False) -> None:
        for tensor, form in part.needs:
            self._need(tensor, form)
        self.emitted.append(Emitted(part, converts))
        self.constants.update(dict.fromkeys(part.constants))
        for tensor, form in part.gives:
            self.forms.setdefault(tensor, set()).add(form)

    def _need(self, tensor: str, form: Form) -> None:
        """Make sure that `tensor` exists in `form`."""
        forms = self.forms[tensor]
        if form in forms:
            return
        key = ("path", frozenset(forms), form)
        for step in self.assembler.once(key, lambda: _path(forms, form)):
            convert = partial(self.assembler.literal.convert, tensor, *step)
            self._emit(self.assembler.once((tensor, *step), convert), converts=True)


def _path(have: Collection[Form], wanted: Form) -> tuple[tuple[Form, Form], ...]:
    """The shortest chain of conversions from a form that exists to the one wanted."""
    ways: dict[Form, tuple[tuple[Form, Form], ...]] = {wanted: ()}
    queue = [wanted]
    for form in queue:  # grows
        for source in SOURCES.get(form, ()):
            if source in ways:
                continue
            ways[source] = ((source, form), *ways[form])
            if source in have:
                return ways[source]
            queue.append(source)
    raise AssertionError(f"no way from {sorted(have)} to {wanted}")


def _pools(literal: Literal) -> dict[str, Part]:
    """MaxPools that can work on codes, with the channels last. Each lends its scale to what it
    reads, unless that has another one."""
    graph, shop = literal.graph, literal.shop
    pools = {}
    for node in reversed(graph.nodes):
        if node.op_type != "MaxPool" or node.domain or len(node.outputs) > 1:
            continue
        source, output = node.inputs[0], node.outputs[0]
        scale = literal.scales.get(output)
        if scale is None or len(graph.shapes.get(source, ())) != 4:
            continue
        if literal.scales.setdefault(source, scale) != scale:
            continue
        names = (shop.name(source, Form.U8_LAST), shop.name(output, Form.U8_LAST))
        proto = make_node("NhwcMaxPool", names[:1], names[1], domain=CONTRIB)
        proto.attribute.extend(literal.protos[node.name].attribute)
        pools[node.name] = shop.part([proto], [(source, Form.U8_LAST)], [(output, Form.U8_LAST)])
    return pools
