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
from qdebug.types import Array

BINS = 96
POINTS = 500
MOST_CHANNELS = 512
CELLS = 64
_SEED = 0
_LARGEST_DRAW = 10**8
"""Of how many values numpy draws; of more, the shares are taken."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A tensor of one sample, in float64 and of one shape."""

    sample: int
    reference: Floats
    candidate: Floats


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
        ends = [ends for pair in self._pairs(tensor, kept) if (ends := _extent(pair)) is not None]
        extent = (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
        gathered = _Gathered(self._grids.get(tensor), self._axes.get(tensor), extent)
        for pair in self._pairs(tensor, kept):
            gathered.add(pair)
        pictured = gathered.worst if sample is None else sample
        shown = None if pictured is None else self._pair(tensor, pictured)
        return TensorDetails(
            name=tensor,
            samples=len(kept),
            kept=kept,
            histogram=gathered.histogram(),
            channels=gathered.channels(),
            scatter=gathered.scatter(),
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
        return Pair(sample, _wide(reference), _wide(candidate))

    def _from_calibration(self, tensor: str) -> TensorDetails | None:
        seen = self._calibrated.get(tensor)
        if seen is None or not seen.count:
            return None
        return TensorDetails(
            tensor, 0, (), calibration_histogram(seen, self._grids.get(tensor)), None, None, None
        )


def _wide(array: Array) -> Floats:
    return np.asarray(array, np.float64)


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


def beyond(values: Floats, grid: DescribedGrid) -> int:
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


class _Gathered:
    """What one pass over the kept samples of a tensor gathers."""

    def __init__(
        self, grid: DescribedGrid | None, axis: int | None, extent: tuple[float, float] | None
    ) -> None:
        self._range = None if extent is None else with_width(*extent)
        self._random = np.random.default_rng(_SEED)
        self._grid = grid
        self._beyond = 0
        self._counts = np.zeros((2, BINS), np.int64)
        self._points: npt.NDArray[np.float64] = np.zeros((0, 2))
        self._seen = 0
        self._channels = _ChannelTotals(axis)
        self._worst_noise = -1.0
        self.worst: int | None = None

    def add(self, pair: Pair) -> None:
        for counts, values in zip(self._counts, (pair.reference, pair.candidate), strict=True):
            counts += np.histogram(values, BINS, self._range or (0.0, 1.0))[0]
        self._draw(pair)
        self._channels.add(pair)
        if self._grid is not None:
            self._beyond += beyond(pair.candidate, self._grid)
        with np.errstate(invalid="ignore", over="ignore"):
            noise = float(np.square(pair.reference - pair.candidate).sum())
            signal = float(np.square(pair.reference).sum())
        ratio = noise / signal if signal > 0 else noise
        if math.isnan(ratio):
            ratio = math.inf
        if ratio > self._worst_noise:
            self._worst_noise, self.worst = ratio, pair.sample

    def _draw(self, pair: Pair) -> None:
        """Keep POINTS of all pairs seen, each as likely as any other."""
        size = pair.reference.size
        total = self._seen + size
        wanted = min(POINTS, total)
        scale = 1 + total // _LARGEST_DRAW
        fresh = int(self._random.hypergeometric(size // scale, self._seen // scale, wanted))
        old = self._random.permutation(len(self._points))[: wanted - fresh]
        new = self._random.choice(size, fresh, replace=False, shuffle=False)
        drawn = np.stack([pair.reference.ravel()[new], pair.candidate.ravel()[new]], axis=1)
        self._points = np.concatenate([self._points[old], drawn])
        self._seen = total

    def histogram(self) -> Histogram | None:
        if self._range is None:
            return None
        reference, candidate = (tuple(counts.tolist()) for counts in self._counts)
        found = Histogram(*self._range, reference, candidate)
        if self._grid is None:
            return found
        return _with_grid(found, self._grid, self._beyond / self._seen)

    def channels(self) -> Channels | None:
        return self._channels.worst()

    def scatter(self) -> Scatter | None:
        finite = self._points[np.isfinite(self._points).all(axis=1)]
        if not len(finite):
            return None
        ordered = finite[np.lexsort((finite[:, 1], finite[:, 0]))]
        return Scatter(_short(ordered[:, 0]), _short(ordered[:, 1]))


def channel_axis(rank: int, axis: int | None) -> int | None:
    """The axis of the channels of an array: the given one; else 1 where there are axes of a picture
    behind it, or the last. None for an array without a batch axis."""
    if axis is not None and -rank <= axis < rank:
        return axis % rank
    return None if rank < 2 else 1 if rank > 3 else rank - 1


class _ChannelTotals:
    """Sums by channel. There are none where the samples have different numbers of channels."""

    def __init__(self, axis: int | None) -> None:
        self._wanted = axis
        self._axes: set[tuple[int | None, int]] = set()
        self._amax: Floats = np.zeros(0)
        self._sums: Floats = np.zeros((2, 0))
        """Of the signal and of the noise."""

    def add(self, pair: Pair) -> None:
        axis = channel_axis(pair.reference.ndim, self._wanted)
        self._axes.add((axis, 0 if axis is None else pair.reference.shape[axis]))
        if axis is None or len(self._axes) > 1:
            return
        others = tuple(k for k in range(pair.reference.ndim) if k != axis)
        with np.errstate(invalid="ignore", over="ignore"):
            amax = np.abs(pair.reference).max(axis=others)
            signal, error = pair.reference, pair.reference - pair.candidate
            sums = np.stack([np.square(x).sum(axis=others) for x in (signal, error)])
        first = not self._amax.size
        self._amax = amax if first else np.maximum(self._amax, amax)
        self._sums = sums if first else self._sums + sums

    def worst(self) -> Channels | None:
        """The channels in their order; of many those of the lowest SQNR."""
        if len(self._axes) != 1:
            return None
        ((axis, _),) = self._axes
        if axis is None:
            return None
        amax, (signal, noise) = self._amax, self._sums
        with np.errstate(divide="ignore", invalid="ignore"):
            sqnr = 10 * np.log10(signal / noise)
        order = np.argsort(np.where(np.isnan(sqnr), -np.inf, sqnr), kind="stable")[:MOST_CHANNELS]
        chosen = np.sort(order)
        return Channels(
            axis=axis,
            count=len(amax),
            index=tuple(chosen.tolist()),
            amax=_short_or_null(amax[chosen]),
            sqnr_db=_short_or_null(sqnr[chosen]),
        )


def shortened(values: Floats, digits: int = 5) -> Floats:
    """The first digits of each finite value, which then also prints with as many."""
    sizes = np.abs(values, where=np.isfinite(values) & (values != 0), out=np.ones_like(values))
    shift = digits - 1 - np.floor(np.log10(sizes))
    scale = 10.0 ** np.abs(shift)  # a power of 10 that float64 holds, where it is below 1e23
    found: Floats = np.where(
        shift < 0, np.rint(values / scale) * scale, np.rint(values * scale) / scale
    )
    return found


def _short(values: Floats) -> tuple[float, ...]:
    return tuple(shortened(values).tolist())


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
    low, high = _extent(Pair(planes.sample, reference, candidate)) or (0.0, 0.0)
    _, largest = _extent(Pair(planes.sample, error, error)) or (0.0, 0.0)
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


def _extent(pair: Pair) -> tuple[float, float] | None:
    """The smallest and the largest finite value of both; None without any."""
    finite = np.concatenate([x[np.isfinite(x)] for x in (pair.reference, pair.candidate)])
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _bytes(planes: Floats, low: float, high: float, odd: int) -> str:
    """Bytes by row, colours last, in base64; `odd` for what is not a number."""
    with np.errstate(invalid="ignore"):
        share = (planes - low) / ((high - low) or 1.0)
        codes = np.rint(np.clip(share, 0, 1) * 255)
    known = np.where(np.isnan(codes), odd, codes).astype(np.uint8)
    return base64.b64encode(known.transpose(1, 2, 0).tobytes()).decode()
