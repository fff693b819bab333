"""One scale per channel for what grouped convolutions read, in a form that runtimes take.

A depthwise convolution reads each channel apart, and their ranges differ widely; TensorRT and
QLinearConv take one scale for the whole tensor. Multiplying each channel by a constant before Q, so
that all reach equally far, and dividing the weight by it computes the same with a scale of its own
for each channel. Where the weight has one scale too, its range counts as well: the factors are
those with which the layer's own output is best. The product is taken in by the weights before,
where that is exact, and fused with its neighbours otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qdebug.decide.remedies.channels import Float64, channel_ranges
from qdebug.decide.remedies.factors import choose, groups_of
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.plan.rewrite.rescale import rescale_inputs
from qdebug.plan.rewrite.weights import Factors, channel_axis, input_channels

_FARTHEST = 64.0
"""Between the factors of two channels: what a channel holds that hardly anything was seen in."""


def _layers(network: Quantized) -> tuple[str, ...]:
    graph = network.graph
    found = []
    for layer in network.bound.quantized_layers():
        node = graph.by_name[layer.name]
        if node.op_type != "Conv" or graph.attributes(node).get("group", 1) == 1:
            continue
        if input_channels(graph, node):
            found.append(layer.name)
    return tuple(found)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    groups = groups_of(start, layers)
    best: dict[str, Factors] = {}
    for group, choice in zip(groups, choose(study, start, groups), strict=True):
        best |= dict.fromkeys(group.readers, choice.factors) if choice else {}
    if best:
        yield _rescaled(study, start, best, "measured by layer")
    graph = start.graph
    nodes = [graph.by_name[name] for name in layers]
    axes = {node.inputs[0]: channel_axis(graph, node) for node in nodes}
    ranges = channel_ranges(study, graph, axes)
    equal = {n.name: equal_reach(ranges[n.inputs[0]].mean_amax) for n in nodes}
    yield _rescaled(study, start, equal, "equal ranges")


def _rescaled(study: Study, start: Quantized, factors: Mapping[str, Factors], how: str) -> Proposal:
    rescaled = rescale_inputs(start.graph, factors)
    network = study.calibrated(start.rewritten(rescaled.proto, rescaled.stale))
    if rescaled.products:
        how += f", {rescaled.products} Mul inserted"
    return Proposal(network, tuple(factors), how)


def equal_reach(amax: Float64) -> Factors:
    """Factors that bring channels of these magnitudes, [channels], to that of the largest one; 1
    for channels that are zero."""
    top = float(amax.max(initial=0.0))
    factors: Factors = np.ones(len(amax))
    alive = amax > 0
    factors[alive] = np.minimum(top / amax[alive], _FARTHEST)
    return factors


REMEDY = Remedy(
    rewrites=True,
    name="channel-scales",
    fewest_samples=1,
    layers=_layers,
    propose=_propose,
)
