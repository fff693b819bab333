"""The dynamic range of every tensor; its fields are the JSON of `ranges` (qdebug.ranges/1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.coverage import share_above
from qdebug.calibrators.histogram import SMALLEST_TOP, TensorHistogram, edges, means
from qdebug.calibrators.registry import default_calibrators
from qdebug.formats.registry import INT8
from qdebug.result import Hidden, Inline, ModelRef, ReadData, Result, in_json
from qdebug.results.calibrate import Coverage
from qdebug.types import Array

PERCENTILES = (50.0, 99.0, 99.9, 99.99)
"""Of |x|."""
PLAN = "plan"


@dataclass(frozen=True)
class Mark:
    """Where one calibrator ends a tensor's range, and what INT8 then does to its values.

    Attributes:
        method: the calibrator, or "plan" for the range that a run used.
        amax: the magnitude that maps to 127.
        clipped_fraction: share of the values beyond it.
        zeroed_fraction: share of the values that are not 0 but become 0.
    """

    method: str
    amax: float
    clipped_fraction: float
    zeroed_fraction: float

    @property
    @in_json
    def scale(self) -> float:
        """The width of one INT8 step."""
        return self.amax / INT8.largest


@dataclass(frozen=True)
class PlannedRange:
    """The range that a run used for a tensor, and the calibrator that gave it.

    Attributes:
        clipped_fraction: share of the tensor's values beyond it.
    """

    amax: float
    method: str
    clipped_fraction: float


@dataclass(frozen=True)
class TensorDynamics:
    """One tensor over all calibration samples.

    Attributes:
        name: the tensor.
        position: in the order of execution, from 0; the inputs come first.
        histogram: what the pass gathered.
        sample_amax: largest magnitude of each sample, float32 [samples].
        read_by: layers that read it in INT8; None where the model is not known.
        planned: the range that the run used, if it used one.
        calibrators: amax by several calibrators, for tensors that were asked for in detail; else
            None.
    """

    name: str
    position: int
    histogram: Hidden[TensorHistogram]
    sample_amax: Hidden[Array]
    read_by: tuple[str, ...] | None = None
    planned: PlannedRange | None = None
    calibrators: tuple[Mark, ...] | None = None

    @property
    @in_json
    def low(self) -> float:
        """The smallest finite value; NaN when there is none."""
        return self.histogram.low if self.histogram.count else math.nan

    @property
    @in_json
    def high(self) -> float:
        """The largest finite value; NaN when there is none."""
        return self.histogram.high if self.histogram.count else math.nan

    @property
    @in_json
    def amax(self) -> float:
        """The largest finite magnitude; 0 when there is none."""
        return self.histogram.amax

    @property
    @in_json
    def mean(self) -> float:
        """Mean of the finite values; NaN when there are none."""
        count = self.histogram.count
        return self.histogram.total / count if count else math.nan

    @property
    @in_json
    def rms(self) -> float:
        """√(Σx² / n) of the finite values; NaN when there are none."""
        count = self.histogram.count
        return math.sqrt(self.histogram.total_sq / count) if count else math.nan

    @property
    @in_json
    def std(self) -> float:
        """√(Σx² / n - mean²); NaN without values."""
        if self.low == self.high:  # where the difference would only be rounding
            return 0.0
        return math.sqrt(max(0.0, self.rms**2 - self.mean**2)) if self.histogram.count else math.nan

    @property
    @in_json
    def crest_factor(self) -> float:
        """amax / rms: how much of an INT8 range the typical value leaves unused; NaN where all
        values are 0. A sine has 1.4, a million Gaussian values about 5."""
        return self.amax / self.rms if self.rms > 0 else math.nan

    @property
    @in_json
    def zero_share(self) -> float:
        """Share of the finite values that are exactly 0; NaN without values."""
        count = self.histogram.count
        return self.histogram.zeros / count if count else math.nan

    @property
    @in_json
    def growth(self) -> float:
        """The range of all samples over that of the first half of them; 1 where the second half
        adds nothing or there is one sample, inf where the first half is all 0."""
        half = len(self.sample_amax) // 2
        if half == 0 or self.amax == 0:
            return 1.0
        first = float(np.max(self.sample_amax[:half]))
        return max(1.0, self.amax / first) if first > 0 else math.inf

    @property
    @in_json
    def percentiles(self) -> Mapping[str, float]:
        """Of |x|, by percent: "50", "99", "99.9" and "99.99"."""
        return {f"{p:g}": self.percentile(p) for p in PERCENTILES}

    @property
    @in_json
    def count(self) -> int:
        """How many finite values."""
        return self.histogram.count

    @property
    @in_json
    def samples(self) -> int:
        """How many samples."""
        return len(self.sample_amax)

    @property
    @in_json
    def nan_count(self) -> int:
        """How many NaN."""
        return self.histogram.nan_count

    @property
    @in_json
    def inf_count(self) -> int:
        """How many infinities."""
        return self.histogram.inf_count

    @property
    @in_json
    def zeros(self) -> int:
        """How many values are exactly 0."""
        return self.histogram.zeros

    @property
    @in_json
    def octaves(self) -> tuple[Octave, ...] | None:
        """The histogram by sign and power of two, for tensors that were asked for in detail."""
        return None if self.calibrators is None else octaves(self.histogram)

    def percentile(self, percent: float) -> float:
        """A percentile of |x|, to one histogram bin; NaN without values."""
        if not self.histogram.count:
            return math.nan
        return self.histogram.magnitude_percentile(percent)

    def calibrated(self) -> tuple[Mark, ...]:
        """amax by every calibrator, and that of the plan; none for a tensor that is all 0."""
        if self.amax == 0:
            return ()
        found = [
            _mark(self.histogram, c.name, c.amax(self.histogram)) for c in default_calibrators()
        ]
        if self.planned:
            found.append(_mark(self.histogram, PLAN, self.planned.amax))
        return tuple(found)


@dataclass(frozen=True)
class RangesSource:
    """Where the ranges come from.

    Attributes:
        kind: what `path` is: a run file, or a model that was run.
    """

    kind: Literal["run", "model"]
    path: str


@dataclass(frozen=True)
class CalibrationData:
    """The samples that the ranges are of.

    Attributes:
        samples: their number.
        from_cache: no model was run to calibrate.
    """

    path: str
    samples: int
    from_cache: bool


@dataclass(frozen=True)
class HeldOutData:
    """Samples that the ranges are checked against, and their number."""

    path: str
    samples: int


@dataclass(frozen=True)
class RangesCoverage:
    """Coverage over the tensors that INT8 layers read; over all where that is not known.

    Attributes:
        tensors: how many those are.
    """

    tensors: int
    coverage: Inline[Coverage]


@dataclass(frozen=True, repr=False, kw_only=True)
class RangesResult(Result):
    """Everything `qdebug ranges` found.

    Attributes:
        model: whose ranges these are.
        holdout: held-out data, null without.
        sort: what `tensors` are sorted by.
        tensors: those asked for, or all.
        notes: what is to be known about the model.
    """

    SCHEMA: ClassVar[str] = "qdebug.ranges/1"
    ROWS: ClassVar[str] = "tensors"

    source: RangesSource
    model: ModelRef
    calibration: CalibrationData
    holdout: HeldOutData | None = None
    sort: str
    tensors: tuple[TensorDynamics, ...]
    coverage: RangesCoverage
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()

    def headline(self) -> str:
        """The model, and how many tensors over how many samples."""
        name = self.model.name or self.source.path
        return f"{name}: {len(self.tensors)} tensors over {self.calibration.samples} samples"


@dataclass(frozen=True)
class Octave:
    """Values with a magnitude from `low` to twice that, counted by sign."""

    low: float
    negative: int
    positive: int


def octaves(histogram: TensorHistogram) -> tuple[Octave, ...]:
    """The histogram by octaves, descending and without gaps; denormal magnitudes count in the
    lowest that float32 has, zeros in none."""
    counts = histogram.table[:2]
    if counts.shape[1] == 0:
        return ()
    lower = edges(histogram.first, counts.shape[1], histogram.top)[:-1]
    exponents = np.frexp(np.maximum(lower, 2.0**-126))[1] - 1
    top, bottom = int(exponents[-1]), int(exponents[0])
    size = top - bottom + 1
    positive, negative = (
        np.bincount(exponents - bottom, weights=row, minlength=size).astype(np.int64)[::-1].tolist()
        for row in counts
    )
    return tuple(
        Octave(2.0**exponent, below, above)
        for exponent, below, above in zip(
            range(top, bottom - 1, -1), negative, positive, strict=True
        )
    )


@dataclass(frozen=True)
class EvenBins:
    """Values counted in bins of one width: `edges` float64 [bins + 1], `counts` int64 [bins]."""

    edges: npt.NDArray[np.float64] = field(repr=False)
    counts: npt.NDArray[np.int64] = field(repr=False)


def with_width(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis that bins of one width divide: `low` and `high`; where these are one
    value, or nearly, with some room around it."""
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    size = max(abs(low), abs(high), _NEAREST)
    room = 0.0 if high - low > _NARROWEST * size else 0.5 * (size if size > _NEAREST else 1.0)
    return low - room, high + room


_FARTHEST, _NEAREST, _NARROWEST = 2.0**1022, 2.0**-1000, 2.0**-40
"""Bins beyond these have no width that float64 can tell."""


def even_bins(histogram: TensorHistogram, bins: int) -> EvenBins:
    """The signed histogram from low to high in `bins` bins of one width, zeros included; each of
    the histogram's own bins, which are far narrower, is counted at its mean."""
    low, high = with_width(histogram.low, histogram.high) if histogram.count else (0.0, 1.0)
    edges = np.linspace(low, high, bins + 1)
    top = histogram.top or SMALLEST_TOP
    values, weights = [np.zeros(1)], [np.array([histogram.zeros])]
    for sign, row in ((1.0, 0), (-1.0, 1)):
        counts, dropped = histogram.table[row], histogram.table[row + 2]
        values.append(sign * means(histogram.first, counts, dropped, top))
        weights.append(counts)
    where, count = np.concatenate(values), np.concatenate(weights)
    inside = np.clip(where[count > 0], low, high)
    counted, _ = np.histogram(inside, edges, weights=count[count > 0].astype(np.float64))
    return EvenBins(edges, np.rint(counted).astype(np.int64))


def _mark(histogram: TensorHistogram, method: str, amax: float) -> Mark:
    kept = share_above(histogram, amax / INT8.largest / 2)
    zeros = histogram.zeros / histogram.count
    return Mark(method, amax, share_above(histogram, amax), max(0.0, 1.0 - zeros - kept))
