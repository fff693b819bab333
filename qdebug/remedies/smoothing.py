"""SmoothQuant (Xiao et al. 2023): the range that some channels of an activation need is moved into
the weights that read it, layer by layer.

Channel j is multiplied by f_j = max|W_j|^b / max|X_j|^a, and the weight divided by it. One pair of
exponents for all layers harms; here each layer gets that with which its own output is nearest to
the one in FP32, or none. The factors are taken in by the normalization or the weights before, where
that is exact, and by one product otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.calibrators.weights import weight_amax
from qdebug.plan.plan import Granularity
from qdebug.plan.quantize import FloatArray, fake_quantize, scale_of
from qdebug.plan.rewrite.rescale import (
    Factors,
    channel_axis,
    divided_weight,
    input_channels,
    rescale_inputs,
    weight_reach,
)
from qdebug.remedies.channels import ChannelRange, channel_ranges
from qdebug.remedies.quantized import Quantized
from qdebug.remedies.remedy import Proposal, Remedy, Study
from qdebug.remedies.walk import Batches, Site, Walk

Exponents = tuple[float, float]
"""Of the activation's range and of the weight's."""

_TRIED: tuple[Exponents, ...] = (
    *((0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0)),
    *((0.5, 0.25), (0.75, 0.25), (0.5, 0.5), (0.65, 0.35), (0.85, 0.15)),
)
_WORTH = 0.9
"""A layer's noise must fall to this share of what it is without."""

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
    axes = {graph.by_name[n].inputs[0]: channel_axis(graph, graph.by_name[n]) for n in layers}
    ranges = channel_ranges(study, graph, axes)
    choices = _choices(start, layers, ranges)
    noise = _measured(study, start, choices)
    chosen: dict[str, Factors] = {}
    for tensor, choice in choices.items():
        best = min(noise[tensor], key=lambda e: noise[tensor][e])
        if best != _NONE and noise[tensor][best] < _WORTH * noise[tensor][_NONE]:
            chosen |= dict.fromkeys(choice.layers, choice.factors[best])
    if not chosen:
        return
    corrected = frozenset(start.bound.corrections)
    rescaled = rescale_inputs(graph, chosen, untouched=corrected)
    network = study.calibrated(start.rewritten(rescaled.proto, rescaled.stale))
    what = f"{len(chosen)} of {len(layers)} layers"
    if rescaled.products:
        what += f", {rescaled.products} products inserted"
    yield Proposal(network, tuple(n for n in layers if n in chosen), what)


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
    study: Study, start: Quantized, choices: Mapping[str, _Choice]
) -> dict[str, dict[Exponents, float]]:
    """By tensor, the noise of what its readers compute, Σerr²/Σref² summed over them."""
    wanted = frozenset(name for choice in choices.values() for name in choice.layers)
    noise: dict[str, dict[Exponents, float]] = {}
    for site in Walk(study, start, wanted, "smoothing", _SAMPLES):
        choice = choices[site.source]
        found = noise.setdefault(site.source, dict.fromkeys((_NONE, *choice.factors), 0.0))
        exact = site.run(site.reference, site.weight)
        found[_NONE] += _noise(exact, _quantized(start, site, None))
        for exponents, factors in choice.factors.items():
            found[exponents] += _noise(exact, _quantized(start, site, factors))
    return noise


def _quantized(network: Quantized, site: Site, factors: Factors | None) -> Batches:
    """What a layer gives with its operands quantized, what it reads multiplied by `factors`."""
    graph = network.graph
    node = graph.by_name[site.layer.name]
    if factors is None:
        rounded = [fake_quantize(x, site.scale) for x in site.reference]
        return site.run(rounded, site.rounded_weight())
    axis = channel_axis(graph, node)
    shape = [1] * -axis
    shape[0] = -1
    each = factors.reshape(shape).astype(np.float32)
    scaled = [x * each for x in site.reference]
    scale = scale_of(max(float(np.abs(x).max(initial=0.0)) for x in scaled))
    weight = divided_weight(graph, node, site.weight, factors).astype(np.float32)
    per_channel = network.bound.plan.weights is Granularity.PER_CHANNEL
    along = site.axis if per_channel else None
    rounded_weight: FloatArray = fake_quantize(weight, scale_of(weight_amax(weight, along)), along)
    return site.run([fake_quantize(x, scale) for x in scaled], rounded_weight)


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
)
