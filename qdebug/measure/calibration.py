"""What a calibration found: plain records, from which every report is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from qdebug.calibrators.coverage import Excess, Growth, Stretch
from qdebug.measure.metrics import Metrics
from qdebug.plan.plan import TensorRange
from qdebug.types import Array

FACTOR = 2.0
"""Ranges further apart than this are reported."""
_FEWEST_EXECUTIONS = 4


@dataclass(frozen=True)
class Trial:
    """What one candidate makes of the outputs.

    Attributes:
        outputs: metrics of every float output.
        task: the end-to-end metric, None without one.
        batch_errors: Σerr² of the same outputs in each execution, float64 [executions].
    """

    outputs: Mapping[str, Metrics]
    task: float | None
    batch_errors: Mapping[str, Array] = field(default_factory=dict)

    @property
    def sqnr_db(self) -> float:
        """The lowest SQNR of the outputs; NaN where one of them is broken."""
        values = [m.sqnr_db for m in self.outputs.values()]
        return float(np.min(values)) if values else float("nan")

    def surely_beats(self, other: Trial) -> bool:
        """Whether it makes less error than `other` of the output where that makes most, by more
        than two standard errors of the difference from execution to execution (at least 4)."""
        worst = min(other.outputs, key=lambda t: other.outputs[t].sqnr_db, default="")
        if worst not in self.batch_errors or worst not in other.batch_errors:
            return False
        gain = other.batch_errors[worst] - self.batch_errors[worst]
        if len(gain) < _FEWEST_EXECUTIONS or not np.all(np.isfinite(gain)):
            return False
        return bool(gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(len(gain)))


@dataclass(frozen=True)
class Mix:
    """A range for every tensor, each from the method that quantizes held-out data best.

    Attributes:
        tensors: the ranges; their `method` says which was taken.
        counts: how many tensors each method gave.
        samples: how many held-out samples decided. Others judge it.
    """

    tensors: Mapping[str, TensorRange]
    counts: Mapping[str, int]
    samples: int


@dataclass(frozen=True)
class RangeDifference:
    """A tensor's range that is off: the one given, and the one that `method` gives now."""

    tensor: str
    given: float
    fresh: float
    method: str

    @property
    def factor(self) -> float:
        """By how much they differ, at least 1; inf where only one of them is 0."""
        low, high = sorted((self.given, self.fresh))
        if low == high:
            return 1.0
        return high / low if low > 0 else float("inf")


@dataclass(frozen=True)
class CacheDifference:
    """What is wrong with a calibration that was given.

    Attributes:
        missing: quantized activations that it has no range for.
        unknown: tensors in it that the model does not have.
        unused: how many tensors in it the model has, but no INT8 layer reads: not compared.
        different: ranges more than FACTOR away from the fresh one, the worst first.
        degenerate: ranges that are 0 or denormal although the tensor is not.
        written_by: what the file says about who wrote it: the header of a calibration cache; "" for
            files of our own.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    unused: int
    different: tuple[RangeDifference, ...]
    degenerate: tuple[str, ...]
    written_by: str


@dataclass(frozen=True)
class MethodResult:
    """One method, judged.

    Attributes:
        name: of the method.
        tensors: the range of every quantized activation.
        trial: what INT8 with these ranges makes of the held-out samples.
        clipped: share of held-out values beyond the range, by tensor.
    """

    name: str
    tensors: Mapping[str, TensorRange]
    trial: Trial
    clipped: Mapping[str, float]


@dataclass(frozen=True)
class Coverage:
    """Whether the calibration samples were enough, and like the held-out ones."""

    growth: Growth
    stretches: tuple[Stretch, ...]
    excesses: tuple[Excess, ...]


@dataclass(frozen=True)
class CalibrateResult:
    """Everything `qdebug calibrate` found.

    Attributes:
        methods: all that were tried, "mix" and the calibration "given" among them.
        best: the name of the one to use; `best_by` says what decided.
        metric: name of the end-to-end metric, "" without one; `reference_task` is its FP32 value.
        weights: ranges of weights that are not their largest magnitudes, the same for every method.
        cache_difference: how a cache given differs from a fresh calibration.
        from_cache: no model was run to calibrate.
        notes: what is odd about the values that were seen.
    """

    model_path: str
    model_sha256: str
    calibration_samples: int
    held_out_samples: int
    methods: tuple[MethodResult, ...]
    best: str
    best_by: str
    metric: str
    reference_task: float | None
    coverage: Coverage
    weights: Mapping[str, TensorRange]
    mix: Mix | None
    cache_difference: CacheDifference | None
    from_cache: bool
    source: str
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> MethodResult:
        """The best method."""
        return next(m for m in self.methods if m.name == self.best)
