"""Cross-layer equalization (Nagel et al. 2019): channels that reach less far than others of their
tensor are made larger by the weights that compute them, and smaller again by those that read them.

A stream of channels may run through Relu, PRelu, pools, residual sums and concatenations: all
weights that compute or read it change together, and nothing is added to the network. With a scale
for each channel of a weight it is the range of the activations that matters, with one scale for a
weight its rounding too; which factors are best is measured, stream by stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdebug.decide.remedies.factors import Group, choose
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study
from qdebug.plan.rewrite.rescale import Stream, rescale_streams, streams
from qdebug.plan.rewrite.weights import Factors

_WORTH = 0.95
"""To which share of what it is without the noise of a stream's layers must fall, at least."""


def _layers(network: Quantized) -> tuple[str, ...]:
    readers = {name for stream in streams(network.graph) for name in stream.readers}
    return tuple(layer.name for layer in network.weighted() if layer.name in readers)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    own = {layer.name for layer in start.weighted()}
    wanted = [s for s in streams(start.graph) if set(layers) & set(s.readers)]
    groups = [
        Group(
            stream.count,
            {name: places for name, places in stream.readers.items() if name in own},
            {name: places for name, places in stream.writers.items() if name in own},
        )
        for stream in wanted
    ]
    chosen: list[tuple[Stream, Factors]] = []
    for stream, choice in zip(wanted, choose(study, start, groups), strict=True):
        if choice is not None and choice.noise < _WORTH:
            chosen.append((stream, choice.factors))
    if not chosen:
        return
    rescaled = rescale_streams(start.graph, chosen)
    network = study.calibrated(start.rewritten(rescaled.proto, rescaled.stale))
    changed = {name for stream, _ in chosen for name in stream.readers}
    names = tuple(name for name in layers if name in changed)
    yield Proposal(network, names, f"{len(chosen)} of {len(wanted)} sets of channels")


REMEDY = Remedy(
    name="equalization",
    fewest_samples=4,
    layers=_layers,
    propose=_propose,
    rewrites=True,
)
