"""The histogram of a tensor whose values come in array after array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qdebug.calibrators import layout
from qdebug.calibrators.gather import (
    NOTHING,
    ROOM,
    Float32,
    count,
    emptied,
    gather,
    new_counters,
)
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.layout import Int64
from qdebug.types import Array

_SLACK = 512
"""Bins to spare at the lower end, four octaves, when smaller magnitudes than all before come: more
values bring smaller ones, and every new layout costs as much as counting a small tensor."""


class Added(NamedTuple):
    """What one array brought: Σx², and the sum of its samples' largest finite magnitudes, which
    `peaks` holds one by one, float32 [samples]."""

    total_sq: float
    peak_total: float
    peaks: Float32


class Accumulator:
    """Adds arrays up to the histogram that all of them together have: bin by bin the same in
    whatever order and parts they come; the last digits of the sums do depend on it.

    Memory for the bins between the smallest and the largest magnitude. For one thread at a time.
    """

    def __init__(self) -> None:
        self._size = 0
        self._seen = NOTHING
        self._top, self._first = layout.SMALLEST_TOP, 0
        self._table = np.zeros((4, 0), np.int64)
        self._counters = new_counters(0)  # of bins like the table's, not yet in it
        self._pending = 0  # values in the counters

    def add(self, values: Array, samples: int = 1) -> Added:
        """Add an array of any floating type and shape; float64 is rounded to float32, in which INT8
        scales are kept, so that what lies beyond its range counts as Inf.

        `samples` says how many samples the leading axis holds, one after the other. An axis that
        does not split into so many belongs to a tensor without a batch axis: it counts as one
        sample, and its largest magnitude as that of each.
        """
        flat = _flat(values)
        splits = samples > 0 and values.ndim > 0 and values.shape[0] % samples == 0
        peaks = np.zeros(samples if splits else 1, np.float32)
        scan = NOTHING
        if flat.size:
            room = ROOM - self._pending
            scan = gather(flat, peaks, room, self._top, self._first, self._counters)
            self._pending += scan.tallied
            self._size += flat.size
            self._seen = self._seen.join(scan)
            if scan.tallied < flat.size and self._seen.amax_bits:
                self._cover()
                self._count(flat[scan.tallied :])
        if not splits:
            peaks = np.full(samples, peaks)
        return Added(scan.total_sq, scan.peak_total, peaks)

    def histogram(self) -> TensorHistogram:
        """That of everything added so far."""
        seen = self._seen
        top, first, table = (
            self._trimmed() if seen.amax_bits else (0, 0, np.zeros((4, 0), np.int64))
        )
        count = self._size - seen.nan_count - seen.inf_count
        return TensorHistogram(
            low=seen.low + 0.0,  # -0 becomes 0
            high=seen.high + 0.0,
            count=count,
            zeros=count - int(table[:2].sum()),
            nan_count=seen.nan_count,
            inf_count=seen.inf_count,
            total_sq=seen.total_sq,
            samples=seen.samples,
            sample_amax_total=seen.peak_total,
            top=top,
            first=first,
            table=table,
        )

    def _trimmed(self) -> tuple[int, int, Int64]:
        self._empty()
        first = layout.bin_number(self._seen.smallest_bits, self._top)
        end = layout.bin_number(self._seen.amax_bits, self._top) + 1
        return self._top, first, self._table[:, first - self._first : end - self._first].copy()

    def _cover(self) -> None:
        """Lay the bins out anew, where they do not hold every magnitude seen."""
        top = layout.top_of(self._seen.amax_bits)
        smallest = layout.bin_number(self._seen.smallest_bits, top)
        bins = self._table.shape[1]
        if bins and top == self._top and smallest >= self._first:
            return
        self._empty()
        table, start = layout.coarsen(self._table, self._first, self._top, top)
        first = max(0, smallest - _SLACK)
        first = min(first, start) if bins else first
        wider = np.zeros((4, layout.end_of(top) - first), np.int64)
        wider[:, start - first : start - first + table.shape[1]] = table
        self._top, self._first, self._table = top, first, wider
        self._counters = new_counters(wider.shape[1])

    def _count(self, flat: Float32) -> None:
        for part in np.split(flat, range(ROOM, flat.size, ROOM)):
            if self._pending + part.size > ROOM:
                self._empty()
            count(part, self._top, self._first, self._counters)
            self._pending += part.size

    def _empty(self) -> None:
        if self._pending:
            self._table += emptied(self._counters)
            self._pending = 0


def histogram_of(values: Array, samples: int = 1) -> TensorHistogram:
    """The histogram of one array; see Accumulator.add."""
    accumulator = Accumulator()
    accumulator.add(values, samples)
    return accumulator.histogram()


def _flat(values: Array) -> Float32:
    if values.dtype == np.float32 and values.flags.c_contiguous:
        return values.reshape(-1)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, np.float32).reshape(-1)
