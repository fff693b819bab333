"""How far the channels of activations reach, over all calibration samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.backends.stream import map_in_order
from qdebug.decide.remedies.remedy import Study
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch
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
    """The ranges of tensors of a network in FP32, over all samples, batch by batch.

    Args:
        axes: by tensor, the axis of its channels, counted from the end.
    """
    samples, batches = study.samples.samples, study.samples.batches
    inputs = {spec.name for spec in graph.inputs}
    captured = [t for t in axes if t not in inputs]
    found: dict[str, ChannelRange] = {}
    with closing(study.backend.open(graph.proto, captured)) as session:

        def one(batch: Batch) -> dict[str, ChannelRange]:
            feeds = samples.feeds(batch.start, batch.count)
            tensors = {**feeds, **session.run(feeds)}
            return {t: _reduced(tensors[t], axis, batch.count) for t, axis in axes.items()}

        total = 0
        for batch, new in zip(batches, map_in_order(one, batches, study.workers), strict=True):
            weight = batch.count / (total + batch.count)
            total += batch.count
            for tensor, one_batch in new.items():
                known = found.get(tensor)
                found[tensor] = one_batch if known is None else _merged(known, one_batch, weight)
    return found


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
