"""What a repair did; its fields are the JSON of `repair`, schema qdebug.repair/1."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

import onnx

from qdebug.decide.bisect.result import BisectResult
from qdebug.decide.remedies.quantized import Quantized
from qdebug.metrics.uncertainty import Interval
from qdebug.network.weights import serialized, write_model
from qdebug.outputfiles import check_new
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.quantize import scale_of
from qdebug.plan.repaired import Record, marked_repaired
from qdebug.plan.trtcache import default_cache_text
from qdebug.result import FailedStage, Hidden, Json, MaybeText, ModelRef, ReadData, Result, in_json
from qdebug.wording import counted, option


class Reason(StrEnum):
    """Why a changed network was kept or not."""

    METRIC = "metric"
    TARGET = "target"
    LESS_NOISE = "less-noise"
    LESS_LOSS = "less-loss"
    MORE_LOSS = "more-loss"
    UNDECIDED = "undecided"
    NO_GAIN = "no-gain"
    METRIC_FELL = "metric-fell"
    FAILS = "fails"
    NOTHING_CHANGED = "nothing-changed"


class Outcome(StrEnum):
    """What became of a step in the end.

    `kept`: it is in the result. `dropped-at-the-end`: it was better when it was tried, and the
    result is a network without it, which is better on the held-out samples. `layers-pinned`: it is
    in the result, where all layers that it changes are pinned, so that it is of no use.
    `not-kept`: it was not kept when it was tried.
    """

    KEPT = "kept"
    NO_USE = "layers-pinned"
    DROPPED = "dropped-at-the-end"
    NOT_KEPT = "not-kept"


@dataclass(frozen=True)
class Figures:
    """What a network makes of some samples.

    Attributes:
        sqnr_db: of the output that is worst; null where one is broken.
        metric: the end-to-end metric; null without one.
        failure: why it cannot be run.
        worst_group: of samples, which decides the metric; null where it has no groups.
        interval: of the metric, 95 %; null where nothing says it.
    """

    sqnr_db: float
    metric: float | None
    failure: MaybeText = ""
    worst_group: MaybeText = ""
    interval: Interval | None = None


@dataclass(frozen=True)
class Step:
    """A remedy, tried on some layers.

    Attributes:
        remedy: its name.
        what: what was done, such as the exponent that was chosen.
        layers: the layers that were changed, in execution order; of a rejected one those that it
            was tried on.
        accepted: the change was kept when it was tried; `outcome` says whether in the end, too.
        reason: why, or why not.
        before, after: on the selection samples.
        proposals: how many variants were judged.
        seconds: wall time.
        samples_needed: about how many selection samples it would take to tell its gain from chance;
            null where it was told, and where nothing says how many.
        outcome: what became of it in the end.
    """

    remedy: str
    what: str
    layers: tuple[str, ...]
    accepted: bool
    reason: Reason
    before: Figures
    after: Figures | None
    proposals: int
    seconds: float
    samples_needed: int | None = None
    outcome: Outcome = Outcome.NOT_KEPT

    @property
    @in_json
    def gain_db(self) -> float | None:
        """By how much it raised the SQNR of the worst output; null where that is not known."""
        if self.after is None or not math.isfinite(self.after.sqnr_db - self.before.sqnr_db):
            return None
        return self.after.sqnr_db - self.before.sqnr_db


@dataclass(frozen=True)
class SkippedRemedy:
    """A remedy that was not tried, and why."""

    remedy: str
    reason: str


@dataclass(frozen=True)
class Answer:
    """A network that could be the result: held-out samples, which chose none of its changes, chose
    between it and others.

    Attributes:
        steps: the numbers, from 0, of the steps whose changes it has; none is the network before
            the repair.
        figures: of the network itself on the held-out samples, all of them.
        chosen: it is the result, but for layers that are pinned.
    """

    steps: tuple[int, ...]
    figures: Figures
    chosen: bool


@dataclass(frozen=True)
class Proof:
    """The networks on held-out samples, which took no part in the repair.

    Attributes:
        samples: how many.
        reference_metric: the end-to-end metric of FP32; null without one.
        start: quantized as it was.
        repaired: with the remedies that were kept, nothing pinned. See `cross_validated`.
        target: the condition on these samples; null without one. Where it is a difference to FP32,
            FP32's metric on these samples decides.
        passed: it holds with the remedies alone; null without a target.
        used_in_search: these samples were searched on too, to find what to pin.
        target_text: `target` for people.
        change_error: the standard error of the change of the metric from `start` to `repaired`;
            null where nothing tells.
        recovered_error: that of `recovered`.
        metric_is_share: the metric is a share of the samples, so that a difference is a number of
            samples.
        answers: the networks between which these samples chose.
        reference_interval: of FP32's metric, 95 %; null where nothing says it.
        cross_validated: for the metric of `repaired`, or without one its SQNR, each sample was run
            in that of `answers` which the other samples choose, so that the choice does not
            flatter it; what the chosen one makes of the samples that chose it is in `answers`.
            False where nothing was chosen between, the choice is `start`, the time was over, or
            the metric needs all samples.
    """

    samples: int
    reference_metric: float | None
    start: Figures
    repaired: Figures
    target: Annotated[str, Json(empty_is_null=True)]
    passed: bool | None
    used_in_search: bool = False
    target_text: MaybeText = ""
    change_error: float | None = None
    recovered_error: float | None = None
    higher_is_better: Hidden[bool] = True
    metric_is_share: Hidden[bool] = False
    answers: tuple[Answer, ...] = ()
    cross_validated: bool = False
    reference_interval: Interval | None = None

    @property
    @in_json
    def lost(self) -> float | None:
        """By how much the metric was worse than FP32's before the repair, negative where it was
        better; null without a metric."""
        return self.worse(self.start.metric)

    @property
    @in_json
    def recovered(self) -> float | None:
        """The part of the metric's loss that the remedies give back, at most 1; null where nothing
        was lost, or there is no metric."""
        lost, left = self.lost, self.worse(self.repaired.metric)
        if lost is None or left is None or not lost > 0:
            return None
        return min(1.0, (lost - left) / lost)

    @property
    @in_json
    def lost_samples(self) -> int | None:
        """How many samples fewer than in FP32 were right before the repair; null where nothing was
        lost, and where the metric is no share of samples."""
        lost = self.lost
        if lost is None or not self.metric_is_share or not lost > 0:
            return None
        return round(lost * self.samples)

    @property
    @in_json
    def recovered_samples(self) -> int | None:
        """How many of these are right again."""
        part, lost = self.recovered, self.lost_samples
        return None if part is None or lost is None else round(part * lost)

    def worse(self, metric: float | None) -> float | None:
        """By how much a metric is worse than FP32's."""
        full = self.reference_metric
        if metric is None or full is None:
            return None
        return full - metric if self.higher_is_better else metric - full


@dataclass(frozen=True)
class DroppedPins:
    """What would have been pinned in the repaired network, where the network without remedies
    was pinned instead.

    Attributes:
        pinned: the layers, by name; none where no set was found that reaches the target.
        pinned_share: of the cost of pinning all; null where no set was found.
        achieved: the target's figure with these, on the samples searched; null where nothing
            passed there.
        held_out: the same on held-out samples; null where that was not measured.
        passed: the target holds on both.
        explanation: why no set was found, or why the search stopped early.
    """

    pinned: tuple[str, ...]
    pinned_share: float | None
    achieved: float | None
    held_out: float | None
    passed: bool
    explanation: MaybeText = ""


@dataclass(frozen=True, repr=False, kw_only=True)
class RepairResult(Result):
    """Everything `qdebug repair` did.

    Attributes:
        calibration_samples: that remedies were fitted to.
        choosing_samples: selection samples, which decided what was kept.
        choosing_reference_metric: the end-to-end metric of FP32 on these; null without one.
        metric: the end-to-end metric's name; null without one.
        target: the condition; null without one. `target_text` is the same for people.
        baseline: the quantized network before the repair, on the selection samples.
        started: the network that the remedies start from, on the same samples, where that is not
            the one before: a quantized model is quantized anew, with symmetric codes; else null.
        repaired: with the remedies that were kept, on the same samples.
        holds: the target holds with that, on the same samples; null without a target.
        reverted: what was kept turned out no better on the held-out samples than the network before
            the repair, or needs dearer pins, and was dropped: the result is the network before.
        steps: all that was tried, in order.
        skipped: remedies that were not tried, since they do not apply.
        untried: remedies that were not tried to their end, since the target was reached before, or
            the time was over.
        proof: on held-out samples.
        pinning: what had to be pinned besides; null where nothing was searched.
        dropped_pinning: what the repaired network would have needed, where the remedies were
            dropped because pins alone are cheaper; null otherwise.
        explanation: why the target was not reached, or why the repair stopped early.
        plan: of the repaired network, with what was pinned.
        network: the same, with its weights.
        given: the quantized model that was given, where it is the result.
        question: a digest of what was asked for; "" where it cannot be told from others.
        unfinished: the repair goes on.
        suspect: the note that FP32 itself guesses, which is to be read first; "" where it does not.
        failed: stages that ended in an error after the rest, such as writing a file or the page.
    """

    SCHEMA: ClassVar[str] = "qdebug.repair/1"
    ROWS: ClassVar[str] = "steps"

    model: ModelRef
    precision: str
    calibration_samples: int
    choosing_samples: int
    choosing_reference_metric: float | None = None
    metric: Annotated[str, Json(empty_is_null=True)]
    target: Annotated[str, Json(empty_is_null=True)]
    target_text: MaybeText = ""
    baseline: Figures
    started: Figures | None = None
    repaired: Figures
    holds: bool | None
    reverted: bool = False
    steps: tuple[Step, ...]
    skipped: tuple[SkippedRemedy, ...]
    untried: tuple[str, ...] = ()
    proof: Proof
    pinning: BisectResult | None = None
    dropped_pinning: DroppedPins | None = None
    explanation: str
    plan: Hidden[PrecisionPlan]
    network: Hidden[Quantized]
    given: Hidden[onnx.ModelProto | None] = None
    question: Hidden[str] = ""
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()
    unfinished: Hidden[bool] = False
    suspect: Hidden[str] = ""
    failed: tuple[FailedStage, ...] = ()

    @property
    @in_json
    def passed(self) -> bool | None:
        """The target holds on the selection samples and on the held-out ones, with what was
        pinned; null without a target."""
        if self.pinning is not None:
            return self.pinning.passed
        return None if self.proof.passed is None else bool(self.proof.passed and self.holds)

    @property
    @in_json
    def pinned(self) -> tuple[str, ...]:
        """The layers that were pinned, by name."""
        return self.pinning.pinned if self.pinning is not None else ()

    @property
    @in_json
    def accepted(self) -> tuple[str, ...]:
        """The remedies that were kept, and change layers that are not pinned, each once."""
        kept = (step.remedy for step in self.steps if step.outcome is Outcome.KEPT)
        return tuple(dict.fromkeys(kept))

    @property
    def applied(self) -> tuple[str, ...]:
        """The remedies that are in the network, of use or not, each once."""
        inside = (Outcome.KEPT, Outcome.NO_USE)
        return tuple(dict.fromkeys(s.remedy for s in self.steps if s.outcome in inside))

    @property
    def requantized(self) -> bool:
        """Whether it is another network than the given one though no remedy is in it: a model that
        others quantized is quantized anew before anything is tried."""
        return not self.applied and self.proof.repaired != self.proof.start

    @property
    @in_json
    def best_guess(self) -> tuple[str, ...]:
        """The remedies that look better, but that too few samples judged to tell; the one that
        gains most first."""
        undecided = [s for s in self.steps if s.reason is Reason.UNDECIDED and not s.accepted]
        best = sorted(undecided, key=lambda s: -(s.gain_db or 0.0))
        return tuple(dict.fromkeys(step.remedy for step in best))

    def model_proto(self) -> onnx.ModelProto:
        """The network with Q/DQ; large weights are external data (`qdebug.network.weights`)."""
        if self.given is not None:
            return self.given
        return marked_repaired(self.network.proto(), self.record())

    def record(self) -> Record:
        """What its files say of how good it is. Ranks differ only where the difference matters."""
        proof, pinning = self.proof, self.pinning
        worse = proof.worse(proof.repaired.metric) or 0.0
        sqnr_db = proof.repaired.sqnr_db
        failed = self.passed is False
        pinned_share = pinning.cost.pinned_share if pinning is not None and not failed else 0.0
        rank = (
            float(failed),
            round(pinned_share, 3),
            round(worse, 4),
            -round(sqnr_db) if math.isfinite(sqnr_db) else math.inf,
        )
        return Record(
            self.question,
            rank,
            self.headline(),
            self.unfinished,
            self.model.sha256,
            self.applied,
        )

    def fp32_proto(self) -> onnx.ModelProto:
        """The FP32 network that the plan and the calibration table are for."""
        return self.network.graph.proto

    def model_bytes(self) -> bytes:
        """The network with Q/DQ, as ONNX in one piece.

        Raises:
            ValueError: it is over 2 GB; `save` writes it.
        """
        return serialized(self.model_proto())

    def plan_yaml(self) -> str:
        """The plan as YAML, schema qdebug.plan/1, with what was done as comments."""
        return self.VIEWS.plan_text(self)

    def trt_cache(self) -> str:
        """The ranges as a calibration cache of TensorRT 10."""
        tensors = self.network.bound.needed_ranges()
        return default_cache_text({t: float(scale_of(self.plan.tensors[t].amax)) for t in tensors})

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the network with Q/DQ; over 1.5 GB with external data beside it.

        Raises:
            StoreError: the file exists and `force` is False, or cannot be written.
        """
        check_new(os.fspath(path), option("path"), force=force)
        write_model(self.model_proto(), os.fspath(path), option("path"), force=force)

    def headline(self) -> str:
        """The model, and what the repair gave."""
        proof = self.proof
        before, after = (f.sqnr_db for f in (proof.start, proof.repaired))
        change = (
            f"{before:.1f} dB → exact" if math.isinf(after) else f"{before:.1f} → {after:.1f} dB"
        )
        text = f"{self.model.name}: SQNR {change}"
        if proof.repaired.metric is not None and proof.start.metric is not None:
            text += f", {self.metric} {proof.start.metric:.4g} → {proof.repaired.metric:.4g}"
        return text + (f", {counted(self.pinned, 'layer')} pinned" if self.pinned else "")
