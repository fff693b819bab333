"""Everything that `qdebug repair` has ready before it tries a remedy."""

from __future__ import annotations

import hashlib
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from qdebug.analyse.gate import (
    check_every_group,
    check_metric,
    on_model,
    read_metric,
    refuse_without_arrays,
    worst_group_notes,
)
from qdebug.analyse.objects import check_objects
from qdebug.config.search import RepairSettings
from qdebug.config.specs import PinSearchSpec, TargetSpec
from qdebug.decide.bisect.choices import Ratings, raised_to
from qdebug.decide.bisect.target import (
    AccuracyTarget,
    check_allowed,
    read_target,
    seen_direction,
)
from qdebug.decide.remedies.quantized import Quantized, quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.decide.repair.findings import RatingsOnDemand, ratings_of
from qdebug.decide.repair.judge import Judge
from qdebug.decide.repair.origin import origin_of
from qdebug.decide.repair.study import study_of
from qdebug.decide.repair.verdict import Judgement
from qdebug.errors import UsageError
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import Context, context_of, session_settings
from qdebug.execute.model_pair import load_model, plan_from, plan_ranges
from qdebug.formats.registry import CAST, WEIGHT_ONLY
from qdebug.memo import digest_of
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples.subset import SampleSubset, halves, open_subsets
from qdebug.network.samplespec import given_specs
from qdebug.network.weights import model_digest
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision, ProgressCallback
from qdebug.wording import option

_EXECUTIONS = 24
"""Samples are run in at least this many executions: how much the error varies between them says
what a difference is worth."""
_FOR_REMEDIES = 0.5
"""Of the time that is left when the start was judged, where pins may be searched for after the
remedies: a search that can try a few sets only pins far more than it takes."""
_RUNS_OF_PROOF = 2
"""Of the held-out samples, after the remedies: the network that came last, and cross-validation."""
_FOR_STUDY = 1 / 3
"""Of the time that is left for remedies, for what says which layers matter."""


@dataclass(frozen=True)
class Setup:
    """What a repair starts from.

    Attributes:
        search: how layers to pin are searched for.
        pins: layers may be pinned.
        target: None where only an improvement is asked for.
        metric: that judges; None without one.
        reference: the FP32 network.
        start: the network as it is quantized before the repair.
        given: the quantized model that was given, for the baseline; None where the user gave the
            FP32 model.
        higher_is_better: of the metric.
        judge: of the selection samples; it raises OutOfTimeError after `ends_at`.
        baseline: what the quantized network is worth as it was.
        proving_judge: of the held-out samples; it raises likewise.
        proven_start: what the quantized network is worth on these, as it was.
        judged_start: what `start` is worth: the same, unless a quantized model was given.
        ends_at: when the time is over, on the clock of `time.monotonic`.
        remedies_end_at: when no remedy may be tried any more: what follows takes time, too.
        ratings: what the layers of the start do to the outputs.
        keep_undecided: see steps.Trying.
        fitting, choosing, proving: calibration samples, to which remedies are fitted; selection
            samples, which decide what is kept; and held-out samples.
    """

    context: Context
    search: PinSearchSpec
    pins: bool
    target: AccuracyTarget | None
    metric: TaskMetric | None
    reference: Model
    start: Quantized
    given: Model | None
    fitting: SampleSubset
    choosing: SampleSubset
    proving: SampleSubset
    study: Study
    higher_is_better: bool
    judge: Judge
    baseline: Judgement
    judged_start: Judgement
    proving_judge: Judge
    proven_start: Judgement
    ends_at: float
    remedies_end_at: float
    ratings: RatingsOnDemand
    notes: tuple[str, ...]
    keep_undecided: bool = False


def prepare(
    settings: RepairSettings,
    progress: ProgressCallback,
    stack: ExitStack,
    ends_at: float = math.inf,
) -> Setup:
    """Read everything, calibrate, and judge the start; `stack` releases the workers of a cluster.

    Args:
        ends_at: on the clock of `time.monotonic`.

    Raises:
        UsageError: nothing runs in a lower precision.
        QdebugError: bad input, or a runtime that failed.
        OutOfTimeError: the time is over before the start was judged.
    """
    target = _target(settings.asked)
    metric = read_metric(settings.metric, settings.decode)
    plan = plan_from(settings.quantization)
    _check_repairable(plan)
    sources = given_specs(settings.calibrates_on, settings.held_out)
    sessions = session_settings(settings)
    raised = raised_to(settings.search)
    given = load_model(settings.model, plan, sources, sessions, progress, raised=raised)
    origin = origin_of(settings, given, plan, sources, sessions)
    reference = origin.reference
    metric = on_model(metric, reference, settings.worst_group)
    target = target and replace(target, metric=metric)
    fitting, choosing, proving = _samples(settings, reference, metric)
    context = context_of(settings, progress, open_executor(stack, settings))
    limited = context.until(ends_at)
    for subset in (choosing, proving):
        check_objects(limited, reference.graph, subset, metric)
    more = _direction(limited, reference, choosing, metric, target)
    planned = plan_ranges(
        settings.quantization, limited, origin.plan, reference, choosing, calibrate_on=fitting
    )
    start = quantized(reference, planned.bound).with_corrections(origin.corrections)
    _refuse_nothing_lower(settings, reference, start)
    judge = Judge(limited, reference.graph, choosing, metric, more)
    baseline = judge(given.graph.proto if given.quantized else start)
    judged_start = judge(start) if given.quantized else baseline
    proving_judge = Judge(limited, reference.graph, proving, metric, more)
    proven_start = proving_judge(given.graph.proto if given.quantized else start)
    remedies_end_at = _end_of_remedies(
        ends_at - _RUNS_OF_PROOF * proving_judge.judged_s,
        pins=target is not None and settings.pin,
    )

    def find() -> Ratings:
        now = time.monotonic()
        return ratings_of(
            context,
            start,
            fitting,
            ends_at=now + _FOR_STUDY * (remedies_end_at - now),
        )

    ratings = RatingsOnDemand(find)
    study = study_of(
        context,
        fitting,
        method=settings.method,
        effect=ratings,
    )
    return Setup(
        context=context,
        search=settings.search,
        pins=settings.pin,
        target=target,
        metric=metric,
        reference=reference,
        start=start,
        given=given if given.quantized else None,
        fitting=fitting,
        choosing=choosing,
        proving=proving,
        study=study,
        higher_is_better=more,
        keep_undecided=settings.keep_undecided,
        judge=judge,
        baseline=baseline,
        judged_start=judged_start,
        proving_judge=proving_judge,
        proven_start=proven_start,
        ends_at=ends_at,
        remedies_end_at=remedies_end_at,
        ratings=ratings,
        notes=(
            *reference.notes,
            *origin.notes,
            *planned.notes,
            *_overlap(fitting, choosing, proving),
            *worst_group_notes(proving),
        ),
    )


def _end_of_remedies(ends_at: float, *, pins: bool) -> float:
    """When no remedy may be tried any more; `ends_at` leaves time for the proof. `pins`: a target
    may take some."""
    now = time.monotonic()
    left = ends_at - now
    if left <= 0 or math.isinf(left):
        return ends_at
    return now + left * _FOR_REMEDIES if pins else ends_at


def _check_repairable(plan: PrecisionPlan) -> None:
    """Refuse a plan in which there is nothing to change.

    Raises:
        UsageError: it is in FP32, or has layers whose weights alone are quantized.
    """
    alone = sorted(WEIGHT_ONLY & {plan.precision, *plan.layers.values()})
    if alone:
        raise UsageError(
            f"{option('precision')}: no remedy is for weights in blocks ({alone[0].upper()})",
            f"Smaller blocks round them less ({option('block_size')}); `qdebug bisect` finds the "
            "layers to keep in 8 bits or in floating point.",
            code="QD-USAGE-NOTHING-TO-REPAIR",
        )
    if plan.precision is Precision.FP32:
        raise UsageError(
            f"{option('precision')}: in FP32 there is nothing to repair",
            f"Give {option('precision', 'int8')} or {option('precision', 'fp16')}.",
            code="QD-USAGE-NOTHING-TO-REPAIR",
        )


def _refuse_nothing_lower(settings: RepairSettings, reference: Model, start: Quantized) -> None:
    if start.bound.quantized_layers() or any(start.bound.layers_in(p) for p in CAST):
        return
    what = f"{settings.model}: all layers run in FP32, so there is nothing to repair"
    takes = "Only Conv, ConvTranspose, Gemm and MatMul run in INT8"
    raise UsageError(
        ". ".join((what, *reference.notes)),
        f"{takes}, and not those in the bodies of If, Loop and Scan that stay as they are."
        if reference.notes
        else f"{takes}.",
        code="QD-USAGE-NOTHING-TO-QUANTIZE",
    )


def _samples(
    settings: RepairSettings, reference: Model, metric: TaskMetric | None
) -> tuple[SampleSubset, SampleSubset, SampleSubset]:
    """Calibration, selection and held-out samples.

    Raises:
        UsageError: nothing could judge a repair by them.
        QdebugError: they cannot be read, or the metric lacks labels.
    """
    fitting, held_out = open_subsets(
        settings.calibrates_on,
        settings.held_out,
        sample_inputs(reference.graph),
        setting="inputs",
        share=settings.holdout_share,
        executions=(_EXECUTIONS, 2 * _EXECUTIONS),
        parts=2,
    )
    choosing, proving = halves(held_out, "inputs" if settings.inputs else "calib_data")
    check_metric(metric, reference, held_out.samples)
    check_every_group({"that choose": choosing, "that prove": proving})
    refuse_without_arrays(reference, "a repair")
    if metric is None and not any(map(reference.graph.is_float, reference.graph.outputs)):
        raise UsageError(
            f"{settings.model} has no floating-point output whose error could judge a repair",
            f"Give a metric, such as {option('metric', 'agreement')}.",
            code="QD-USAGE-NOTHING-TO-JUDGE",
        )
    return fitting, choosing, proving


def _direction(
    context: Context,
    reference: Model,
    subset: SampleSubset,
    metric: TaskMetric | None,
    target: AccuracyTarget | None,
) -> bool:
    """Whether a higher metric is better.

    Raises:
        UsageError: nothing tells, or the target says the opposite of what is seen.
    """
    if metric is None:
        return True
    if target is not None and target.condition is not None:
        if target.condition.scope == "metric":
            return target.higher_is_better
        target = None
    if target is not None:
        check_allowed(target, context, reference.graph, subset)
        return target.higher_is_better
    seen = seen_direction(metric, context, reference.graph, subset)
    if seen is None:
        raise UsageError(
            f"{option('metric')}: it cannot be told whether more of {metric.name} is better: with "
            "the outputs of other samples it is the same, or raises",
            f"Say it with {option('max_drop', '0.01')} or {option('max_rise', '0.01')}, or set the "
            "function's attribute higher_is_better.",
            code="QD-USAGE-METRIC-DIRECTION",
        )
    return seen


def _overlap(
    fitting: SampleSubset, choosing: SampleSubset, proving: SampleSubset
) -> tuple[str, ...]:
    """A note where held-out samples took part under another number."""
    seen = _digests(fitting) | _digests(choosing)
    twice = len(_digests(proving) & seen)
    if not twice:
        return ()
    return (
        f"{twice} of the {proving.count} held-out samples are also among those that the repair was "
        "fitted to or selected by, which flatters the result.",
    )


def _digests(subset: SampleSubset) -> frozenset[bytes]:
    """Of the inputs of each sample; of a batch as a whole where it is not one sample per row."""
    found = set()
    for batch in subset.batches:
        feeds = sorted(subset.samples.feeds(batch.start, batch.count).items())
        by_row = all(len(array) == batch.count for _, array in feeds if array.ndim)
        for row in range(batch.count) if by_row else [slice(None)]:
            digest = hashlib.sha256()
            for name, array in feeds:
                values = np.ascontiguousarray(array[row] if array.ndim else array)
                digest.update(repr((name, values.shape)).encode())
                digest.update(values.tobytes())
            found.add(digest.digest())
    return frozenset(found)


def _target(asked: TargetSpec) -> AccuracyTarget | None:
    """What is asked for: a target, or with None as good as can be; then a metric may still judge.

    Raises:
        UsageError: two targets, or one about tensors inside the network.
        MetricError: a metric that is not known, or one that is missing.
    """
    if not asked.is_given:
        return None
    target = read_target(asked)
    if target.condition is not None and target.condition.scope not in ("output", "metric"):
        raise UsageError(
            f"{option('target')}: {target.condition.expression} is about tensors inside of the "
            "network, which a repair changes",
            "Set a target for the outputs, such as output.sqnr_db>=20, or for a metric.",
            code="QD-USAGE-TARGET-SCOPE",
        )
    return target


def question_of(setup: Setup) -> str:
    """A digest of what a repair is to reach, in which model, on which samples; "" where the metric
    cannot be told from others."""
    metric, target = setup.metric.key if setup.metric else "", setup.target
    if metric is None:
        return ""
    return digest_of(
        model_digest((setup.given or setup.reference).graph.proto),
        setup.start.bound.plan.precision,
        setup.choosing.key,
        setup.proving.key,
        metric,
        (target.condition, target.allowed, target.higher_is_better) if target else "",
    )
