"""Which factors to multiply channels by before they are quantized: measured, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.weights import weight_amax
from qdebug.decide.remedies.channels import ChannelRange, Float64, channel_ranges
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.decide.remedies.walk import Site, Trial, Walk
from qdebug.formats.base import FloatArray, along
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset, finely, is_whole, whole
from qdebug.plan.plan import Granularity
from qdebug.plan.quantize import scale_of
from qdebug.plan.rewrite.weights import (
    Factors,
    channel_axis,
    divided_weight,
    input_channels,
    weight_reach,
)

Exponents = tuple[float, float]
"""Of the activation's range and of the weight's: f_j = max|W_j|^b / max|X_j|^a."""

NONE: Exponents = (0.0, 0.0)
"""Nothing is multiplied."""

_TRIED: tuple[Exponents, ...] = (
    *((0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0)),
    *((0.5, 0.25), (0.75, 0.25), (0.5, 0.5), (0.65, 0.35), (0.85, 0.15)),
)

_ONE_SCALE: tuple[Exponents, ...] = (
    *((0.0, 0.25), (0.0, 0.5), (0.0, 0.75), (0.0, 1.0), (0.25, 0.75)),
)
"""Tried as well where a weight has one scale: its rounding may be worse than the activation's."""

_BALANCED: Exponents = (-1.0, 0.5)
"""Nagel et al. 2019, where a weight has one scale: both weights of a channel reach equally far."""

_FARTHEST = 1024.0
"""Between the largest magnitude of a channel and one that counts."""

_SAMPLES, _BYTES = 16, 1 << 28
"""Of each half, and of their activations at once: enough to choose between a few exponents. Large
images are fewer, since each holds many values."""


@dataclass(frozen=True)
class Group:
    """Layers that read the same channels.

    Attributes:
        count: how many channels.
        readers: by layer, the number of the channel that each of its input channels is, int [input
            channels], -1 for none of them.
        writers: so of output channels, of layers that compute them.
    """

    count: int
    readers: Mapping[str, npt.NDArray[np.int64]]
    writers: Mapping[str, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Choice:
    """The factors with which the outputs of a group's layers are nearest to those in FP32.

    Attributes:
        factors: [channels].
        noise: Σerr²/Σref² with them, as a share of what it is without.
    """

    factors: Factors
    noise: float


def choose(study: Study, network: Quantized, groups: Sequence[Group]) -> list[Choice | None]:
    """The best factors of each group; None where none are better.

    Noise is measured on samples that the ranges were not taken from: other samples reach beyond the
    ranges that channels have on a few, and factors that use a range fully then clip them.
    """
    noise: list[dict[Exponents, float]] = [{} for _ in groups]
    for seen, other in folds(study):
        _measure(seen, other, network, groups, noise)
    ranges = channel_ranges(study, network.graph, _axes(network.graph, groups))
    found: list[Choice | None] = []
    for group, measured in zip(groups, noise, strict=True):
        best = min(measured, key=lambda e: measured[e], default=NONE)
        if best == NONE:
            found.append(None)
            continue
        factors = _candidates(network, group, ranges)[best]
        found.append(Choice(factors, measured[best] / measured[NONE]))
    return found


def groups_of(network: Quantized, layers: Sequence[str]) -> list[Group]:
    """Layers by the tensor that they read."""
    graph = network.graph
    readers: dict[tuple[str, int], list[str]] = {}
    for name in layers:
        node = graph.by_name[name]
        readers.setdefault((node.inputs[0], input_channels(graph, node) or 0), []).append(name)
    return [
        Group(count, dict.fromkeys(names, np.arange(count)), {})
        for (_, count), names in readers.items()
    ]


def folds(study: Study) -> list[tuple[Study, Study]]:
    """Samples to take ranges from, and others to measure on; the same where there is but one."""
    subset = study.samples
    if len(subset.batches) < 2 and is_whole(subset):
        subset = whole(finely(subset.samples, _SAMPLES))
    if len(subset.batches) < 2:
        return [(study, study)]
    less = replace(study, memory_bytes=min(study.memory_bytes, _BYTES))
    parts = [
        replace(less, samples=SampleSubset(subset.samples, subset.batches[i::2])) for i in (0, 1)
    ]
    return [(parts[0], parts[1]), (parts[1], parts[0])]


def _axes(graph: Graph, groups: Sequence[Group]) -> dict[str, int]:
    nodes = [graph.by_name[name] for group in groups for name in group.readers]
    return {node.inputs[0]: channel_axis(graph, node) for node in nodes}


def _measure(
    seen: Study,
    other: Study,
    network: Quantized,
    groups: Sequence[Group],
    noise: list[dict[Exponents, float]],
) -> None:
    """Add the noise with the factors of each group that `seen` samples give, on `other` samples."""
    ranges = channel_ranges(seen, network.graph, _axes(network.graph, groups))
    candidates = [_candidates(network, group, ranges) for group in groups]
    reading = {name: i for i, group in enumerate(groups) for name in group.readers}
    writing = {name: i for i, group in enumerate(groups) for name in group.writers}
    if _per_channel(network):
        writing = {}  # each output channel has a scale of its own
    wanted = frozenset(reading) | frozenset(writing)
    for site in Walk(other, network, wanted, "factors", _SAMPLES, exact=True):
        name = site.layer.name
        if name in reading:
            i, amax = reading[name], ranges[site.source].amax
            places = groups[i].readers[name]
            read = partial(_read, network, site, places, amax)
            _add(noise[i], site, candidates[i], read)
        if name in writing:
            i = writing[name]
            _add(noise[i], site, candidates[i], partial(_written, site, groups[i].writers[name]))


def _add(
    noise: dict[Exponents, float],
    site: Site,
    candidates: Mapping[Exponents, Factors],
    trial: Callable[[Factors], Trial],
) -> None:
    found = site.noise([partial(trial, factors) for factors in candidates.values()])
    for exponents, one in zip(candidates, found, strict=True):
        noise[exponents] = noise.get(exponents, 0.0) + one


def _per_channel(network: Quantized) -> bool:
    return network.bound.plan.weights is Granularity.PER_CHANNEL


def _placed(factors: Factors, places: npt.NDArray[np.int64]) -> Factors:
    """The factors of a layer's channels."""
    return np.where(places >= 0, factors[places], 1.0)


def _candidates(
    network: Quantized, group: Group, ranges: Mapping[str, ChannelRange]
) -> dict[Exponents, Factors]:
    graph = network.graph
    amax, weight = np.zeros(group.count), np.zeros(group.count)
    for name, places in group.readers.items():
        node, own = graph.by_name[name], places >= 0
        for total, part in (
            (amax, ranges[node.inputs[0]].amax),
            (weight, weight_reach(graph, node)),
        ):
            largest = part[own].max(initial=0.0)
            if largest > 0:
                np.maximum.at(total, places[own], part[own] / largest)
    amax, weight = np.maximum(amax, 1 / _FARTHEST), np.maximum(weight, 1 / _FARTHEST)
    found = {NONE: np.ones(group.count)}
    tried = _TRIED if _per_channel(network) else (*_TRIED, *_ONE_SCALE)
    found |= {(a, b): weight**b / amax**a for a, b in tried}
    if group.writers and not _per_channel(network):
        found[_BALANCED] = np.sqrt(weight / _written_reach(network, group))
    return found


def _written_reach(network: Quantized, group: Group) -> Factors:
    """How far the weights that compute each channel reach, as a share of the largest."""
    total = np.zeros(group.count)
    for name, places in group.writers.items():
        layer = network.layers.by_name[name]
        values, axis = network.graph.constant(layer.weight or ""), network.axis(layer)
        if values is None or axis is None:
            continue
        reach = weight_amax(values.astype(np.float32), axis).astype(np.float64)
        own = places >= 0
        np.maximum.at(total, places[own], reach[own] / max(float(reach.max()), 1e-30))
    return np.maximum(total, 1 / _FARTHEST)


def _read(
    network: Quantized,
    site: Site,
    places: npt.NDArray[np.int64],
    amax: Float64,
    by_group: Factors,
) -> Trial:
    """A layer with its operands quantized, what it reads multiplied by the group's factors; `amax`
    is that of each channel without them."""
    graph, factors = network.graph, _placed(by_group, places)
    node = graph.by_name[site.layer.name]
    each = along(factors, 0, -channel_axis(graph, node)).astype(np.float32)
    form = site.format
    scale = scale_of(float((factors * amax).max()), form=form)
    weight = divided_weight(graph, node, site.weight, factors).astype(np.float32)
    axis = site.axis if _per_channel(network) else None
    rounded = form.quantize(weight, scale_of(weight_amax(weight, axis), form=form), axis)
    return Trial(lambda x: form.quantize(x * each, scale), rounded)


def _written(site: Site, places: npt.NDArray[np.int64], by_group: Factors) -> Trial:
    """A layer with its weight, of one scale, rounded after a product with the group's factors along
    the output channels."""
    assert site.axis is not None
    factors = _placed(by_group, places)
    each = along(factors, site.axis, site.weight.ndim).astype(np.float32)
    weight: FloatArray = site.weight * each
    scale = scale_of(weight_amax(weight, None), form=site.format)
    rounded = site.format.quantize(weight, scale) / each
    return Trial(lambda x: x, rounded)
