"""Are the calibration samples enough, and are they like the data to come?

Everything here follows from the largest magnitude of each sample in each tensor, gathered in the
same pass as the histograms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.types import Array

Float64 = npt.NDArray[np.float64]

STRETCH = 1.5
"""A sample stretches a range by itself when its largest magnitude is this many times the next."""
ENOUGH = 0.95
"""Calibration counts as enough once the range is this share of the whole one."""


@dataclass(frozen=True)
class Growth:
    """How ranges grow with the number of calibration samples.

    Attributes:
        samples: numbers of samples, doubling.
        median, lowest: over the tensors, the range that the first `samples` samples give, as a
            share of the range that all of them give.
        enough: the smallest of `samples` at which every tensor reaches ENOUGH; the last one if none
            before does.
    """

    samples: tuple[int, ...]
    median: tuple[float, ...]
    lowest: tuple[float, ...]
    enough: int


@dataclass(frozen=True)
class Stretch:
    """A sample that makes a tensor's range by itself: without it the range would be `without`."""

    tensor: str
    sample: int
    amax: float
    without: float


@dataclass(frozen=True)
class Excess:
    """How far held-out data leave a calibrated range.

    Attributes:
        tensor: the tensor.
        ratio: largest held-out magnitude over the amax of the calibration samples.
        samples_beyond: share of held-out samples with a value beyond that amax.
    """

    tensor: str
    ratio: float
    samples_beyond: float


def growth(sample_amax: Mapping[str, Array]) -> Growth:
    """The growth of ranges over samples in their order; tensors that are all 0 do not count.

    Args:
        sample_amax: per tensor, the largest magnitude of each sample, [samples].
    """
    total = len(next(iter(sample_amax.values()))) if sample_amax else 0
    counts = [2**k for k in range(total.bit_length()) if 2**k < total] + [total] * (total > 0)
    shares = [
        np.maximum.accumulate(np.asarray(values, np.float64)) / np.max(values)
        for values in sample_amax.values()
        if len(values) and np.max(values) > 0
    ]
    if not shares:
        return Growth(tuple(counts), (1.0,) * len(counts), (1.0,) * len(counts), min(total, 1))
    at = np.array([[share[count - 1] for count in counts] for share in shares])
    median = np.median(at, axis=0)
    lowest = at.min(axis=0)
    reached = [count for count, value in zip(counts, lowest, strict=True) if value >= ENOUGH]
    return Growth(
        tuple(counts),
        tuple(median.tolist()),
        tuple(lowest.tolist()),
        reached[0] if reached else total,
    )


def stretches(sample_amax: Mapping[str, Array], samples: npt.NDArray[np.int64]) -> list[Stretch]:
    """Samples that stretch a range by themselves, the strongest first.

    Args:
        sample_amax: per tensor, the largest magnitude of each sample, [samples].
        samples: the numbers of those samples, [samples].
    """
    found = []
    for tensor, values in sample_amax.items():
        if len(values) < 2:
            continue
        first, second = np.argsort(values)[::-1][:2]
        highest, next_highest = float(values[first]), float(values[second])
        if highest > STRETCH * next_highest:
            found.append(Stretch(tensor, int(samples[first]), highest, next_highest))
    return sorted(found, key=lambda s: s.amax / s.without if s.without else np.inf, reverse=True)


def share_above(histogram: TensorHistogram, amax: float) -> float:
    """The share of a tensor's values with a magnitude over `amax`: exactly 0 where the range holds
    them all, else to a part of one bin."""
    if histogram.count == 0 or amax >= histogram.amax:
        return 0.0
    edges = histogram.edges()
    cumulative = np.concatenate([[0], np.cumsum(histogram.bins)])
    inside = float(np.interp(amax, edges, cumulative))
    return max(0.0, 1.0 - inside / histogram.count)


def excesses(calibrated: Mapping[str, float], held_out: Mapping[str, Array]) -> list[Excess]:
    """How far held-out data leave the ranges, tensors of the largest excess first.

    Args:
        calibrated: amax by tensor.
        held_out: per tensor, the largest magnitude of each held-out sample.
    """
    found = []
    for tensor, amax in calibrated.items():
        values = held_out.get(tensor)
        if values is None or not len(values):
            continue
        highest = float(np.max(values))
        ratio = highest / amax if amax > 0 else (np.inf if highest > 0 else 1.0)
        found.append(Excess(tensor, float(ratio), float(np.mean(np.asarray(values) > amax))))
    return sorted(found, key=lambda e: e.ratio, reverse=True)
