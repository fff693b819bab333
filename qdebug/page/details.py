"""What the activations that a run keeps show of each tensor, in a form that fits into a page.

Two passes over the samples of a tensor, for the extent of its values and then for all else, one
sample in memory at a time.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.coverage import share_above
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.page.data import Channels, Histogram, Picture, Scatter, TensorDetails
from qdebug.plan.description import DescribedGrid
from qdebug.results.ranges import even_bins, with_width
from qdebug.store.reader import RunReader

BINS = 96
POINTS = 500
MOST_CHANNELS = 512
CELLS = 64

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A tensor of one sample, in float64 and of one shape."""

    sample: int
    reference: Floats
    candidate: Floats

    @property
    def noise(self) -> float:
        """Of the candidate, over the signal; +inf where it is not a number."""
        with np.errstate(invalid="ignore", over="ignore"):
            noise, signal = (
                float(np.square(x).sum()) for x in (self.reference - self.candidate, self.reference)
            )
        ratio = noise / signal if signal > 0 else noise
        return math.inf if math.isnan(ratio) else ratio


class KeptTensors:
    """The details of tensors whose activations a run file keeps."""

    def __init__(
        self,
        reader: RunReader,
        grids: Mapping[str, DescribedGrid],
        axes: Mapping[str, int],
        calibrated: Mapping[str, TensorHistogram],
    ) -> None:
        """Read from a run file.

        Args:
            reader: the file.
            grids: what the candidate rounds tensors to.
            axes: of the channels of tensors, where that is known; see `channel_axis`.
            calibrated: histograms of the calibration samples, for tensors that are not kept.
        """
        self._reader = reader
        self._grids = grids
        self._axes = axes
        self._calibrated = calibrated
        self._candidates = set(reader.tensors("candidate"))
        self._references = set(reader.tensors("reference"))

    @cached_property
    def names(self) -> frozenset[str]:
        """The tensors that there is something to say of."""
        return frozenset(self._candidates & self._references | set(self._calibrated))

    def details(
        self, tensor: str, *, sample: int | None = None, channel: int | None = None
    ) -> TensorDetails | None:
        """All that is known of a tensor; None where nothing is.

        Args:
            tensor: its name.
            sample: the one to picture; None for the worst that is kept.
            channel: the one to picture; None for the worst, or all where all fit.

        Raises:
            StoreError: the file is damaged.
        """
        kept = self._kept(tensor)
        if not kept:
            return self._from_calibration(tensor)
        found = TensorDetails(tensor, len(kept), kept, None, None, None, None)
        ends = [_extent(pair.reference, pair.candidate) for pair in self._pairs(tensor, kept)]
        if not ends:
            return found
        finite = [end for end in ends if end is not None]
        span = with_width(min(e[0] for e in finite), max(e[1] for e in finite)) if finite else None
        grid, seen, beyond = self._grids.get(tensor), 0, 0
        counts = np.zeros((2, BINS), np.int64)
        points, channels, noise = [], [], {}
        random = np.random.default_rng(0)
        for pair in self._pairs(tensor, kept):
            both = pair.reference, pair.candidate
            counts += [np.histogram(x, BINS, span or (0.0, 1.0))[0] for x in both]
            share = min(pair.reference.size, -(-POINTS // len(ends)))
            drawn = random.choice(pair.reference.size, share, replace=False, shuffle=False)
            points.append(np.stack([x.ravel()[drawn] for x in both]))
            channels.append(_by_channel(pair, self._axes.get(tensor)))
            noise[pair.sample] = pair.noise
            seen += pair.reference.size
            beyond += _clipped(pair.candidate, grid) if grid else 0
        reference, candidate = (tuple(row) for row in counts.tolist())
        histogram = Histogram(*span, reference, candidate) if span else None
        if histogram is not None and grid is not None:
            histogram = _with_grid(histogram, grid, beyond / seen)
        pictured = max(noise, key=lambda s: noise[s]) if sample is None else sample
        shown = self._pair(tensor, pictured)
        return replace(
            found,
            histogram=histogram,
            channels=_worst_channels(channels),
            scatter=_scatter(np.concatenate(points, axis=1)[:, :POINTS]),
            picture=None if shown is None else picture(shown, channel),
        )

    def _kept(self, tensor: str) -> tuple[int, ...]:
        if tensor not in self._candidates or tensor not in self._references:
            return ()
        both = set(self._reader.samples_of("candidate", tensor))
        return tuple(s for s in self._reader.samples_of("reference", tensor) if s in both)

    def _pairs(self, tensor: str, samples: Sequence[int]) -> Iterator[Pair]:
        return filter(None, (self._pair(tensor, sample) for sample in samples))

    def _pair(self, tensor: str, sample: int) -> Pair | None:
        """None for a tensor that is not of floating point, or of two shapes."""
        reference = self._reader.read("reference", tensor, sample)
        candidate = self._reader.read("candidate", tensor, sample)
        if reference.shape != candidate.shape or not reference.size:
            return None
        if reference.dtype.kind != "f" or candidate.dtype.kind != "f":
            return None
        return Pair(sample, reference.astype(np.float64), candidate.astype(np.float64))

    def _from_calibration(self, tensor: str) -> TensorDetails | None:
        seen = self._calibrated.get(tensor)
        if seen is None or not seen.count:
            return None
        return TensorDetails(
            tensor, 0, (), calibration_histogram(seen, self._grids.get(tensor)), None, None, None
        )


def calibration_histogram(seen: TensorHistogram, grid: DescribedGrid | None) -> Histogram:
    """What calibration saw of a tensor in FP32."""
    bins = even_bins(seen, BINS)
    found = Histogram(
        low=float(bins.edges[0]),
        high=float(bins.edges[-1]),
        reference=tuple(bins.counts.tolist()),
        candidate=None,
        samples="calibration",
    )
    if grid is None:
        return found
    clipped = share_above(seen, _amax(grid)) if grid.low == -grid.high else None
    return _with_grid(found, grid, clipped)


def _clipped(values: Floats, grid: DescribedGrid) -> int:
    """How many values a grid clips; one that is not symmetric ends half a step beyond its ends."""
    half = 0.0 if grid.low == -grid.high else grid.step / 2
    return int(np.count_nonzero((values < grid.low - half) | (values > grid.high + half)))


def _amax(grid: DescribedGrid) -> float:
    return max(abs(grid.low), abs(grid.high))


def _with_grid(found: Histogram, grid: DescribedGrid, clipped: float | None) -> Histogram:
    return replace(
        found,
        amax=_amax(grid),
        bounds=(grid.low, grid.high),
        step=grid.step,
        clipped=clipped,
    )


def channel_axis(rank: int, axis: int | None) -> int | None:
    """The axis of the channels of an array: the given one; else 1 where there are axes of a picture
    behind it, or the last. None for an array without a batch axis."""
    if axis is not None and -rank <= axis < rank:
        return axis % rank
    return None if rank < 2 else 1 if rank > 3 else rank - 1


def _by_channel(pair: Pair, axis: int | None) -> tuple[int | None, Floats]:
    """The axis of the channels, and of each the largest magnitude, the signal and the noise."""
    along = channel_axis(pair.reference.ndim, axis)
    if along is None:
        return None, np.zeros((3, 0))
    rows = (
        np.moveaxis(x, along, 0).reshape(x.shape[along], -1)
        for x in (pair.reference, pair.reference - pair.candidate)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        signal, error = rows
        sums = (np.square(x).sum(axis=1) for x in (signal, error))
        return along, np.stack([np.abs(signal).max(axis=1), *sums])


def _worst_channels(found: Sequence[tuple[int | None, Floats]]) -> Channels | None:
    """The channels in their order; of many those of the lowest SQNR. None where samples have
    different numbers of them."""
    if len({(axis, figures.shape) for axis, figures in found}) != 1 or found[0][0] is None:
        return None
    amax = np.max([figures[0] for _, figures in found], axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        signal, noise = np.sum([figures[1:] for _, figures in found], axis=0)
        sqnr = 10 * np.log10(signal / noise)
    order = np.argsort(np.where(np.isnan(sqnr), -np.inf, sqnr), kind="stable")[:MOST_CHANNELS]
    chosen = np.sort(order)
    return Channels(
        axis=found[0][0],
        count=len(amax),
        index=tuple(chosen.tolist()),
        amax=_short_or_null(amax[chosen]),
        sqnr_db=_short_or_null(sqnr[chosen]),
    )


def _scatter(points: Floats) -> Scatter | None:
    """Pairs [2, points] in order; None where none is finite."""
    finite = points[:, np.isfinite(points).all(axis=0)]
    x, y = shortened(finite[:, np.lexsort(finite[::-1])]).tolist()
    return Scatter(tuple(x), tuple(y)) if x else None


def shortened(values: Floats, digits: int = 5) -> Floats:
    """The first digits of each finite value, which then also prints with as many."""
    sizes = np.abs(values, where=np.isfinite(values) & (values != 0), out=np.ones_like(values))
    shift = digits - 1 - np.floor(np.log10(sizes))
    scale = 10.0 ** np.abs(shift)  # a power of 10 that float64 holds, where it is below 1e23
    found: Floats = np.where(
        shift < 0, np.rint(values / scale) * scale, np.rint(values * scale) / scale
    )
    return found


def _short_or_null(values: Floats) -> tuple[float | None, ...]:
    """None for NaN and infinities."""
    found = shortened(values).tolist()
    return tuple(x if math.isfinite(x) else None for x in found)


def picture(pair: Pair, channel: int | None = None) -> Picture | None:
    """A tensor of one sample as rows and columns; None for one without any, or without `channel`.

    An image of three channels is shown in colours; of another tensor of four axes the channel with
    the largest error; of three or two axes all, and a vector as one row.

    Args:
        pair: both tensors, with a batch axis of 1.
        channel: the one to show; None as above.
    """
    shape = pair.reference.shape
    reference, candidate = (
        x[0] if x.ndim > 1 and x.shape[0] == 1 else x for x in (pair.reference, pair.candidate)
    )
    if reference.ndim == 0:
        return None
    if reference.ndim == 1:
        reference, candidate = reference[None], candidate[None]
    shown: int | None = None
    if reference.ndim == 3 and (channel is not None or len(reference) != 3):
        shown = _worst_channel(reference, candidate) if channel is None else channel
        if shown >= len(reference):
            return None
        reference, candidate = reference[shown], candidate[shown]
    elif reference.ndim > 3:
        reference, candidate = (x.reshape(-1, x.shape[-1]) for x in (reference, candidate))
    planes = [x if x.ndim == 3 else x[None] for x in (reference, candidate)]
    return _drawn(Pair(pair.sample, *planes), shape, shown)


def _worst_channel(reference: Floats, candidate: Floats) -> int:
    with np.errstate(invalid="ignore", over="ignore"):
        noise = np.square(reference - candidate).sum(axis=(1, 2))
    return int(np.argmax(np.where(np.isnan(noise), np.inf, noise)))


def _drawn(planes: Pair, shape: tuple[int, ...], channel: int | None) -> Picture:
    """`planes` are [colours, rows, columns]."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(planes.reference - planes.candidate)
        cells = [averaged(x) for x in (planes.reference, planes.candidate, difference)]
    reference, candidate, error = cells
    low, high = _extent(reference, candidate) or (0.0, 0.0)
    _, largest = _extent(error) or (0.0, 0.0)
    colours, height, width = reference.shape
    return Picture(
        sample=planes.sample,
        channel=channel,
        shape=shape,
        height=height,
        width=width,
        colours=colours,
        low=low,
        high=high,
        largest_error=largest,
        reference=_bytes(reference, low, high, 0),
        candidate=_bytes(candidate, low, high, 0),
        error=_bytes(error, 0.0, largest, 255),
    )


def averaged(planes: Floats) -> Floats:
    """[colours, rows, columns], of at most CELLS rows and columns: means of what each covers."""
    for axis in (1, 2):
        size = planes.shape[axis]
        if size > CELLS:
            starts = np.arange(CELLS) * size // CELLS
            counts = np.diff([*starts.tolist(), size])
            shape = [1, 1, 1]
            shape[axis] = CELLS
            planes = np.add.reduceat(planes, starts, axis=axis) / counts.reshape(shape)
    return planes


def _extent(*arrays: Floats) -> tuple[float, float] | None:
    """The smallest and the largest finite value of all; None without any."""
    finite = np.concatenate([x[np.isfinite(x)] for x in arrays])
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _bytes(planes: Floats, low: float, high: float, odd: int) -> str:
    """Bytes by row, colours last, in base64; `odd` for what is not a number."""
    with np.errstate(invalid="ignore"):
        share = (planes - low) / ((high - low) or 1.0)
        codes = np.rint(np.clip(share, 0, 1) * 255)
    known = np.where(np.isnan(codes), odd, codes).astype(np.uint8)
    return base64.b64encode(known.transpose(1, 2, 0).tobytes()).decode()
