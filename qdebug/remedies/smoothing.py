"""SmoothQuant (Xiao et al. 2023): the range that some channels of an activation need is moved into
the weights that read it, layer by layer.

Channel j is multiplied by f_j = max|W_j|^b / max|X_j|^a, and the weight divided by it. One pair of
exponents for all layers harms; here each layer gets that with which its own output is nearest to
the one in FP32, or none. The factors are taken in by the normalization or the weights before, where
that is exact, and by one product otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdebug.calibrators.weights import weight_amax
from qdebug.model.graph import Graph
from qdebug.model.samples.subset import SampleSubset, finely, is_whole, whole
from qdebug.plan.plan import Granularity
from qdebug.plan.quantize import fake_quantize, scale_of
from qdebug.plan.rewrite.rescale import (
    Factors,
    channel_axis,
    divided_weight,
    input_channels,
    rescale_inputs,
    takes_in,
    weight_reach,
)
from qdebug.remedies.channels import ChannelRange, Float64, channel_ranges
from qdebug.remedies.quantized import Quantized
from qdebug.remedies.remedy import Proposal, Remedy, Study
from qdebug.remedies.walk import Batches, Site, Walk

Exponents = tuple[float, float]
"""Of the activation's range and of the weight's."""

_TRIED: tuple[Exponents, ...] = (
    *((0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0)),
    *((0.5, 0.25), (0.75, 0.25), (0.5, 0.5), (0.65, 0.35), (0.85, 0.15)),
)
_WORTH, _WORTH_A_PRODUCT = 0.9, 0.7
"""To which share of what it is without a layer's noise must fall, at least: where constants take
the factors in, and where a product is inserted."""

_FARTHEST = 1024.0
"""Between the largest magnitude of a channel and one that counts."""

_SAMPLES = 16
"""Enough to choose between a few exponents."""


@dataclass(frozen=True)
class _Choice:
    """Factors for the layers that read one tensor."""

    layers: tuple[str, ...]
    factors: Mapping[Exponents, Factors]


def _layers(network: Quantized) -> tuple[str, ...]:
    graph = network.graph
    found = []
    for layer in network.weighted():
        node = graph.by_name[layer.name]
        grouped = node.op_type == "Conv" and graph.attributes(node).get("group", 1) != 1
        if not grouped and input_channels(graph, node) and _is_plain(network, layer.name):
            found.append(layer.name)
    return tuple(found)


def _is_plain(network: Quantized, layer: str) -> bool:
    return layer not in network.bound.corrections


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    graph = start.graph
    noise = _measured(study, start, layers)
    choices = _choices(start, layers, channel_ranges(study, graph, _axes(graph, layers)))
    corrected = frozenset(start.bound.corrections)
    chosen: dict[str, Factors] = {}
    for tensor, choice in choices.items():
        found = noise.get(tensor, {_NONE: 0.0})
        best = min(found, key=lambda exponents: found[exponents])
        if best == _NONE:
            continue
        factors = dict.fromkeys(choice.layers, choice.factors[best])
        free = takes_in(graph, factors, corrected)
        if found[best] < (_WORTH if free else _WORTH_A_PRODUCT) * found[_NONE]:
            chosen |= factors
    if not chosen:
        return
    rescaled = rescale_inputs(graph, chosen, untouched=corrected)
    network = study.calibrated(start.rewritten(rescaled.proto, rescaled.stale))
    what = f"{len(chosen)} of {len(layers)} layers"
    if rescaled.products:
        what += f", {rescaled.products} products inserted"
    yield Proposal(network, tuple(n for n in layers if n in chosen), what)


def _axes(graph: Graph, layers: Sequence[str]) -> dict[str, int]:
    nodes = [graph.by_name[name] for name in layers]
    return {node.inputs[0]: channel_axis(graph, node) for node in nodes}


_NONE: Exponents = (0.0, 0.0)


def _choices(
    network: Quantized, layers: Sequence[str], ranges: Mapping[str, ChannelRange]
) -> dict[str, _Choice]:
    """By tensor, what its readers among `layers` may share."""
    graph = network.graph
    readers: dict[str, list[str]] = {}
    for name in layers:
        readers.setdefault(graph.by_name[name].inputs[0], []).append(name)
    found = {}
    for tensor, names in readers.items():
        reach = [weight_reach(graph, graph.by_name[n]) for n in names]
        weight = np.max([r / max(r.max(), 1e-30) for r in reach], axis=0)
        amax = ranges[tensor].amax
        top = amax.max(initial=0.0)
        if top == 0:
            continue
        amax = np.maximum(amax, top / _FARTHEST)
        weight = np.maximum(weight, 1 / _FARTHEST)
        factors = {(a, b): weight**b * (top / amax) ** a for a, b in _TRIED}
        found[tensor] = _Choice(tuple(names), factors)
    return found


def _measured(
    study: Study, start: Quantized, layers: Sequence[str]
) -> dict[str, dict[Exponents, float]]:
    """By tensor, the noise of what its readers compute, Σerr²/Σref² summed over them.

    It is measured on samples that the ranges were not taken from: other samples reach beyond the
    ranges that channels have on a few, and factors that use a range fully then clip them.
    """
    noise: dict[str, dict[Exponents, float]] = {}
    for seen, other in _folds(study):
        ranges = channel_ranges(seen, start.graph, _axes(start.graph, layers))
        choices = _choices(start, layers, ranges)
        wanted = frozenset(name for choice in choices.values() for name in choice.layers)
        for site in Walk(other, start, wanted, "smoothing", _SAMPLES):
            amax, choice = ranges[site.source].amax, choices[site.source]
            found = noise.setdefault(site.source, dict.fromkeys((_NONE, *_TRIED), 0.0))
            exact = site.run(site.reference, site.weight)
            found[_NONE] += _noise(exact, _quantized(start, site, np.ones(len(amax)), amax))
            for exponents, factors in choice.factors.items():
                found[exponents] += _noise(exact, _quantized(start, site, factors, amax))
    return noise


def _folds(study: Study) -> list[tuple[Study, Study]]:
    """Samples to take ranges from, and others to measure on."""
    subset = study.samples
    if len(subset.batches) < 2 and is_whole(subset):
        subset = whole(finely(subset.samples, _SAMPLES))
    if len(subset.batches) < 2:
        return [(study, study)]
    parts = [
        replace(study, samples=SampleSubset(subset.samples, subset.batches[i::2])) for i in (0, 1)
    ]
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def _quantized(network: Quantized, site: Site, factors: Factors, amax: Float64) -> Batches:
    """What a layer gives with its operands quantized, what it reads multiplied by `factors`; `amax`
    is that of each channel without them."""
    graph = network.graph
    node = graph.by_name[site.layer.name]
    shape = [1] * -channel_axis(graph, node)
    shape[0] = -1
    each = factors.reshape(shape).astype(np.float32)
    scale = scale_of(float((factors * amax).max()))
    weight = divided_weight(graph, node, site.weight, factors).astype(np.float32)
    per_channel = network.bound.plan.weights is Granularity.PER_CHANNEL
    along = site.axis if per_channel else None
    rounded_weight = fake_quantize(weight, scale_of(weight_amax(weight, along)), along)
    return site.run([fake_quantize(x * each, scale) for x in site.reference], rounded_weight)


def _noise(exact: Batches, found: Batches) -> float:
    error = sum(
        float(np.square(a - b, dtype=np.float64).sum()) for a, b in zip(exact, found, strict=True)
    )
    total = sum(float(np.square(a, dtype=np.float64).sum()) for a in exact)
    return error / total if total else 0.0


REMEDY = Remedy(
    name="smoothing",
    summary="outlier channels of activations moved into weights, by layer",
    causes=frozenset({"coarse-step"}),
    fewest_samples=4,
    layers=_layers,
    propose=_propose,
    rewrites=True,
)
