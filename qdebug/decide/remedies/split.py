"""split: outlier channels are split into parts, so that the others get a finer step (Zhao et al.
2019, arXiv:1901.09504).

A channel that reaches much further than the others of an activation, or of a weight, is given
twice, four times, …, each time as a part: exact, at the price of more multiply-accumulates. It is
worth it where it takes off a larger share of the layer's noise than it adds to its work: pinning
the layer takes off all of its noise for as much work again, since FP16 takes twice the time of
INT8. What it takes off is measured on samples that the ranges were not taken from. The channels are
made by the layer before, which grows as well: there is no operation more (plan/rewrite/split.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.weights import weight_amax
from qdebug.decide.remedies.channels import ChannelRange, channel_ranges
from qdebug.decide.remedies.factors import folds
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.decide.remedies.walk import Site, Trial, Walk
from qdebug.formats.base import along
from qdebug.network.graph import Graph
from qdebug.network.macs import work_of
from qdebug.plan.plan import Correction, Granularity, TensorRange
from qdebug.plan.quantize import scale_of
from qdebug.plan.rewrite.split import (
    Parts,
    Split,
    Way,
    split_channels,
    split_input,
    split_output,
    way_to,
)
from qdebug.plan.rewrite.weights import (
    Factors,
    channel_axis,
    divided_weight,
    weight_reach,
)
from qdebug.wording import counted

_FEWEST = 4
_REACHES = (0.7, 0.5, 0.35, 0.25, 0.125)
"""How far channels may reach at most once they are split, as a share of the furthest."""
_MOST_ADDED = 0.25
"""By what share the work of a layer may grow."""
_WORTH = 0.9
"""To which share of what it is without the noise must fall at least."""
_SAMPLES = 16

Key = tuple[bool, float]
"""Of the weight or the activation, and how far channels reach then."""


@dataclass(frozen=True)
class _Reading:
    """Layers that read one tensor, and in how many parts its channels may be."""

    way: Way
    ways: Mapping[Key, Parts]


def _layers(network: Quantized) -> tuple[str, ...]:
    readers = {name for way in _ways(network) for name in way.readers}
    return tuple(layer.name for layer in network.weighted() if layer.name in readers)


def _ways(network: Quantized) -> list[Way]:
    """Those to what INT8 layers alone read."""
    graph = network.graph
    own = {layer.name for layer in network.weighted()}
    tensors = dict.fromkeys(graph.by_name[name].inputs[0] for name in own)
    found = (way_to(graph, tensor) for tensor in graph.producers if tensor in tensors)
    return [way for way in found if way is not None and own.issuperset(way.readers)]


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    ways = [way for way in _ways(start) if set(layers).issuperset(way.readers)]
    if not ways:
        return
    noise: dict[str, dict[Key | None, float]] = {way.tensor: {} for way in ways}
    for seen, other in folds(study):
        ranges = _ranges(seen, start, ways)
        readings = [_reading(start, way, ranges[way.tensor]) for way in ways]
        _measure(other, start, readings, ranges, noise)
    ranges = _ranges(study, start, ways)
    macs = _macs(start)
    splits = []
    for way in ways:
        price = 1 + macs[way.writer] / max(1.0, sum(macs[name] for name in way.readers))
        split = _best(_reading(start, way, ranges[way.tensor]), noise[way.tensor], price)
        if split is not None:
            splits.append(split)
    if not splits:
        return
    network = study.calibrated(split_up(start, splits))
    readers = {name for split in splits for name in split.way.readers}
    more = sum(int(split.parts.sum()) - len(split.parts) for split in splits)
    what = (
        f"{counted(more, 'channel')} more, {added_macs(start, splits):.1%} more MACs in whole tiles"
    )
    yield Proposal(network, tuple(n for n in layers if n in readers), what)


def split_up(start: Quantized, splits: Sequence[Split]) -> Quantized:
    """`start` with channels split, what it computes with in INT8 as well."""
    graph, bound = start.graph, start.bound
    result = split_channels(graph, splits)
    network = start.rewritten(result.proto, result.stale)
    reading = {name: split for split in splits for name in split.way.readers}
    writing = {split.way.writer: split for split in splits}
    ranges: dict[str, TensorRange] = {}
    corrections: dict[str, Correction] = {}
    for layer in start.weighted():
        name, weight = layer.name, layer.weight or ""
        reads, writes = reading.get(name), writing.get(name)
        if reads is None and writes is None:
            continue
        entry = _split_range(bound.plan.tensors.get(weight), reads, writes)
        if entry is not None:
            ranges[network.layers.by_name[name].weight or ""] = entry
        known = bound.corrections.get(name)
        if known is not None:
            corrections[name] = _split_correction(graph, name, known, reads, writes)
    return network.with_ranges(ranges).with_corrections(corrections)


def _split_range(
    entry: TensorRange | None, reads: Split | None, writes: Split | None
) -> TensorRange | None:
    """The range of a weight whose channels are repeated; None for what its values say."""
    if entry is None or (reads is not None and reads.of_weight):
        return None
    if writes is None:
        return entry
    if not isinstance(entry.amax, tuple):
        return entry if writes.of_weight else None
    amax = writes.repeated(np.asarray(entry.amax), 0, divided=not writes.of_weight)
    return replace(entry, amax=tuple(amax.tolist()))


def _split_correction(
    graph: Graph, name: str, known: Correction, reads: Split | None, writes: Split | None
) -> Correction:
    node = graph.by_name[name]
    weight, bias = known.weight, known.bias
    if weight is not None and reads is not None:
        weight = split_input(graph, node, reads, weight).astype(np.float32)
    if weight is not None and writes is not None:
        weight = split_output(graph, node, writes, weight).astype(np.float32)
    if bias is not None and writes is not None:
        bias = writes.repeated(bias, 0, divided=not writes.of_weight).astype(np.float32)
    return Correction(weight, bias)


def added_macs(network: Quantized, splits: Sequence[Split]) -> float:
    """By what share the multiply-accumulates of a network grow."""
    macs = _macs(network)
    layers = ((split, name) for split in splits for name in (*split.way.readers, split.way.writer))
    added = sum(split.added * macs[name] for split, name in layers)
    return added / max(1.0, sum(macs.values()))


def _macs(network: Quantized) -> dict[str, float]:
    return {name: work.macs for name, work in work_of(network.layers, {}).items()}


def parts_for(reach: Factors, share: float) -> Parts:
    """Into how many parts channels are split so that none reaches further than a share of the
    furthest."""
    limit = share * float(reach.max(initial=0.0))
    if limit <= 0:
        return np.ones(len(reach), np.int64)
    powers = np.ceil(np.log2(np.maximum(reach / limit, 1.0)) - 1e-9)
    return np.asarray(2.0**powers, np.int64)


def _reading(network: Quantized, way: Way, ranges: ChannelRange) -> _Reading:
    weight = np.max([_weight_reach(network, name) for name in way.readers], axis=0)
    kinds = ((False, ranges.amax), (True, weight))
    ways: dict[Key, Parts] = {}
    for of_weight, reach in kinds if way.homogeneous else kinds[1:]:
        for share in _REACHES:
            parts = parts_for(reach, share)
            more = parts.sum() > len(parts)
            if more and Split(way, parts, of_weight).added <= _MOST_ADDED:
                ways[of_weight, share] = parts
    return _Reading(way, ways)


def _weight_reach(network: Quantized, layer: str) -> Factors:
    """How far a weight reaches for each input channel, relative to the furthest."""
    reach = weight_reach(network.graph, network.graph.by_name[layer])
    return reach / max(float(reach.max()), 1e-30)


def _ranges(study: Study, network: Quantized, ways: Sequence[Way]) -> dict[str, ChannelRange]:
    graph = network.graph
    axes = {way.tensor: channel_axis(graph, graph.by_name[way.readers[0]]) for way in ways}
    return channel_ranges(study, graph, axes)


def _measure(
    study: Study,
    network: Quantized,
    readings: Sequence[_Reading],
    ranges: Mapping[str, ChannelRange],
    noise: Mapping[str, dict[Key | None, float]],
) -> None:
    """Add the noise of what layers give, as they are and split in each way."""
    of = {name: reading for reading in readings if reading.ways for name in reading.way.readers}
    for site in Walk(study, network, frozenset(of), "split", _SAMPLES, exact=True):
        reading = of[site.layer.name]
        known = noise[site.source]
        whole = np.ones(len(ranges[site.source].amax), np.int64)
        ways: list[tuple[Key | None, Parts]] = [(None, whole), *reading.ways.items()]
        trial = partial(_trial, network, site, ranges[site.source].amax)
        found = site.noise([partial(trial, key, parts) for key, parts in ways])
        for (key, _), one in zip(ways, found, strict=True):
            known[key] = known.get(key, 0.0) + one


def _trial(
    network: Quantized, site: Site, amax: npt.NDArray[np.float64], key: Key | None, parts: Parts
) -> Trial:
    """A layer whose channels are split: parts of one value have one code, so that the sum of them
    is this code times their number."""
    of_weight = key is not None and key[0]
    graph = network.graph
    node = graph.by_name[site.layer.name]
    ones, each_in = np.ones(len(parts)), parts.astype(np.float64)
    x_parts, w_parts = (ones, each_in) if of_weight else (each_in, ones)
    each = along(1 / x_parts, 0, -channel_axis(graph, node)).astype(np.float32)
    form = site.format
    scale = scale_of(float((amax / x_parts).max()), form=form)
    per_channel = network.bound.plan.weights is Granularity.PER_CHANNEL
    axis = site.axis if per_channel else None
    weight = divided_weight(graph, node, site.weight, w_parts).astype(np.float32)
    rounded = form.quantize(weight, scale_of(weight_amax(weight, axis), form=form), axis)
    whole = divided_weight(graph, node, rounded, 1 / w_parts).astype(np.float32)
    return Trial(lambda x: form.quantize(x * each, scale) / each, whole)


def _best(reading: _Reading, noise: Mapping[Key | None, float], price: float) -> Split | None:
    """The split that takes off most next to what it adds; None where pinning is worth more. A
    channel more costs `price` times what it costs in the layers that read it."""
    whole = noise.get(None, 0.0)
    best, most = None, 0.0
    for key, parts in reading.ways.items():
        if key not in noise or whole <= 0 or noise[key] > _WORTH * whole:
            continue
        split = Split(reading.way, parts, key[0])
        gain = 1 - noise[key] / whole - price * split.added
        if gain > most:
            best, most = split, gain
    return best


REMEDY = Remedy(
    name="split",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
    rewrites=True,
    adds_work=True,
)
