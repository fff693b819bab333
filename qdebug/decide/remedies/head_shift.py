"""head-shift: the scores of the network's own answers get their mean back.

A detector finds what scores above a threshold, which few of its positions do. Where quantization
moves the logits of these few all the same way, answers are lost though the noise is low, and the
mean over all positions, which `bias-correction` restores, is that of the background. Here the bias
of a head makes up for the mean error over the positions that matter: those where FP32's own score
is above 0.1, or, where classes compete, its best class. A shift within its noise is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.histogram import Float64
from qdebug.decide.remedies.product import channel_axis
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study, heads_of
from qdebug.decide.remedies.walk import Site, Walk
from qdebug.formats.base import FloatArray
from qdebug.network.layers import Layer
from qdebug.plan.plan import Correction

_FEWEST = 4
_SCORE = 0.1
"""Of FP32: a position with less is none of the network's answers."""
_LEAST_POSITIONS = 8
_STANDS_OUT = 0.3
"""Of the standard deviation of the errors at these positions, besides two standard errors: shifts
of 0.12 ± 0.45 and 0.00 ± 0.27 on two detectors changed nothing when they were taken off, one of
0.65 gave 0.15 of F1 back."""
_ERRORS = 2.0
_MOVES = frozenset(
    {
        "Identity", "Cast", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice",
        "Split", "Concat",
    }
)  # fmt: skip


class Decision(StrEnum):
    """How a head's output becomes an answer: each logit by itself, or the best of the channels."""

    EACH = "each"
    BEST = "best"


def decision_of(network: Quantized, layer: Layer) -> Decision | None:
    """By what follows a head; None where it gives no scores, as one of boxes does."""
    graph = network.graph
    waiting, seen = [layer.output], set[str]()
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        if tensor in graph.outputs and len(heads_of(network)) == 1:
            return Decision.BEST
        for node in graph.consumers.get(tensor, ()):
            if node.op_type in ("Sigmoid", "HardSigmoid"):
                return Decision.EACH
            if node.op_type in ("Softmax", "LogSoftmax"):
                return Decision.BEST
            if node.op_type in _MOVES:
                waiting += node.outputs
    return None


def _layers(network: Quantized) -> tuple[str, ...]:
    heads = heads_of(network)
    return tuple(
        layer.name
        for layer in network.weighted()
        if layer.name in heads
        and channel_axis(network.graph, layer) is not None
        and decision_of(network, layer) is not None
    )


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    together: dict[str, Correction] = {}
    apart: dict[str, Correction] = {}
    for site in Walk(study, start, frozenset(layers), "head shift"):
        decision = decision_of(start, site.layer)
        sums = _sums(site, decision)
        pooled = _shift(sums.sum(axis=1, keepdims=True))
        if decision is Decision.EACH and pooled.any():
            together[site.layer.name] = _shifted(site, np.repeat(pooled, sums.shape[1]))
        each = _shift(sums)
        if each.any():
            apart[site.layer.name] = _shifted(site, each)
    for found, what in ((together, "one shift for each head"), (apart, "one for each channel")):
        if found:
            yield Proposal(start.with_corrections(found), tuple(found), what)


def _sums(site: Site, decision: Decision | None) -> Float64:
    """Of the errors (FP32 less quantized) at the positions that matter, for each channel: how many,
    their sum, and that of their squares, float64 [3, channels]."""
    axis = channel_axis(site.network.graph, site.layer)
    assert axis is not None
    total: Float64 = np.zeros((3, 1))
    for target, output in zip(site.targets, site.outputs(), strict=True):
        logits = np.moveaxis(target, axis, -1).reshape(-1, target.shape[axis])
        error = (target - output).astype(np.float64)
        error = np.moveaxis(error, axis, -1).reshape(logits.shape) * _matter(logits, decision)
        counted = _matter(logits, decision).sum(axis=0)
        total = total + np.stack([counted, error.sum(axis=0), np.square(error).sum(axis=0)])
    return total


def _matter(logits: FloatArray, decision: Decision | None) -> npt.NDArray[np.bool_]:
    """Which of FP32's logits [positions, channels] make an answer."""
    if decision is Decision.EACH:
        return np.asarray(logits > math.log(_SCORE / (1 - _SCORE)), np.bool_)
    best = logits.argmax(axis=1)
    return np.asarray(best[:, None] == np.arange(logits.shape[1]), np.bool_)


def _shift(sums: Float64) -> Float64:
    """The mean error of each channel [channels]; 0 where it does not stand out of its noise."""
    count, total, squares = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = total / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
        least = deviation * np.maximum(_STANDS_OUT, _ERRORS / np.sqrt(count))
    stands_out = (count >= _LEAST_POSITIONS) & (np.abs(mean) > least)
    found: Float64 = np.where(stands_out & np.isfinite(mean), mean, 0.0)
    return found


def _shifted(site: Site, shift: Float64) -> Correction:
    known = site.correction.bias
    bias = (shift if known is None else known + shift).astype(np.float32)
    return replace(site.correction, bias=bias)


REMEDY = Remedy(
    name="head-shift",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
)
