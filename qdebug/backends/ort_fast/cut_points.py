"""Where a candidate may be cut in two: places that few activations cross.

What lies before a place is the same in many candidates of a search. With the tensors that cross it
stored, another candidate starts there. Its results must not change by a bit, so that a place is
passed over where ONNX Runtime might fuse across it: tensors cross in codes or FP16, which nothing
is fused with, or where FP32 is next rounded to these, or where several nodes read it.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from qdebug.backends.ort_fast.literal import TO_LAST
from qdebug.backends.ort_fast.parts import Form, Formed, Part
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layers
from qdebug.network.macs import work_of

_MOST = 8
"""Places in a model: more of them save little and store more."""
_TYPES = {
    Form.HALF: TensorProto.FLOAT16,
    Form.U8: TensorProto.UINT8,
    Form.U8_LAST: TensorProto.UINT8,
    Form.S8: TensorProto.INT8,
}
_LAST = frozenset({Form.PLAIN_LAST, Form.FAKE_LAST, Form.U8_LAST})


@dataclass(frozen=True)
class CutPoint:
    """A place in one candidate.

    Attributes:
        place: which one, the same in all candidates.
        key: the same for candidates that compute the same before it.
        start: the number of parts before it.
        needs: the tensors that cross it, besides the inputs of the model.
    """

    place: int
    key: bytes
    start: int
    needs: tuple[Formed, ...]


@dataclass(frozen=True)
class Emitted:
    """A part in a candidate; `converts`: it only makes one form of a tensor from another."""

    part: Part
    converts: bool


def places_of(layers: Layers, nodes: Sequence[Node]) -> tuple[int, ...]:
    """Positions in `nodes`, in order: the places are before these. They divide the
    multiply-accumulates about evenly, and what crosses them is the smallest around. The last is
    where next to no work is left: often half of all layers are behind it."""
    graph = layers.graph
    work = work_of(layers, {})
    total = sum(w.macs for w in work.values())
    crossing = _crossing(layers, nodes)
    done, shares = 0.0, []
    for node in nodes:
        shares.append(done / total if total else math.inf)
        done += work[node.name].macs if node.name in work else 0.0
    found = set()
    step = 1 / (_MOST + 1)
    for k in range(1, _MOST + 1):
        near = [i for i in crossing if abs(shares[i] - k * step) <= step / 2]
        sizes = {i: (sum(_size(graph, t) for t in crossing[i]), i) for i in near}
        if near:
            found.add(min(near, key=lambda i, sizes=sizes: sizes[i]))  # type: ignore[misc]
    tail = [i for i in crossing if 1 - step / 2 < shares[i] < math.inf]
    first = min((shares[i] for i in tail), default=0.0)
    before_more = [i for i in tail if shares[i] == first]
    if before_more:
        found.add(min(before_more, key=lambda i: (sum(_size(graph, t) for t in crossing[i]), i)))
    return tuple(sorted(found))


def segments_of(places: Sequence[int], owners: Iterable[str | None]) -> dict[str, int]:
    """How many places lie before the first node of each layer; `owners` are the layers' names, by
    node."""
    found: dict[str, int] = {}
    for i, owner in enumerate(owners):
        if owner is not None:
            found.setdefault(owner, bisect_right(places, i))
    return found


def _crossing(layers: Layers, nodes: Sequence[Node]) -> dict[int, set[str]]:
    """By position, the tensors that cross; without positions within a layer, and those behind a
    node that makes an output of the model."""
    graph = layers.graph
    position = {node.name: i for i, node in enumerate(nodes)}
    reads = {t: i for i, node in enumerate(nodes) for t in node.reads}
    inside = set()
    for layer in layers:
        own = [position[name] for name in layer.nodes if name in position]
        inside |= set(range(min(own, default=0) + 1, max(own, default=0) + 1))
    alive: set[str] = set()
    found = {}
    for i, node in enumerate(nodes):
        if alive and i not in inside:
            found[i] = set(alive)
        if any(t in graph.outputs for t in node.outputs):
            break
        alive |= set(node.outputs)
        alive = {t for t in alive if reads.get(t, -1) > i}
    return found


def _size(graph: Graph, tensor: str) -> float:
    return math.prod(size for size in graph.shapes.get(tensor, ()) if isinstance(size, int))


def cut_points_of(
    graph: Graph, emitted: Sequence[Emitted], marks: Sequence[int], *, to_the_bit: bool = True
) -> tuple[CutPoint, ...]:
    """Where to cut; `marks` are the numbers of parts before the places. `to_the_bit`: only where
    that does not change what is computed, else wherever all that crosses is floating point or
    codes: sums are then rounded as the runtime fuses them, behind the cut and before it."""
    readers: dict[Formed, list[bool]] = {}
    for one in emitted:
        for formed in one.part.needs:
            readers.setdefault(formed, []).append(one.converts)
    has_conv = any(node.op_type == "Conv" for node in graph.nodes)
    cuts, digest, done = [], hashlib.sha256(), 0
    made: set[Formed] = set()
    for place, start in enumerate(marks):
        for one in emitted[done:start]:
            digest.update(one.part.fragment)
            made.update(one.part.gives)
        done = start
        after = dict.fromkeys(x for one in emitted[start:] for x in one.part.needs)
        needs = tuple(x for x in after if x in made)
        if needs and all(_crosses(graph, x, readers[x], has_conv, to_the_bit) for x in needs):
            cuts.append(CutPoint(place, digest.digest(), start, needs))
    return tuple(cuts)


def _crosses(
    graph: Graph, formed: Formed, readers: Sequence[bool], has_conv: bool, to_the_bit: bool
) -> bool:
    """Whether nothing is fused across a tensor. Next to convolutions even a tensor that several
    nodes read may be fused across, since ONNX Runtime keeps their layout."""
    tensor, form = formed
    if form is not Form.PLAIN:
        return True
    if graph.types.get(tensor) != TensorProto.FLOAT:
        return False
    if not to_the_bit:
        return True
    flat = not has_conv or len(graph.shapes.get(tensor, (0,) * 4)) != 4
    return all(readers) or (flat and len(readers) > 1)


def inputs_for(graph: Graph, needs: Mapping[str, Formed]) -> list[onnx.ValueInfoProto]:
    """The tensors that cross as inputs, by their names in the candidate."""
    return [
        helper.make_tensor_value_info(
            name, _TYPES.get(form, TensorProto.FLOAT), _shape(graph, tensor, form)
        )
        for name, (tensor, form) in needs.items()
    ]


def _shape(graph: Graph, tensor: str, form: Form) -> list[int | str | None] | None:
    shape = graph.shapes.get(tensor)
    if shape is None:
        return None
    return [shape[i] for i in TO_LAST] if form in _LAST else list(shape)
