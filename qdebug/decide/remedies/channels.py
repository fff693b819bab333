"""How far the channels of activations reach, over all calibration samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.decide.remedies.remedy import Study
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.network.graph import Graph
from qdebug.run.runner import Runner
from qdebug.run.variant import as_it_is
from qdebug.types import Array

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChannelRange:
    """How far the values of a tensor's channels reach, each [channels].

    Attributes:
        low: the smallest, over all samples.
        high: the largest.
        mean_amax: the mean over the samples of each sample's largest magnitude: one sample alone
            does not stretch it.
    """

    low: Float64
    high: Float64
    mean_amax: Float64

    @property
    def amax(self) -> Float64:
        """The largest magnitudes, over all samples."""
        return np.maximum(-self.low, self.high)


def channel_ranges(study: Study, graph: Graph, axes: Mapping[str, int]) -> dict[str, ChannelRange]:
    """The ranges of tensors of a network in FP32, over all samples.

    Args:
        axes: by tensor, the axis of its channels, counted from the end.
    """
    inputs = {spec.name for spec in graph.inputs}
    capture = {tensor: tensor for tensor in axes if tensor not in inputs}
    runner = Runner(study.samples, workers=study.workers, ends_at=study.ends_at)
    variants = {REFERENCE: as_it_is(graph.proto, study.backend, capture)}
    _, found = runner.run(variants, {REFERENCE: _ChannelRanges(axes)})[REFERENCE]
    return dict(found)


Ranges = tuple[int, Mapping[str, ChannelRange]]


@dataclass(frozen=True)
class _ChannelRanges:
    """How many samples, and the ranges of the channels of tensors. See Reducer."""

    axes: Mapping[str, int]
    reads: tuple[str, ...] = (REFERENCE,)
    key: None = None

    def reduce(self, executed: ExecutedBatch) -> Ranges:
        """See Reducer."""
        tensors, count = {**executed.feeds, **executed.reference}, executed.batch.count
        return count, {t: _reduced(tensors[t], axis, count) for t, axis in self.axes.items()}

    def merge(self, before: Ranges, after: Ranges) -> Ranges:
        """See Reducer."""
        (known, ranges), (new, others) = before, after
        share = new / (known + new)
        return known + new, {t: _merged(ranges[t], others[t], share) for t in ranges}


def _merged(known: ChannelRange, new: ChannelRange, weight: float) -> ChannelRange:
    """Both; `weight` is the share of the new one's samples."""
    return ChannelRange(
        np.minimum(known.low, new.low),
        np.maximum(known.high, new.high),
        known.mean_amax + weight * (new.mean_amax - known.mean_amax),
    )


def _reduced(array: Array, axis: int, count: int) -> ChannelRange:
    """Of one array. A tensor in which samples cannot be told apart counts as one sample."""
    rows = np.moveaxis(np.asarray(array), axis, -1)
    apart = count if rows.ndim > 1 and axis != -array.ndim and len(array) % count == 0 else 1
    rows = np.where(np.isfinite(rows), rows, 0).reshape(apart, -1, rows.shape[-1])
    low, high = rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
    amax = np.maximum(-low, high)
    return ChannelRange(low.min(axis=0), high.max(axis=0), amax.mean(axis=0))
