"""What a comparison found; its fields are the JSON of `compare`, schema qdebug.compare/1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from qdebug.metrics.chance import better_than_chance, no_better_than_chance
from qdebug.metrics.effect import Effect, EffectSummary, gain_db
from qdebug.metrics.parts import ErrorParts
from qdebug.metrics.tasks.base import BoxCounts
from qdebug.metrics.tensor import METRIC, Metrics, noise_db
from qdebug.metrics.uncertainty import Uncertainty
from qdebug.result import (
    FailedStage,
    Hidden,
    Inline,
    MaybeText,
    ModelRef,
    ReadData,
    Result,
    from_json,
    in_json,
)
from qdebug.results.conditions import Checked
from qdebug.results.curve import Curve
from qdebug.results.engine import EngineReport
from qdebug.results.framework import FrameworkResult
from qdebug.results.groups import Groups
from qdebug.results.stage_report import Stage, stages_of
from qdebug.results.summary import RELEVANT_DB, Summary
from qdebug.results.words import in_decibels
from qdebug.types import Fp16Kernels, Precision, Skipped

ENGINE_STAGE = "engine"
"""What a failure to execute an engine is called in `failed`."""
METRIC_STAGE = "metric"
"""What a failure to compute the end-to-end metric is called there."""

HARMLESS_DB = 40.0
"""An error of a hundredth of the signal: an overflow whose readers show less is no culprit."""


OWN_ERROR = "its own error"
AT_OUTPUTS = "what it alone costs at the outputs"
OUTPUT_ERROR = "the error at its output"
DECISIONS = "the decisions"
VALUES = "the values"
"""What the share of a cause is a part of."""


@dataclass(frozen=True)
class TensorResult:
    """A tensor's cumulative error."""

    name: str
    metrics: Inline[Metrics]


@dataclass(frozen=True)
class OutputPart:
    """A part of an output: one of the tensors that its last Concat joins.

    Attributes:
        branch: that tensor; of the levels of a pyramid the first one's.
        axis, first, last: its places in the output: from `first` to `last` of this axis.
        sqnr_db: of its values; NaN where the output holds NaN or Inf.
    """

    branch: str
    axis: int
    first: int
    last: int
    sqnr_db: float

    @property
    def places(self) -> str:
        """Where it lies, for people."""
        span = f"{self.first}–{self.last}" if self.last > self.first else f"{self.first}"
        what = "channel" if self.first == self.last else "channels"
        return f"{what} {span}" if self.axis == 1 else f"{span} of axis {self.axis}"


@dataclass(frozen=True)
class OutputResult(TensorResult):
    """An output's cumulative error.

    Attributes:
        parts: its parts, such as boxes and scores, in order; none where it is of one piece. Each
            counts as an output where layers are ranked; the headline is about the worst.
        worst_file: that `worst_sample` was read from, below the folder that was given; "" where
            samples are no files.
    """

    parts: tuple[OutputPart, ...] = ()
    worst_file: str = ""

    @property
    def part_sqnrs_db(self) -> tuple[float, ...]:
        """Of each part; of the output where it has none."""
        return tuple(p.sqnr_db for p in self.parts) or (self.metrics.sqnr_db,)

    @property
    def part_places(self) -> tuple[str, ...]:
        """What these are of, for people."""
        return tuple(f"{self.name}: {p.places} from {p.branch}" for p in self.parts) or (self.name,)

    @property
    def worst_part(self) -> OutputPart | None:
        """The part with the lowest SQNR; None without parts."""
        return min(self.parts, key=lambda p: p.sqnr_db, default=None)


_NOT_MEASURED = ": not measured."


def to_try(change: str) -> str:
    """A remedy, or its first sentence: the suggestion of a change, which was not measured."""
    return f"Try {change}{_NOT_MEASURED}"


LEAST_CURE_DB = 1.0
"""A change of the quantization that gives less is not worth making."""


@dataclass(frozen=True)
class Cause:
    """One reason why a layer is wrong, with the numbers that show it.

    Attributes:
        label: such as clipping, coarse-step or weight-range; docs/reference/causes.md lists all.
        share: a part, 0 to 1, of what `share_of` names; None for not-as-planned, which is not a
            part of an error, and for fp16-underflow beside fp16-overflow, which leaves no finite
            energy to have a part of. Only shares of the same whole add up.
        evidence: the measured numbers, for people.
        remedy: what to do. A change that was measured comes with what it gave; one that was not is
            a suggestion, and says so.
        share_of: what it alone costs at the outputs (the noise of the model's outputs with only
            this layer quantized), its own error (the layer's local error energy), the error at its
            output (the cumulative one), the decisions, or the values.
        brief: the evidence in a few words, as what opens a report; "" where there are none.
    """

    label: str
    share: float | None
    evidence: str
    remedy: str
    share_of: str = OWN_ERROR
    brief: str = ""

    @property
    def part(self) -> float:
        """The share, 1 where there is none."""
        return 1.0 if self.share is None else self.share

    def measured(self, cure: Cure, samples: int) -> Self:
        """The same with what a cure gave before all else, beside figures of so many `samples`. What
        was `to_try` is no longer unknown; it is left out where it is no cure."""
        _, mark, rest = self.remedy.partition(_NOT_MEASURED)
        if cure.helps or not mark:
            rest = self.remedy.replace(_NOT_MEASURED, ".", 1)
        return replace(self, remedy=f"{cure.advice(samples)} {rest.strip()}".strip())

    def __str__(self) -> str:
        if self.share is None:
            return self.label
        return f"{self.label}, {100 * self.share:.0f}% of {self.share_of}"


@dataclass(frozen=True)
class TriedRemedy:
    """What a remedy gave when it was tried on one layer, with nothing else changed.

    Attributes:
        what: what was done, such as the exponent that was chosen; "" where the name says it.
        helps: the outputs are better by more than chance.
        gain_db: by how much it raised the SQNR of the worst output, in the simulation.
        metric: the end-to-end metric with it; null without one.
    """

    remedy: str
    what: str
    helps: bool
    gain_db: float
    metric: float | None


@dataclass(frozen=True)
class Cure:
    """A change of how the model is quantized that keeps every layer in its format, and what it gave
    at the outputs, in the simulation.

    Attributes:
        name: which: "weights per-channel", "method entropy", "ranges of these samples", or two of
            them joined by " + ".
        what: the same for people: an option for a plan, words for a model that others quantized.
        causes: the labels that it answers.
        layers: how many it changes.
        samples: what the figures are of.
        before_sqnr_db, sqnr_db: of the outputs without it and with it, as Summary.sqnr_db; NaN
            where they hold NaN or Inf.
        helps: the outputs are better by 1 dB or more, and by more than chance on the first few
            samples, if these are two or more; or they are finite at last; or half of what the
            metric loses is given back.
        metric: the end-to-end metric with it; null without one, where it does not take the outputs,
            and of what was run on the first few samples only. `before_metric`: without it.
    """

    name: str
    what: str
    causes: tuple[str, ...]
    layers: int
    samples: int
    before_sqnr_db: float
    sqnr_db: float
    helps: bool
    metric: float | None
    before_metric: float | None = None

    def advice(self, samples: int) -> str:
        """What to do and what it gives, as a sentence beside figures of so many `samples`."""
        before, doubt, task = in_decibels(self.before_sqnr_db), "", ""
        if self.metric is not None and self.before_metric is not None:
            task = f", the metric at {self.metric:.4f} in place of {self.before_metric:.4f}"
        if not self.helps:
            gain = self.sqnr_db - self.before_sqnr_db
            doubt = ", which may be chance" if gain >= LEAST_CURE_DB else ", which is no cure"
        on = f" (on {self.samples} of the {samples} samples)" if self.samples < samples else ""
        return (
            f"Measured with {self.what}, every layer still quantized: "
            f"{in_decibels(self.sqnr_db)} at the outputs in place of {before}{on}{task}{doubt}."
        )


@dataclass(frozen=True)
class LayerResult:
    """A layer's error.

    Attributes:
        metrics: cumulative: of its output tensor, reference run against candidate run.
        local_sqnr_db: of its output when it reads the reference's activations; None for a layer
            that runs in FP32, or that could not be cut loose.
        input_clipped_fraction: the largest share of an input's values that its Q/DQ pair clips.
        rank: 1 is the worst: in the order of the curve, which is that by the share of the outputs'
            error that it makes where there is no curve; layers without an effect by local error,
            and those without either by cumulative error.
        effect: what its precision costs at the outputs of the simulation; null for a layer that
            runs in FP32, and where effects were not measured.
        readers_sqnr_db: of a layer that holds NaN or Inf of its own, the lowest SQNR among the
            layers that read them, where all of those are finite; it then ranks by it.
        error_parts: what its output's error in the simulation consists of; null for a layer that
            could not be cut loose, and where values are not finite.
        remedies: what was tried on it, the best first; empty where nothing was.
    """

    name: str
    op_type: str
    precision: Precision
    tensor: str
    nodes: tuple[str, ...]
    metrics: Inline[Metrics]
    local_sqnr_db: float | None
    input_clipped_fraction: float | None
    rank: int = 0
    causes: tuple[Cause, ...] = ()
    readers_sqnr_db: float | None = None
    effect: Effect | None = None
    error_parts: ErrorParts | None = None
    remedies: tuple[TriedRemedy, ...] = ()

    @property
    def output_share(self) -> float | None:
        """The part of the outputs' noise power that keeping the layer in FP32 takes away."""
        return self.effect.output_share if self.effect else None

    @property
    @in_json
    def gain_db(self) -> float | None:
        """By how much the outputs' SQNR rises when only this layer runs in FP32: the same as
        `output_share`, in dB."""
        share = self.output_share
        return None if share is None else gain_db(share)

    @property
    def alone_sqnr_db(self) -> float | None:
        """SQNR of the outputs when only this layer runs as planned; NaN where they are broken."""
        if self.effect is None or self.effect.alone is None:
            return None
        return noise_db(self.effect.alone)

    def figure(self, metric: str) -> float | None:
        """The value of one of LAYER_METRICS, by its name."""
        value: float | None = getattr(self.metrics if metric in METRIC else self, metric)
        return value

    def __str__(self) -> str:
        local = "" if self.local_sqnr_db is None else f"local {self.local_sqnr_db:.1f} dB, "
        if self.gain_db is not None:
            local = f"{self.gain_db:+.1f} dB at the outputs in FP32, {local}"
        causes = f" ({'; '.join(str(cause) for cause in self.causes)})" if self.causes else ""
        return (
            f"{self.name}: {self.op_type} in {self.precision}, {local}cumulative "
            f"{self.metrics.sqnr_db:.1f} dB{causes}"
        )

    @property
    def overflows(self) -> bool:
        """It makes NaN or Inf of what the reference gives it, which is no harmless mask."""
        local = self.local_sqnr_db
        return local is not None and math.isnan(local) and not self.harmless

    @property
    @in_json
    def harmless(self) -> bool:
        """It overflows, and the layers that read it show nothing of that: a mask of -Inf."""
        return self.readers_sqnr_db is not None and self.readers_sqnr_db >= HARMLESS_DB


@dataclass(frozen=True)
class Divergence:
    """The first tensor in execution order whose SQNR is under the threshold."""

    tensor: str
    layer: str | None
    sqnr_db: float
    threshold_db: float


@dataclass(frozen=True)
class SampleLoss:
    """What a sample loses by the task.

    Attributes:
        sample: its number, counted from 0.
        reference, candidate: the loss, or the score, of both runs.
        lost: by how much the candidate is worse.
    """

    sample: int
    reference: float
    candidate: float
    lost: float


@dataclass(frozen=True)
class TaskResult:
    """End-to-end accuracy of both runs.

    Attributes:
        chance: what guessing would give on average, of `top1`: 1 / classes; null where that is not
            known.
        reference_classes: how many different classes FP32 chooses, for samples or for pixels, of
            the built-in metrics of classes and masks; null for others.
        higher_is_better: as declared, else as seen: whether FP32's own outputs score higher than
            those of other samples; null where neither tells.
        is_share: it is a share of the samples, each of which counts as one.
        uncertainty: what of the candidate's value and of the change may be chance; null for one
            sample, and where the metric cannot be computed of some of the samples.
        lost, won: of a share, how many samples are right in FP32 only, and in the candidate only;
            null for others.
        boxes, reference_boxes: of a metric of boxes, the candidate's and FP32's next to the true
            ones; null for others.
        worst: the samples that lose most, by the metric's per-sample loss or else its per-sample
            score, the worst first; none of a metric that has neither.
        described: how the outputs were read; null where nothing was chosen.
        by_sample: outputs differ in shape between samples, and the score is the mean of those of
            single samples.
    """

    name: str
    reference: float
    candidate: float
    chance: float | None = None
    reference_classes: int | None = None
    higher_is_better: bool | None = None
    is_share: bool = False
    uncertainty: Uncertainty | None = None
    lost: int | None = None
    won: int | None = None
    boxes: BoxCounts | None = None
    reference_boxes: BoxCounts | None = None
    worst: tuple[SampleLoss, ...] = ()
    described: MaybeText = ""
    by_sample: bool = False

    @property
    def gained(self) -> float | None:
        """By how much the candidate is better than FP32, negative where it is worse; None where it
        is not known which way is better."""
        return self.better(self.candidate, self.reference)

    def better(self, value: float, other: float) -> float | None:
        """By how much one value is better than another; None where it is not known which way is
        better."""
        if self.higher_is_better is None:
            return None
        return value - other if self.higher_is_better else other - value

    def reference_is_chance(self, samples: int) -> bool:
        """Whether FP32 itself is no better than guessing on so many samples."""
        return no_better_than_chance(self.reference, samples, self.chance)

    def reference_is_right(self, samples: int) -> bool | None:
        """Whether FP32 does better than guessing (True) or does not (False) on so many samples;
        None where that cannot be told."""
        if better_than_chance(self.reference, samples, self.chance):
            return True
        return False if self.reference_is_chance(samples) else None


@dataclass(frozen=True)
class TensorMatch:
    """A tensor of the FP32 model and what stands for it in the quantized model.

    Attributes:
        how: what they were matched by: name, structure or weight.
        transformation: what is done to the candidate's values before they are compared, such as
            "after Relu"; "" for nothing.
        proven: without rounding, and from the same inputs, they were equal on the samples.
        reason: why that is not so.
    """

    tensor: str
    candidate: str
    how: str
    transformation: str
    proven: bool
    reason: str


@dataclass(frozen=True)
class Correspondence:
    """How the tensors of a quantized model and of its FP32 model were matched.

    Attributes:
        samples: how many the proof looked at.
        matches: in execution order.
        unmatched: tensors of the FP32 model that nothing stands for, and why.
    """

    samples: int
    matches: tuple[TensorMatch, ...]
    unmatched: tuple[Skipped, ...]


@dataclass(frozen=True)
class GateVerdict:
    """Whether the gate held.

    Attributes:
        passed: every condition held, and an engine that was built is what was planned; null where
        there was nothing to check. conditions: each with the worst value found.
    """

    passed: bool | None
    conditions: tuple[Checked, ...]


@dataclass(frozen=True, repr=False, kw_only=True)
class CompareResult(Result):
    """Everything `qdebug compare` measured.

    Attributes:
        backend: what ran the candidate.
        precision: the plan's own: what layers run in that it does not name.
        fp16_kernels: how the simulation computed the layers in FP16; null where there are none.
        samples: how many were compared; `local_samples` are those of the local errors.
        metric: the end-to-end metric, null without one.
        groups: the samples by group, in the simulation; null where no groups were asked for.
        framework: the training framework against the ONNX model in FP32; null where its outputs
            were not given.
        outputs: the model's float outputs; an engine's own where it was executed.
        layers: every layer whose output was compared, worst first.
        tensors: every compared tensor, in execution order.
        skipped: tensors that have no error, and why.
        correspondence: how the tensors were matched; null where one model was made from the other.
        reference_in_fp16: FP32 is not known, because the model is in FP16 itself: all errors are
            those against it as ONNX Runtime computes it.
        effect: how the layers' effects at the outputs were measured; null where they were not.
        cures: other ways to quantize the model that were tried, the one that restores most first;
            none where there is nothing to restore, or nothing to change.
        remedy_samples: what remedies were judged on; 0 where none were tried.
        remedy_metric: the end-to-end metric of the candidate on these; null without one.
        summary: what the leading layers cost together, in the simulation; null where that was not
            measured.
        curve: what the first layers give back in FP32, by which their order was chosen; null where
            that was not measured.
        engine: what is known of the engine; null where none was built.
        run_file: the file that was written; None for none.
        failed: stages that ended in an error; what the others measured is here.
    """

    SCHEMA: ClassVar[str] = "qdebug.compare/1"
    ROWS: ClassVar[str] = "layers"

    model: ModelRef
    backend: str
    precision: str
    fp16_kernels: Fp16Kernels | None = None
    samples: int
    local_samples: int
    conditions: Hidden[tuple[Checked, ...]] = ()
    metric: TaskResult | None = None
    groups: Groups | None = None
    framework: FrameworkResult | None = None
    outputs: tuple[OutputResult, ...]
    layers: tuple[LayerResult, ...]
    tensors: tuple[TensorResult, ...]
    first_divergence: Divergence | None
    reference_in_fp16: bool = False
    effect: EffectSummary | None = None
    summary: Summary | None = None
    curve: Curve | None = None
    cures: tuple[Cure, ...] = ()
    remedy_samples: int = 0
    remedy_metric: float | None = None
    skipped: tuple[Skipped, ...]
    correspondence: Correspondence | None = None
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    engine: EngineReport | None = None
    run_file: Hidden[Path | None] = None
    failed: tuple[FailedStage, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """See Result.from_dict; `conditions` are those of the verdict."""
        conditions = from_json(GateVerdict, data["verdict"]).conditions
        return replace(super().from_dict(data), conditions=conditions)

    @property
    def passed(self) -> bool:
        """The gate held, an engine that was built is what was planned, and no stage failed; True
        without a gate."""
        as_planned = self.engine is None or self.engine.passed
        return not self.failed and as_planned and all(c.passed for c in self.conditions)

    @property
    @in_json
    def verdict(self) -> GateVerdict:
        """Whether the gate held."""
        return GateVerdict(self.passed, self.conditions)

    @property
    def engine_failure(self) -> FailedStage | None:
        """Why there is nothing of an engine that was built: executing it ended in this error."""
        return next((x for x in self.failed if x.stage == ENGINE_STAGE), None)

    @property
    def metric_failure(self) -> FailedStage | None:
        """Why there is no end-to-end metric: computing it ended in this error."""
        return next((x for x in self.failed if x.stage == METRIC_STAGE), None)

    @property
    @in_json
    def stages(self) -> tuple[Stage, ...]:
        """The steps from the framework to the engine, and the task's score: whether each holds."""
        return stages_of(self)

    @property
    def noise(self) -> float:
        """Σerr²/Σref² of the outputs, as `ErrorTotals.noise`; +inf where they hold NaN or Inf."""
        return _mean_noise([x for o in self.outputs for x in o.part_sqnrs_db])

    @property
    def worst_noise(self) -> float:
        """The same of the worst part of each output, as `ErrorTotals.worst_noise`."""
        return _mean_noise([min(o.part_sqnrs_db) for o in self.outputs])

    @property
    def is_as_good_as_fp32(self) -> bool:
        """The outputs' error is too small to explain, and the metric is that of FP32."""
        kept = self.metric is None or self.metric.candidate == self.metric.reference
        return kept and self.worst_noise <= 10 ** (-RELEVANT_DB / 10)

    def headline(self) -> str:
        """The model, how many layers, what its report opens with (where that was not measured,
        the worst layer), and whether the gate held."""
        worst = f", worst {self.layers[0]}" if self.layers else ""
        wrong = self.framework is not None and self.framework.agrees is False
        if self.summary is not None or wrong:
            worst = f": {self.VIEWS.summary(self).removesuffix('.')}"
        judged = f", {'passed' if self.passed else 'FAILED'}" if self.conditions else ""
        return (
            f"{self.model.name} in {self.precision} on {self.backend}: {len(self.layers)} layers"
            f"{worst}{judged}"
        )


def _mean_noise(sqnrs_db: Sequence[float]) -> float:
    if not sqnrs_db:
        return math.nan
    broken = any(math.isnan(v) for v in sqnrs_db)
    return math.inf if broken else sum(10 ** (-v / 10) for v in sqnrs_db) / len(sqnrs_db)
