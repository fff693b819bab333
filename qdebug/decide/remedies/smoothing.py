"""SmoothQuant (Xiao et al. 2023): the range that some channels of an activation need is moved into
the weights that read it, layer by layer.

Channel j is multiplied by f_j = max|W_j|^b / max|X_j|^a, and the weight divided by it. One pair of
exponents for all layers harms; here each layer gets that with which its own output is nearest to
the one in FP32, or none. The factors are taken in by the normalization or the weights before, where
that is exact, and by one product otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdebug.decide.remedies.factors import choose, groups_of
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.plan.rewrite.rescale import rescale_inputs, takes_in
from qdebug.plan.rewrite.weights import Factors, input_channels

_WORTH, _WORTH_A_PRODUCT = 0.9, 0.7
"""To which share of what it is without a layer's noise must fall, at least: where constants take
the factors in, and where a product is inserted."""


def _layers(network: Quantized) -> tuple[str, ...]:
    graph = network.graph
    found = []
    for layer in network.weighted():
        node = graph.by_name[layer.name]
        grouped = node.op_type == "Conv" and graph.attributes(node).get("group", 1) != 1
        if not grouped and input_channels(graph, node):
            found.append(layer.name)
    return tuple(found)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    graph = start.graph
    groups = groups_of(start, layers)
    chosen: dict[str, Factors] = {}
    for group, choice in zip(groups, choose(study, start, groups), strict=True):
        if choice is None:
            continue
        factors = dict.fromkeys(group.readers, choice.factors)
        free = takes_in(graph, factors)
        if choice.noise < (_WORTH if free else _WORTH_A_PRODUCT):
            chosen |= factors
    if not chosen:
        return
    rescaled = rescale_inputs(graph, chosen)
    network = study.calibrated(start.rewritten(rescaled.proto, rescaled.stale))
    what = f"{len(chosen)} of {len(layers)} layers"
    if rescaled.products:
        what += f", {rescaled.products} Mul inserted"
    yield Proposal(network, tuple(n for n in layers if n in chosen), what)


REMEDY = Remedy(
    name="smoothing",
    fewest_samples=4,
    layers=_layers,
    propose=_propose,
    rewrites=True,
)
