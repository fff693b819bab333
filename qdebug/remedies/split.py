"""split: outlier channels are split into parts, so that the others get a finer step (Zhao et al.
2019, arXiv:1901.09504).

A channel that reaches much further than the others of an activation, or of a weight, is given
twice, four times, …, each time as a part: exact, at the price of more multiply-accumulates. It is
worth it where it takes off a larger share of the layer's noise than it adds to its work: pinning
the layer takes off all of its noise for as much work again, since FP16 takes twice the time of
INT8. What it takes off is measured on samples that the ranges were not taken from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.weights import weight_amax
from qdebug.model.macs import work_of
from qdebug.plan.plan import Correction, Granularity, TensorRange
from qdebug.plan.quantize import fake_quantize, scale_of
from qdebug.plan.rewrite.split import Parts, Split, split_inputs, split_weight
from qdebug.plan.rewrite.weights import (
    Factors,
    along,
    channel_axis,
    divided_weight,
    input_channels,
    weight_reach,
)
from qdebug.remedies.channels import ChannelRange, channel_ranges
from qdebug.remedies.factors import folds, noise_share
from qdebug.remedies.quantized import Quantized
from qdebug.remedies.remedy import Proposal, Remedy, Study
from qdebug.remedies.walk import Batches, Site, Walk
from qdebug.wording import counted

_FEWEST = 4
_REACHES = (0.7, 0.5, 0.35, 0.25, 0.125)
"""How far channels may reach at most once they are split, as a share of the furthest."""
_MOST_ADDED = 0.25
"""By what share of its channels a layer may grow."""
_WORTH = 0.7
"""To which share of what it is without the noise must fall at least: the channels are repeated by
an operation of its own."""
_SAMPLES = 16

Key = tuple[bool, float]
"""Of the weight or the activation, and how far channels reach then."""


@dataclass(frozen=True)
class _Reading:
    """Layers that read one tensor, and the ways to split it."""

    tensor: str
    readers: tuple[str, ...]
    ways: Mapping[Key, Parts]


def _layers(network: Quantized) -> tuple[str, ...]:
    graph = network.graph
    found = []
    for layer in network.weighted():
        node = graph.by_name[layer.name]
        one = graph.attributes(node).get("group", 1) == 1 and node.op_type != "ConvTranspose"
        if one and input_channels(graph, node) and node.inputs[0] in graph.shapes:
            found.append(layer.name)
    return tuple(found)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    graph = start.graph
    tensors: dict[str, list[str]] = {}
    for name in layers:
        tensors.setdefault(graph.by_name[name].inputs[0], []).append(name)
    noise: dict[str, dict[Key | None, float]] = {tensor: {} for tensor in tensors}
    for seen, other in folds(study):
        ranges = _ranges(seen, start, tensors)
        readings = [_reading(start, t, names, ranges[t]) for t, names in tensors.items()]
        _measure(other, start, readings, ranges, noise)
    ranges = _ranges(study, start, tensors)
    splits = []
    for tensor, names in tensors.items():
        split = _best(_reading(start, tensor, names, ranges[tensor]), noise[tensor])
        if split is not None:
            splits.append(split)
    if not splits:
        return
    network = study.calibrated(split_up(start, splits))
    readers = {name for split in splits for name in split.readers}
    more = sum(int(split.parts.sum()) - len(split.parts) for split in splits)
    what = f"{counted(more, 'channel')} more, {added_macs(start, splits):.1%} more MACs"
    yield Proposal(network, tuple(n for n in layers if n in readers), what)


def split_up(start: Quantized, splits: Sequence[Split]) -> Quantized:
    """`start` with channels split, what it computes with in INT8 as well."""
    graph, bound = start.graph, start.bound
    result = split_inputs(graph, splits)
    network = start.rewritten(result.proto, result.stale)
    ranges: dict[str, TensorRange] = {}
    corrections: dict[str, Correction] = {}
    for name, split in {name: s for s in splits for name in s.readers}.items():
        old, new = (n.layers.by_name[name].weight or "" for n in (start, network))
        if old in bound.plan.tensors and not split.of_weight:
            ranges[new] = bound.plan.tensors[old]
        known = bound.corrections.get(name)
        if known is not None:
            node = graph.by_name[name]
            own = known.weight
            wide = None if own is None else split_weight(graph, node, split, own)
            corrections[name] = replace(known, weight=wide)
    return network.with_ranges(ranges).with_corrections(corrections)


def added_macs(network: Quantized, splits: Sequence[Split]) -> float:
    """By what share the multiply-accumulates of a network grow."""
    macs = {name: work.macs for name, work in work_of(network.layers, {}).items()}
    added = sum(split.added * macs[name] for split in splits for name in split.readers)
    return added / max(1.0, sum(macs.values()))


def parts_for(reach: Factors, share: float) -> Parts:
    """Into how many parts channels are split so that none reaches further than a share of the
    furthest."""
    limit = share * float(reach.max(initial=0.0))
    if limit <= 0:
        return np.ones(len(reach), np.int64)
    powers = np.ceil(np.log2(np.maximum(reach / limit, 1.0)) - 1e-9)
    return np.asarray(2.0**powers, np.int64)


def _reading(
    network: Quantized, tensor: str, readers: Sequence[str], ranges: ChannelRange
) -> _Reading:
    weight = np.max([_weight_reach(network, name) for name in readers], axis=0)
    ways: dict[Key, Parts] = {}
    for of_weight, reach in ((False, ranges.amax), (True, weight)):
        for share in _REACHES:
            parts = parts_for(reach, share)
            if 0 < parts.sum() - len(parts) <= _MOST_ADDED * len(parts):
                ways[of_weight, share] = parts
    return _Reading(tensor, tuple(readers), ways)


def _weight_reach(network: Quantized, layer: str) -> Factors:
    """How far a weight reaches for each input channel, relative to the furthest."""
    reach = weight_reach(network.graph, network.graph.by_name[layer])
    return reach / max(float(reach.max()), 1e-30)


def _ranges(
    study: Study, network: Quantized, tensors: Mapping[str, Sequence[str]]
) -> dict[str, ChannelRange]:
    graph = network.graph
    axes = {t: channel_axis(graph, graph.by_name[names[0]]) for t, names in tensors.items()}
    return channel_ranges(study, graph, axes)


def _measure(
    study: Study,
    network: Quantized,
    readings: Sequence[_Reading],
    ranges: Mapping[str, ChannelRange],
    noise: Mapping[str, dict[Key | None, float]],
) -> None:
    """Add the noise of what layers give, as they are and split in each way."""
    of = {name: reading for reading in readings if reading.ways for name in reading.readers}
    for site in Walk(study, network, frozenset(of), "split", _SAMPLES):
        reading = of[site.layer.name]
        exact = site.run(site.reference, site.weight)
        known = noise[site.source]
        whole = np.ones(len(ranges[site.source].amax), np.int64)
        ways: list[tuple[Key | None, Parts]] = [(None, whole), *reading.ways.items()]
        for key, parts in ways:
            of_weight = key is not None and key[0]
            found = _given(network, site, parts, ranges[site.source].amax, of_weight=of_weight)
            known[key] = known.get(key, 0.0) + noise_share(exact, found)


def _given(
    network: Quantized,
    site: Site,
    parts: Parts,
    amax: npt.NDArray[np.float64],
    *,
    of_weight: bool,
) -> Batches:
    """What a layer gives whose channels are split: parts of one value have one code, so that the
    sum of them is this code times their number."""
    graph = network.graph
    node = graph.by_name[site.layer.name]
    ones, each_in = np.ones(len(parts)), parts.astype(np.float64)
    x_parts, w_parts = (ones, each_in) if of_weight else (each_in, ones)
    each = along(1 / x_parts, 0, -channel_axis(graph, node)).astype(np.float32)
    scale = scale_of(float((amax / x_parts).max()))
    values = [fake_quantize(x * each, scale) / each for x in site.reference]
    per_channel = network.bound.plan.weights is Granularity.PER_CHANNEL
    axis = site.axis if per_channel else None
    weight = divided_weight(graph, node, site.weight, w_parts).astype(np.float32)
    rounded = fake_quantize(weight, scale_of(weight_amax(weight, axis)), axis)
    whole = divided_weight(graph, node, rounded, 1 / w_parts).astype(np.float32)
    return site.run(values, whole)


def _best(reading: _Reading, noise: Mapping[Key | None, float]) -> Split | None:
    """The way that takes off most next to what it adds; None where pinning is worth more."""
    whole = noise.get(None, 0.0)
    best, most = None, 0.0
    for key, parts in reading.ways.items():
        if key not in noise or whole <= 0 or noise[key] > _WORTH * whole:
            continue
        split = Split(reading.tensor, reading.readers, parts, key[0])
        gain = 1 - noise[key] / whole - split.added
        if gain > most:
            best, most = split, gain
    return best


REMEDY = Remedy(
    name="split",
    summary="splits outlier channels into parts, for more multiply-accumulates",
    causes=frozenset({"coarse-step"}),
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
    rewrites=True,
    adds_work=True,
)
