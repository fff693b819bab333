"""bias-correction: what quantization adds to the mean of a channel is taken off its bias.

Layer by layer, behind the layers as quantized and corrected before it: the mean over samples and
positions of the FP32 output less the quantized one (Nagel et al., "Data-free quantization through
weight equalization and bias correction", 2019, arXiv:1906.04721, section 4.2).

What matters is what gets through the activation behind the layer: see activation.py. The plain
mean is that of the many positions where a SiLU gives nothing, and takes what is right off the few
others: F1 of a YOLOv8n fell by it from 0.913 to 0.352, and rises to 0.934 by the shift of least
squared error behind the activation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qdebug.calibrators.histogram import Float64
from qdebug.decide.remedies.activation import Activation
from qdebug.decide.remedies.product import channel_axis
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study, apart_from_heads
from qdebug.decide.remedies.walk import Site, Walk
from qdebug.formats.base import FloatArray, along

_FEWEST = 4
_SMALLEST = 1e-3
"""Of the largest error, or slope, of a channel: those below count as so large, or as none."""
_ITERATIONS = 3
"""Of Gauss-Newton; what is left to shift then is a hundredth of it."""


def missing_shift(site: Site) -> Float64:
    """What the layer's output, as quantized now, lacks: the shift that leaves the least squared
    error behind the activation, by Gauss-Newton, which without one is the mean error. float64
    [channels], or [1]."""
    axis, outputs = channel_axis(site.network.graph, site.layer), site.outputs()
    total, squares, count = np.zeros(1), np.zeros(1), 0
    for target, output in zip(site.targets, outputs, strict=True):
        missing = target - output
        total = total + _by_channel(missing, axis)
        squares = squares + _by_channel(np.square(missing), axis)
        count += missing.size // len(total)
    mean = total / max(1, count)
    deviation = np.sqrt(np.maximum(squares / max(1, count) - mean**2, 0.0))
    step = np.maximum(deviation, _SMALLEST * deviation.max()).astype(np.float32)
    if site.activation is None or not step.all() or not np.isfinite(step).all():
        return mean
    shift = np.zeros(len(mean))
    for _ in range(_ITERATIONS):
        shift = shift + _gauss_newton(site, site.activation, shift, step, axis)
    return shift


def _gauss_newton(
    site: Site, activation: Activation, shift: Float64, step: FloatArray, axis: int | None
) -> Float64:
    """One iteration from `shift`; slopes are difference quotients over `step`, the usual error."""
    total, weights = np.zeros(1), np.zeros(1)
    for target, output in zip(site.targets, site.outputs(), strict=True):
        shifted = output + along(shift.astype(np.float32), axis, output.ndim)
        slope = activation.slope(shifted, along(step, axis, output.ndim))
        left = activation(target) - activation(shifted)
        total = total + _by_channel(slope * left, axis)
        weights = weights + _by_channel(np.square(slope), axis)
    passing = weights > _SMALLEST**2 * weights.max()
    found: Float64 = np.where(passing, total / np.where(passing, weights, 1.0), 0.0)
    return found


def _by_channel(values: FloatArray, axis: int | None) -> Float64:
    """The sum over all but the channels: [channels], or [1] where there are none."""
    others = tuple(i for i in range(values.ndim) if axis is None or i != axis % values.ndim)
    found: Float64 = np.atleast_1d(values.sum(axis=others, dtype=np.float64))
    return found


def correct_bias(site: Site) -> bool:
    """Give a layer's bias what its output lacks; False where that is not a number."""
    missing = missing_shift(site)
    known = site.correction.bias
    bias = (missing if known is None else known + missing).astype(np.float32)
    if not np.all(np.isfinite(bias)):
        return False
    site.correct(replace(site.correction, bias=bias))
    return True


def with_bias(site: Site, before: Quantized, error: float) -> bool:
    """Give a layer whose weight was changed a bias to match; False, and the layer as it was
    `before`, where that leaves no less than the `error` behind the activation that it had."""
    if correct_bias(site) and site.error() < error:
        return True
    site.network = before
    return False


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
