"""What a calibration found; its fields are the JSON of `calibrate`, schema qdebug.calibrate/1."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from qdebug.calibrators.coverage import Excess, Growth, Stretch
from qdebug.formats.registry import FORMAT_OF
from qdebug.metrics.tensor import OUTPUT_METRICS, Metrics
from qdebug.metrics.uncertainty import Interval
from qdebug.plan.plan import TensorRange
from qdebug.plan.quantize import scale_of
from qdebug.plan.rangesfile import scales_to_yaml
from qdebug.plan.trtcache import default_cache_text
from qdebug.result import (
    FailedStage,
    Hidden,
    Inline,
    MaybeText,
    ModelRef,
    ReadData,
    Result,
    in_json,
)
from qdebug.types import Precision

FACTOR = 2.0
"""Ranges further apart than this are reported."""


THIN = 0.5
"""A group is thin where its part of the calibration samples is less than half of its part of those
held out: by chance that is rare with 20 and more."""


@dataclass(frozen=True)
class GroupShare:
    """A group of samples.

    Attributes:
        calibration_samples, held_out_samples: how many are of it.
        reference: the end-to-end metric of FP32 on those held out; null without one, and where it
            cannot be computed of them.
    """

    name: str
    calibration_samples: int
    held_out_samples: int
    reference: float | None = None


@dataclass(frozen=True)
class GroupFigures:
    """What one candidate makes of the held-out samples of a group.

    Attributes:
        sqnr_db: of the outputs, from their mean noise; NaN where they hold NaN or Inf.
        metric: the end-to-end metric; null without one, and where it cannot be computed of them.
    """

    sqnr_db: float
    metric: float | None


@dataclass(frozen=True)
class Trial:
    """What one candidate makes of the outputs.

    Attributes:
        outputs: metrics of every float output.
        metric: the end-to-end metric, None without one.
        groups: the same of each group of samples; none without groups, and where errors cannot be
            told by sample.
    """

    outputs: Mapping[str, Metrics]
    metric: float | None
    groups: Mapping[str, GroupFigures] = field(default_factory=dict)

    @property
    @in_json
    def sqnr_db(self) -> float:
        """The lowest SQNR of the outputs; NaN where one of them is broken."""
        values = [m.sqnr_db for m in self.outputs.values()]
        return float(np.min(values)) if values else float("nan")


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
        return 1.0 if low == high else high / low if low > 0 else float("inf")


@dataclass(frozen=True)
class CacheDifference:
    """What is wrong with a calibration that was given.

    Attributes:
        written_by: what the file says about who wrote it: the header of a calibration cache; "" for
            files of our own.
        missing: quantized activations that it has no range for.
        unknown: tensors in it that the model does not have.
        unused: how many tensors in it the model has, but no quantized layer reads: not
            compared.
        degenerate: ranges that are 0 or denormal although the tensor is not.
        different: ranges more than FACTOR away from the fresh one, the worst first.
    """

    written_by: str
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    unused: int
    degenerate: tuple[str, ...]
    different: tuple[RangeDifference, ...]


@dataclass(frozen=True)
class CalibratedTensor:
    """The range of one quantized activation.

    Attributes:
        range: its amax, and the calibrator that gave it.
        clipped_fraction: share of the held-out values beyond the range; None without any.
        precision: that the range is for.
    """

    range: Inline[TensorRange]
    clipped_fraction: float | None
    precision: Hidden[Precision] = Precision.INT8

    @property
    @in_json
    def scale(self) -> float | tuple[float, ...]:
        """What QuantizeLinear divides by: amax / 127 in INT8, / 448 in FP8, / 32767 in INT16."""
        form = FORMAT_OF[self.precision]
        found: float | tuple[float, ...] = scale_of(self.range.amax, form=form).tolist()
        return found


@dataclass(frozen=True)
class MethodResult:
    """One method, evaluated.

    Attributes:
        name: of the method.
        tensors: every quantized activation.
        trial: what quantization with these ranges makes of the held-out samples.
    """

    name: Hidden[str]
    tensors: Mapping[str, CalibratedTensor]
    trial: Inline[Trial]

    @property
    def ranges(self) -> dict[str, TensorRange]:
        """The range of every quantized activation."""
        return {name: entry.range for name, entry in self.tensors.items()}

    @property
    def clipped(self) -> list[float]:
        """Shares of held-out values beyond the range, where they are known."""
        return [
            entry.clipped_fraction
            for entry in self.tensors.values()
            if entry.clipped_fraction is not None
        ]


@dataclass(frozen=True)
class Coverage:
    """Whether the calibration samples were enough, and like the held-out ones.

    Attributes:
        growth: of the ranges with the number of samples.
        stretched_by_one_sample: samples that make a tensor's range by themselves.
        held_out: how far held-out data leave the calibrated ranges, worst tensor first.
    """

    growth: Growth
    stretched_by_one_sample: tuple[Stretch, ...]
    held_out: tuple[Excess, ...]


@dataclass(frozen=True)
class ReferenceMetric:
    """An end-to-end metric, and what FP32 reaches.

    Attributes:
        higher_is_better: as declared, else as seen; null where neither tells.
        is_share: it is a share of the samples, each of which counts as one.
        interval: of what FP32 reaches, 95 %; null where nothing says it.
        is_chance: FP32 is no better than guessing: what the metric says of others is chance, too;
            null where that was not looked at.
    """

    name: str
    reference: float | None
    higher_is_better: bool | None = None
    is_share: bool = False
    interval: Interval | None = None
    is_chance: bool | None = None


@dataclass(frozen=True, repr=False, kw_only=True)
class CalibrateResult(Result):
    """Everything `qdebug calibrate` found.

    Attributes:
        precision: that the ranges are for.
        calibration_samples, held_out_samples: their numbers.
        metric: the end-to-end metric, null without one.
        methods: all that were tried, the calibration "given" among them.
        weights: ranges of weights, where they are not the largest magnitude of each channel; the
            same for every method.
        best: the name of the one to use; `best_by` says what decided.
        from_cache: no model was run to calibrate.
        cache_difference: how the calibration given differs from a fresh one.
        source: where the calibration samples came from.
        notes: what is odd about the values that were seen, and about the model.
        control_flow: the branch that stands in the place of an If of the model, by its name.
        failed: stages that ended in an error after the rest, such as writing a file or the page.
        grouped_by: what says which group a sample is of; null without groups. groups: each.
        balanced: ranges for which every group counts alike were tried, too.
    """

    SCHEMA: ClassVar[str] = "qdebug.calibrate/1"
    ROWS: ClassVar[str] = "methods"

    model: ModelRef
    calibration_samples: int
    held_out_samples: int
    metric: ReferenceMetric | None
    methods: Mapping[str, MethodResult]
    weights: Mapping[str, TensorRange]
    best: str
    best_by: str
    coverage: Coverage
    from_cache: bool
    cache_difference: CacheDifference | None
    source: str
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()
    control_flow: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[FailedStage, ...] = ()
    precision: Precision = Precision.INT8
    grouped_by: MaybeText = ""
    groups: tuple[GroupShare, ...] = ()
    balanced: bool = False

    @property
    @in_json
    def thin_groups(self) -> tuple[str, ...]:
        """Groups whose part of the calibration samples is much less than that of those held out."""
        return tuple(
            group.name
            for group in self.groups
            if group.calibration_samples * self.held_out_samples
            < THIN * group.held_out_samples * self.calibration_samples
        )

    @property
    def chosen(self) -> MethodResult:
        """The best method."""
        return self.methods[self.best]

    def scales_yaml(self) -> str:
        """The best ranges as YAML, schema qdebug.scales/1."""
        return scales_to_yaml(
            self.chosen.ranges,
            self.weights,
            precision=self.precision,
            method=self.best,
            calibration=f"{self.calibration_samples} samples of {self.source}",
            model_path=self.model.path,
            model_sha256=self.model.sha256,
            control_flow=self.control_flow,
        )

    def trt_cache(self) -> str:
        """The best ranges as a calibration cache for TensorRT 10, which calibrates INT8."""
        scales = {name: float(scale_of(entry.amax)) for name, entry in self.chosen.ranges.items()}
        return default_cache_text(scales)

    def save_scales(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write `scales_yaml`.

        Raises:
            StoreError: the file exists and `force` is False, or cannot be written.
        """
        self._save(path, self.scales_yaml(), force)

    def save_trt_cache(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write `trt_cache`.

        Raises:
            StoreError: the file exists and `force` is False, or cannot be written.
        """
        self._save(path, self.trt_cache(), force)

    def rows(self) -> list[dict[str, Any]]:
        """The methods, each with its figures but without its ranges."""
        return [
            {
                "method": name,
                **{m.name: m.worst(method.trial.outputs) for m in OUTPUT_METRICS},
                "metric": method.trial.metric,
                "mean_clipped_fraction": float(np.mean(method.clipped)) if method.clipped else None,
                "max_clipped_fraction": max(method.clipped, default=None),
                "best": name == self.best,
            }
            for name, method in self.methods.items()
        ]

    def headline(self) -> str:
        """The model, how many methods were tried, and the best."""
        tried = f"{self.model.name}: {len(self.methods)} calibrations"
        if not self.best_by:
            return f"{tried}, no output to compare them by"
        sqnr = f"{self.chosen.trial.sqnr_db:.1f} dB at the outputs"
        return f"{tried}, best {self.best} ({sqnr}, by {self.best_by})"
