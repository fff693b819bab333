"""What a calibration found: plain records, from which every report is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qdebug.calibrate.coverage import Excess, Growth, Stretch
from qdebug.measure.metrics import Metrics
from qdebug.plan.plan import TensorRange

FACTOR = 2.0
"""Ranges further apart than this are reported."""


@dataclass(frozen=True)
class Trial:
    """What one candidate makes of the outputs.

    Attributes:
        outputs: metrics of every float output.
        task: the end-to-end metric, None without one.
    """

    outputs: Mapping[str, Metrics]
    task: float | None

    @property
    def sqnr_db(self) -> float:
        """The lowest SQNR of the outputs; NaN where one of them is broken."""
        values = [m.sqnr_db for m in self.outputs.values()]
        return float(np.min(values)) if values else float("nan")


@dataclass(frozen=True)
class Mix:
    """A range for every tensor, each from the method that quantizes held-out data best.

    Attributes:
        tensors: the ranges; their `method` says which was taken.
        counts: how many tensors each method gave.
    """

    tensors: Mapping[str, TensorRange]
    counts: Mapping[str, int]


@dataclass(frozen=True)
class RangeDifference:
    """A tensor whose range is off: the one given, and the exact largest magnitude now."""

    tensor: str
    given: float
    fresh: float


@dataclass(frozen=True)
class CacheDifference:
    """What is wrong with a calibration that was given.

    Attributes:
        missing: quantized activations that it has no range for.
        unknown: tensors in it that the model does not have, or not as activations.
        different: ranges more than FACTOR away from the fresh one, the worst first.
        degenerate: ranges that are 0 or denormal although the tensor is not.
    """

    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    different: tuple[RangeDifference, ...]
    degenerate: tuple[str, ...]


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
        cache_difference: how a cache given differs from a fresh calibration.
        from_cache: no model was run to calibrate.
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
    mix: Mix | None
    cache_difference: CacheDifference | None
    from_cache: bool
    source: str

    @property
    def chosen(self) -> MethodResult:
        """The best method."""
        return next(m for m in self.methods if m.name == self.best)
