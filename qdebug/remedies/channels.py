"""How far the channels of activations reach, over all calibration samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.model.graph import Graph
from qdebug.model.samples import Batch
from qdebug.remedies.remedy import Study
from qdebug.run.stream import map_in_order
from qdebug.types import Array

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChannelRange:
    """Magnitudes of a tensor's channels, each [channels].

    Attributes:
        amax: the largest, over all samples.
        mean_amax: the mean over the samples of each sample's largest: one sample alone does not
            stretch it.
        mean_sq: the mean square.
    """

    amax: Float64
    mean_amax: Float64
    mean_sq: Float64


def channel_ranges(study: Study, graph: Graph, axes: Mapping[str, int]) -> dict[str, ChannelRange]:
    """The ranges of tensors of a network in FP32, over all samples, batch by batch.

    Args:
        axes: by tensor, the axis of its channels, counted from the end.
    """
    samples, batches = study.samples.samples, study.samples.batches
    inputs = {spec.name for spec in graph.inputs}
    captured = [t for t in axes if t not in inputs]
    largest: dict[str, list[Float64]] = {t: [] for t in axes}
    totals: dict[str, Float64] = {}
    values: dict[str, int] = dict.fromkeys(axes, 0)
    with closing(study.backend.open(graph.proto, captured)) as session:

        def one(batch: Batch) -> dict[str, tuple[Float64, Float64, int]]:
            feeds = samples.feeds(batch.start, batch.count)
            tensors = {**feeds, **session.run(feeds)}
            return {t: _reduced(tensors[t], axis, batch.count) for t, axis in axes.items()}

        total = 0
        for batch, found in zip(batches, map_in_order(one, batches, study.workers), strict=True):
            total += batch.count
            for tensor, (peaks, squares, count) in found.items():
                largest[tensor] = _merged(largest[tensor], peaks)
                totals[tensor] = totals.get(tensor, 0.0) + squares
                values[tensor] += count
    return {
        t: ChannelRange(amax, summed / total, totals[t] / max(1, values[t]))
        for t, (amax, summed) in largest.items()
    }


def _merged(so_far: list[Float64], peaks: Float64) -> list[Float64]:
    """The largest of each channel, and the sum over samples, of `peaks` [samples, channels]."""
    new = [peaks.max(axis=0), peaks.sum(axis=0)]
    return [np.maximum(so_far[0], new[0]), so_far[1] + new[1]] if so_far else new


def _reduced(array: Array, axis: int, count: int) -> tuple[Float64, Float64, int]:
    """The largest magnitude of each sample and channel, [samples, channels]; Σx² by channel, and of
    how many values each is. A tensor in which samples cannot be told apart counts as one sample
    that all have."""
    rows = np.moveaxis(np.asarray(array), axis, -1)
    channels = rows.shape[-1]
    apart = count if rows.ndim > 1 and axis != -array.ndim and len(array) % count == 0 else 1
    rows = np.nan_to_num(np.abs(rows.reshape(apart, -1, channels)), posinf=0.0)
    peaks = rows.max(axis=1).astype(np.float64)
    squares = np.einsum("spc,spc->c", rows, rows, dtype=np.float64)
    if apart != count:
        peaks = np.repeat(peaks, count, axis=0)
    return peaks, squares, rows.shape[0] * rows.shape[1]
