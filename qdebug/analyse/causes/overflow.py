"""Overflows of FP16: those that nothing behind them shows, as of masks, and the layers that must be
pinned together to be rid of one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdebug.formats.registry import FP16
from qdebug.network.layers import Layer
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import HARMLESS_DB, Cause, CompareResult, LayerResult
from qdebug.types import Precision

FP16_OVERFLOW = "fp16-overflow"
_NO_VALUES = ("Shape", "Size")
"""What these operators read of a tensor does not depend on its values."""


def contained(pair: ModelPair, results: Sequence[LayerResult]) -> list[LayerResult]:
    """`results` with `readers_sqnr_db` where the NaN or Inf of a layer end in finite layers.

    A layer that reads values beyond FP16 and yet has a finite local error was measured with the
    same overflow in what it read: its local SQNR bounds what the overflow does. Where the values
    are within FP16 and only the candidate's are not (the root of an overflowing square), the local
    error knows nothing of it, and the bound is all that has piled up in the reader. One that
    passes NaN or Inf on (a mask added to scores) is bounded by its own readers. No bound exists
    where they reach an output of the model, or a reader whose output is not compared.
    """
    by_name = {r.name: r for r in results}
    graph = pair.reference
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    broken = [pair.layers.by_name[r.name] for r in results if _is_broken(r)]
    # Readers first. A fused layer may begin before what it reads late; its output never does.
    broken.sort(key=lambda x: order[graph.producers[x.output].name], reverse=True)
    bounds: dict[str, float | None] = {}
    for layer in broken:
        bounds[layer.name] = _bound(pair, layer, by_name, bounds)
    return [replace(r, readers_sqnr_db=bounds.get(r.name)) for r in results]


def _is_broken(result: LayerResult) -> bool:
    local = result.local_sqnr_db
    return not result.metrics.is_finite or (local is not None and math.isnan(local))


def _bound(
    pair: ModelPair,
    layer: Layer,
    results: Mapping[str, LayerResult],
    bounds: Mapping[str, float | None],
) -> float | None:
    """The lowest SQNR among the layers that read `layer`'s output."""
    if layer.output in pair.reference.outputs:
        return None
    found = []
    seen = results[layer.name].metrics.ref_amax > FP16.largest
    for node in pair.reference.consumers.get(layer.output, ()):
        if node.op_type in _NO_VALUES:
            continue
        reader = pair.layers.of_node.get(node.name)
        result = results.get(reader.name) if reader else None
        if result is None or any(t and not pair.reference.is_float(t) for t in node.outputs):
            return None
        if _is_broken(result):
            value = bounds.get(result.name)
        else:
            value = _error_db(result) if seen else result.metrics.sqnr_db
        if value is None:
            return None
        found.append(value)
    return min(found, default=None)


def _error_db(result: LayerResult) -> float:
    """Its local error; of a layer without one, all that has piled up in it."""
    return result.metrics.sqnr_db if result.local_sqnr_db is None else result.local_sqnr_db


def pinned_together(
    pair: ModelPair,
    name: str,
    causes: Sequence[Cause],
    largest: Mapping[str, float],
    layers: Sequence[LayerResult],
) -> tuple[Cause, ...]:
    """`causes` of the layer `name`, with the layers that an overflow of it asks to be pinned: one
    alone would hand the value on to another that cannot hold it either. See `overflow_group`."""
    group = overflow_group(pair, name, largest, layers)
    if len(group) < 2:
        return tuple(causes)
    names = ", ".join(f"'{x}'" for x in group)
    remedy = f"Keep {names} in FP32 together, or scale down what they read."
    return tuple(replace(c, remedy=remedy) if c.label == FP16_OVERFLOW else c for c in causes)


def with_overflow_groups(
    pair: ModelPair, layers: Sequence[LayerResult], result: CompareResult
) -> list[str]:
    """The names of `layers`; behind one that overflows, those that must be pinned with it."""
    largest = {t.name: t.metrics.ref_amax for t in result.tensors}
    names: dict[str, None] = {}
    for layer in layers:
        group = [layer.name]
        if layer.overflows:
            group += overflow_group(pair, layer.name, largest, result.layers)
        names |= dict.fromkeys(group)
    return list(names)


def overflow_group(
    pair: ModelPair, name: str, largest: Mapping[str, float], layers: Sequence[LayerResult]
) -> list[str]:
    """The FP16 layers joined to `name` by tensors that FP16 cannot hold, in execution order; those
    that do well with Inf in place of the value (an Exp of −Inf, a Tanh) are not among them.

    Args:
        largest: magnitudes in FP32, by tensor.
        layers: with their own errors.
    """
    tolerant = {x.name for x in layers if x.harmless or (x.local_sqnr_db or 0.0) >= HARMLESS_DB}
    graph, found, waiting = pair.reference, {name}, [name]
    while waiting:
        layer = pair.layers.by_name[waiting.pop()]
        for tensor in (*pair.reads(layer.name), layer.output):
            if not largest.get(tensor, 0.0) > FP16.largest:
                continue
            ends = [graph.producers.get(tensor), *graph.consumers.get(tensor, ())]
            for other in (pair.layers.of_node.get(n.name) for n in ends if n is not None):
                if other is None or other.name in found or other.name in tolerant:
                    continue
                if pair.precisions[other.name] is Precision.FP16:
                    found.add(other.name)
                    waiting.append(other.name)
    return [layer.name for layer in pair.layers if layer.name in found]
