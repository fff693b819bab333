"""The dynamic range of every tensor: plain records, from which every report is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.coverage import share_above
from qdebug.calibrators.histogram import SMALLEST_TOP, TensorHistogram, edges, means
from qdebug.calibrators.registry import default_calibrators
from qdebug.measure.calibration import Coverage
from qdebug.types import Array

PERCENTILES = (50.0, 99.0, 99.9, 99.99)
"""Of |x|."""
PLAN = "plan"
_LEVELS = 127


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
    def scale(self) -> float:
        """The width of one INT8 step."""
        return self.amax / _LEVELS


@dataclass(frozen=True)
class Planned:
    """The range that a run used for a tensor, and the calibrator that gave it."""

    amax: float
    method: str


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
        marks: amax by several calibrators, for tensors that were asked for in detail; else None.
    """

    name: str
    position: int
    histogram: TensorHistogram
    sample_amax: Array
    read_by: tuple[str, ...] | None = None
    planned: Planned | None = None
    marks: tuple[Mark, ...] | None = None

    @property
    def low(self) -> float:
        """The smallest finite value; NaN when there is none."""
        return self.histogram.low if self.histogram.count else math.nan

    @property
    def high(self) -> float:
        """The largest finite value; NaN when there is none."""
        return self.histogram.high if self.histogram.count else math.nan

    @property
    def amax(self) -> float:
        """The largest finite magnitude; 0 when there is none."""
        return self.histogram.amax

    @property
    def mean(self) -> float:
        """Mean of the finite values; NaN when there are none."""
        count = self.histogram.count
        return self.histogram.total / count if count else math.nan

    @property
    def rms(self) -> float:
        """√(Σx² / n) of the finite values; NaN when there are none."""
        count = self.histogram.count
        return math.sqrt(self.histogram.total_sq / count) if count else math.nan

    @property
    def std(self) -> float:
        """√(Σx² / n - mean²); NaN without values."""
        if self.low == self.high:  # where the difference would only be rounding
            return 0.0
        return math.sqrt(max(0.0, self.rms**2 - self.mean**2)) if self.histogram.count else math.nan

    @property
    def crest_factor(self) -> float:
        """amax / rms: how much of an INT8 range the typical value leaves unused; NaN where all
        values are 0. A sine has 1.4, a million Gaussian values about 5."""
        return self.amax / self.rms if self.rms > 0 else math.nan

    @property
    def zero_share(self) -> float:
        """Share of the finite values that are exactly 0; NaN without values."""
        count = self.histogram.count
        return self.histogram.zeros / count if count else math.nan

    @property
    def growth(self) -> float:
        """The range of all samples over that of the first half of them; 1 where the second half
        adds nothing or there is one sample, inf where the first half is all 0."""
        half = len(self.sample_amax) // 2
        if half == 0 or self.amax == 0:
            return 1.0
        first = float(np.max(self.sample_amax[:half]))
        return max(1.0, self.amax / first) if first > 0 else math.inf

    @property
    def planned_clipped_fraction(self) -> float | None:
        """Share of the values beyond the range that the run used; None if it used none."""
        return share_above(self.histogram, self.planned.amax) if self.planned else None

    def percentile(self, percent: float) -> float:
        """A percentile of |x|, to one histogram bin; NaN without values."""
        if not self.histogram.count:
            return math.nan
        return self.histogram.magnitude_percentile(percent)

    def computed_marks(self) -> tuple[Mark, ...]:
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
class RangesResult:
    """Everything `qdebug ranges` found.

    Attributes:
        kind: "run" or "model": what `path` is.
        model_path, model_sha256: the model whose ranges these are.
        calibration: where the samples came from; `samples` is their number.
        holdout: held-out data, "" without; `held_out_samples` is their number.
        from_cache: no model was run to calibrate.
        sort: what `tensors` are sorted by.
        tensors: those asked for, or all.
        coverage: over the tensors that INT8 layers read; over all of `tensors` where none do or
            that is not known.
        coverage_tensors: how many those are.
    """

    kind: str
    path: str
    model_path: str
    model_sha256: str
    calibration: str
    samples: int
    sort: str
    tensors: tuple[TensorDynamics, ...]
    coverage: Coverage
    coverage_tensors: int
    holdout: str = ""
    held_out_samples: int = 0
    from_cache: bool = False

    @property
    def by_position(self) -> list[TensorDynamics]:
        """The tensors in the order of execution."""
        return sorted(self.tensors, key=lambda t: t.position)


@dataclass(frozen=True)
class Octaves:
    """Values counted by sign and power of two.

    Attributes:
        exponents: k of each octave [2^k, 2^(k+1)), descending and without gaps.
        negative, positive: counts in them.
        zeros: values that are exactly 0.
    """

    exponents: tuple[int, ...]
    negative: tuple[int, ...]
    positive: tuple[int, ...]
    zeros: int


def octaves(histogram: TensorHistogram) -> Octaves:
    """The histogram by octaves; denormal magnitudes count in the lowest that float32 has."""
    counts = histogram.table[:2]
    if counts.shape[1] == 0:
        return Octaves((), (), (), histogram.zeros)
    lower = edges(histogram.first, counts.shape[1], histogram.top)[:-1]
    exponents = np.frexp(np.maximum(lower, 2.0**-126))[1] - 1
    top, bottom = int(exponents[-1]), int(exponents[0])
    size = top - bottom + 1
    positive, negative = (
        np.bincount(exponents - bottom, weights=row, minlength=size).astype(np.int64)[::-1]
        for row in counts
    )
    return Octaves(
        tuple(range(top, bottom - 1, -1)),
        tuple(negative.tolist()),
        tuple(positive.tolist()),
        histogram.zeros,
    )


@dataclass(frozen=True)
class EvenBins:
    """Values counted in bins of one width: `edges` float64 [bins + 1], `counts` int64 [bins]."""

    edges: npt.NDArray[np.float64] = field(repr=False)
    counts: npt.NDArray[np.int64] = field(repr=False)


def even_bins(histogram: TensorHistogram, bins: int) -> EvenBins:
    """The signed histogram from low to high in `bins` bins of one width, zeros included; each of
    the histogram's own bins, which are far narrower, is counted at its mean."""
    low, high = (histogram.low, histogram.high) if histogram.count else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
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


def sorted_by(tensors: list[TensorDynamics], order: str) -> list[TensorDynamics]:
    """`tensors` by one of SORTS; what has no value goes last, ties by the order of execution."""
    return sorted(tensors, key=SORTS[order])


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


SORTS: Mapping[str, Callable[[TensorDynamics], tuple[float | str, ...]]] = {
    "crest": lambda t: (_descending(t.crest_factor), t.position),
    "amax": lambda t: (-t.amax, t.position),
    "name": lambda t: (t.name, t.position),
    "order": lambda t: (t.position,),
    "growth": lambda t: (-t.growth, t.position),
}


def _mark(histogram: TensorHistogram, method: str, amax: float) -> Mark:
    kept = share_above(histogram, amax / _LEVELS / 2)
    zeros = histogram.zeros / histogram.count
    return Mark(method, amax, share_above(histogram, amax), max(0.0, 1.0 - zeros - kept))
