"""bias-correction: what quantization adds to the mean of a channel is taken off its bias.

Layer by layer, behind the layers as quantized and corrected before it: the mean over samples and
positions of the FP32 output less the quantized one (Nagel et al., "Data-free quantization through
weight equalization and bias correction", 2019, arXiv:1906.04721, section 4.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qdebug.calibrators.histogram import Float64
from qdebug.decide.remedies.product import channel_axis
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study, apart_from_heads
from qdebug.decide.remedies.walk import Site, Walk

_FEWEST = 4


def mean_error(site: Site) -> Float64:
    """What the layer's output, as quantized now, lacks in the mean: float64 [channels], or [1]."""
    axis = channel_axis(site.network.graph, site.layer)
    total, count = np.zeros(1), 0
    for target, output in zip(site.targets, site.outputs(), strict=True):
        missing = target - output
        others = tuple(i for i in range(missing.ndim) if axis is None or i != axis % missing.ndim)
        total = total + missing.sum(axis=others, dtype=np.float64)
        count += missing.size // len(np.atleast_1d(total))
    return total / max(1, count)


def correct_bias(site: Site) -> bool:
    """Take the mean error of a layer off its bias; False where that is not a number."""
    missing = mean_error(site)
    known = site.correction.bias
    bias = (missing if known is None else known + missing).astype(np.float32)
    if not np.all(np.isfinite(bias)):
        return False
    site.correct(replace(site.correction, bias=bias))
    return True


def _layers(network: Quantized) -> tuple[str, ...]:
    return tuple(layer.name for layer in network.weighted())


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    walk = Walk(study, start, frozenset(layers), "bias correction")
    changed = tuple(site.layer.name for site in walk if correct_bias(site))
    if changed:
        yield Proposal(walk.network, changed)


REMEDY = Remedy(
    name="bias-correction",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
    groups=apart_from_heads,
)
