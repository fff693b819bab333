"""For layers in FP16: the same network in another form, which FP16 can hold.

A tensor that exceeds 65504, or whose values are all so small that FP16 loses their digits, is held
times a power of two: exact, and free where constants take the factor in (see
plan/rewrite/powers.py). The mean square in a normalization is what overflows first, and exp in a
softmax: functions that are written out in single operators become ONNX's own, which do not round or
overflow on the way (plan/rewrite/fuse).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.formats.registry import FP16
from qdebug.plan.rewrite.fuse.functions import fuse, written_out
from qdebug.plan.rewrite.fuse.matching import WrittenOut
from qdebug.plan.rewrite.powers import hold_scaled
from qdebug.types import Precision
from qdebug.wording import counted

_LARGE = 3e4
"""A magnitude that other samples may well double, beyond what FP16 can hold."""
_ROOM = 2.0**13
"""What tensors above that are brought below."""


def _layers(network: Quantized) -> tuple[str, ...]:
    return tuple(layer.name for layer in network.bound.layers_in(Precision.FP16))


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    functions = _written_out(start, layers)
    kinds = dict.fromkeys(whole.op_type for whole in functions)
    if functions:
        fused = _fused(study, start, layers, functions)
        yield fused
        left = [name for name in layers if name in fused.result.layers.by_name]
        for also in _all_scaled(study, fused.result, left):
            names = {*fused.layers, *also.layers}
            both = tuple(name for name in layers if name in names)
            yield Proposal(also.result, both, f"{fused.what}, {also.what}")
    for kind in kinds if len(kinds) > 1 else ():
        yield _fused(study, start, layers, [f for f in functions if f.op_type == kind])
    yield from _all_scaled(study, start, layers)


def _written_out(start: Quantized, layers: Sequence[str]) -> list[WrittenOut]:
    """Functions that are written out within these layers."""
    nodes = {n for name in layers for n in start.layers.by_name[name].nodes}
    return [f for f in written_out(start.graph) if {f.last, *f.inner} <= nodes]


def _fused(
    study: Study, start: Quantized, layers: Sequence[str], functions: Sequence[WrittenOut]
) -> Proposal:
    """With these as one operator each."""
    network = study.calibrated(start.rewritten(fuse(start.graph, functions)))
    names = {name for f in functions for name in (f.last, *f.inner)}
    touched = tuple(n for n in layers if names & set(start.layers.by_name[n].nodes))
    count = Counter(f.op_type for f in functions)
    return Proposal(
        network, touched, ", ".join(f"{n} {kind}" for kind, n in count.items()) + " fused"
    )


def _all_scaled(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    """What FP16 cannot hold scaled: what overflows, and then also what is too small."""
    found = study.gather(start, _tensors(start, layers))
    large = {t: s for t, h in found.items() if (s := _above(h))}
    small = {t: s for t, h in found.items() if (s := _below(h))}
    seen: list[Mapping[str, int]] = []
    for needs in (large, {**small, **large}):
        if needs and needs not in seen:
            seen.append(needs)
            yield from _scaled(study, start, layers, found, needs)


def _scaled(
    study: Study,
    start: Quantized,
    layers: Sequence[str],
    found: Mapping[str, TensorHistogram],
    needs: Mapping[str, int],
) -> Iterator[Proposal]:
    """With tensors held as t · 2⁻ˢ."""
    limits = {t: _limits(h) for t, h in found.items() if h.count > h.zeros}
    powers = hold_scaled(start.graph, needs, limits, frozenset(start.bound.corrections))
    if powers is None:
        return
    network = study.calibrated(start.rewritten(powers.proto, powers.stale))
    what = f"{counted(len(powers.held), 'tensor')} scaled by powers of two"
    if powers.products:
        what += f", {counted(powers.products, 'product')} inserted"
    changed = {t for t, s in needs.items() if powers.held.get(t) and s}
    names = {name: start.layers.by_name[name] for name in layers}
    touched = tuple(n for n, layer in names.items() if changed & set(_of_nodes(start, layer.nodes)))
    yield Proposal(network, touched, what)


def _tensors(network: Quantized, layers: Sequence[str]) -> list[str]:
    """What FP16 must hold: all that these layers compute and read, in execution order."""
    nodes = [n for name in layers for n in network.layers.by_name[name].nodes]
    return _of_nodes(network, nodes)


def _of_nodes(network: Quantized, nodes: Sequence[str]) -> list[str]:
    graph = network.graph
    computed = set(graph.activations())
    found = (t for n in nodes for t in (*graph.by_name[n].inputs, *graph.by_name[n].outputs))
    return list(dict.fromkeys(t for t in found if t in computed))


def _above(histogram: TensorHistogram) -> int:
    """The exponent that brings a tensor within FP16; 0 for one that is."""
    amax = histogram.amax
    return math.ceil(math.log2(amax / _ROOM)) if amax > _LARGE else 0


def _below(histogram: TensorHistogram) -> int:
    """The exponent, negative, that brings the largest value of a tensor near 1; 0 for one whose
    values FP16 can tell apart."""
    if histogram.amax == 0.0 or _root_mean_square(histogram) >= FP16.smallest_normal:
        return 0
    return min(0, math.ceil(math.log2(histogram.amax)))


def _limits(histogram: TensorHistogram) -> tuple[int, int]:
    """See plan/rewrite/powers.py."""
    least = math.ceil(math.log2(histogram.amax / _ROOM))
    most = math.floor(math.log2(_root_mean_square(histogram) / (4 * FP16.smallest_normal)))
    return least, max(most, least)


def _root_mean_square(histogram: TensorHistogram) -> float:
    """Of the values other than 0."""
    return math.sqrt(histogram.total_sq / (histogram.count - histogram.zeros))


REMEDY = Remedy(
    name="fp16-rewrites",
    fewest_samples=1,
    layers=_layers,
    propose=_propose,
    rewrites=True,
)
