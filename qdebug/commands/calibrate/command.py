"""`qdebug calibrate`, whole: one pass, every method, evaluated on held-out samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from qdebug.analyse.gate import check_metric, on_model, read_metric
from qdebug.analyse.objects import check_objects
from qdebug.calibrators.coverage import excesses, growth, share_above, stretches
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import METHODS, Calibrator, parse_method
from qdebug.calibrators.user import load_calibrator
from qdebug.commands.calibrate.trial import read_quantizable, tried
from qdebug.commands.check.trials import suspicions
from qdebug.config.calibrate import CalibrateSettings
from qdebug.errors import UsageError, given_by
from qdebug.execute.cluster.machines import open_executor
from qdebug.execute.context import Context, context_of, session_settings
from qdebug.execute.gather import Gathered, calibrated, gather_ranges
from qdebug.execute.model_pair import range_notes, ranges_for
from qdebug.formats.registry import FORMAT_OF, FP32, INT8
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.network.sampleaxis import sample_inputs
from qdebug.network.samples import Batch
from qdebug.network.samples.groups import Grouping, grouping_of
from qdebug.network.samples.subset import SampleSubset, open_subsets
from qdebug.plan.plan import TensorRange
from qdebug.plan.rangesfile import Ranges, read_ranges
from qdebug.result import ModelRef
from qdebug.results.calibrate import (
    FACTOR,
    CacheDifference,
    CalibratedTensor,
    CalibrateResult,
    Coverage,
    GroupShare,
    MethodResult,
    RangeDifference,
    ReferenceMetric,
)
from qdebug.types import Precision, ProgressCallback, ignore_progress
from qdebug.wording import option, printable

BALANCED = "balanced"
"""What follows the name of a method whose ranges come from balanced samples."""


def shares(
    calibration: SampleSubset,
    held_out: SampleSubset,
    of_calibration: Grouping | None,
    of_held_out: Grouping | None,
) -> tuple[GroupShare, ...]:
    """How many samples of each group calibrate, and how many are held out; none without groups."""
    if of_calibration is None or of_held_out is None:
        return ()
    mine = replace(of_calibration, numbers=of_calibration.numbers[calibration.indices]).counts
    others = replace(of_held_out, numbers=of_held_out.numbers[held_out.indices]).counts
    return tuple(GroupShare(n, mine.get(n, 0), others.get(n, 0)) for n in {**mine, **others})


def balanced_histograms(
    context: Context,
    graph: Graph,
    calibration: SampleSubset,
    grouping: Grouping,
    *,
    tensors: list[str],
) -> Mapping[str, TensorHistogram]:
    """The histograms of `tensors` in which every group counts as much as the largest: the values of
    a smaller one are counted so many times, in whole numbers.

    Raises:
        UsageError: samples are run in batches, which hold several groups.
        QdebugError: samples cannot be read, or the model does not run.
    """
    samples = calibration.samples
    if samples.batch_is_free:
        samples = samples.with_batch_size(1)
    numbers, chosen = grouping.numbers, set(calibration.indices)
    batches = [b for b in samples.batches() if b.start in chosen]
    by_group: dict[int, list[Batch]] = {}
    for batch in batches:
        of = set(numbers[batch.start : batch.start + batch.count].tolist())
        if len(of) > 1:
            raise UsageError(
                f"{option('balance')}: the model takes batches of {samples.batch_size}, and sample "
                f"{batch.start} is in one with others of another group",
                "Export the model with a dynamic batch axis, or sort the samples by group.",
                code="QD-USAGE-BALANCE",
            )
        by_group.setdefault(of.pop(), []).append(batch)
    most = max(sum(b.count for b in own) for own in by_group.values())
    found: dict[str, list[TensorHistogram]] = {}
    for group in by_group.values():
        own = SampleSubset(samples, tuple(group))
        gathered = gather_ranges(context, graph, own, tensors=tensors)
        times = round(most / own.count)
        for name, histogram in gathered.histograms.items():
            found.setdefault(name, []).append(repeated(histogram, times))
    return {name: reduce(TensorHistogram.merge, each) for name, each in found.items()}


def unchanged_note(groups: Sequence[GroupShare]) -> str:
    """That no method's ranges were changed by letting every group count alike, and why."""
    counts = [group.calibration_samples for group in groups if group.calibration_samples]
    if round(max(counts) / min(counts)) == 1:
        sizes = ", ".join(f"{printable(g.name)} {g.calibration_samples}" for g in groups)
        why = f"the groups that calibrate are of about one size already ({sizes})"
    else:
        why = "the methods take the largest magnitudes, which are those of all samples in any case"
    return f"{option('balance')} changes no range: {why}."


def repeated(histogram: TensorHistogram, times: int) -> TensorHistogram:
    """As if each value had been seen so many times."""
    return replace(
        histogram,
        count=histogram.count * times,
        zeros=histogram.zeros * times,
        nan_count=histogram.nan_count * times,
        inf_count=histogram.inf_count * times,
        total_sq=histogram.total_sq * times,
        samples=histogram.samples * times,
        sample_amax_total=histogram.sample_amax_total * times,
        table=histogram.table * np.int64(times),
    )


_DENORMAL = FP32.smallest_normal * INT8.largest
_MINMAX_KIND = "TensorRT MinMaxCalibration"


def compare_with_cache(
    file: Ranges,
    fresh: Mapping[str, TensorHistogram],
    needed: Sequence[str],
    model: Model,
) -> CacheDifference:
    """Compare the ranges of a file with those that its own method gives now, where that is known,
    else with the largest magnitudes. A calibration cache of another kind than minmax may be of any
    method that clips: its ranges are to lie between those of entropy and of minmax.

    Args:
        fresh: what a fresh pass saw of the `needed` tensors, which INT8 layers read.
    """
    known = _tensors(model)
    different = []
    degenerate = []
    for tensor in needed:
        if tensor not in file.tensors:
            continue
        entry = file.tensors[tensor]
        amax = float(np.max(entry.amax))
        if amax < _DENORMAL and fresh[tensor].amax > 0:
            degenerate.append(tensor)
            continue
        now = {c.name: c.amax(fresh[tensor]) for c in _methods(entry.method)}
        if not min(now.values()) <= amax <= max(now.values()):
            found = [RangeDifference(tensor, amax, now[name], name) for name in now]
            different.append(min(found, key=lambda d: d.factor))
    different = [d for d in different if d.factor > FACTOR]
    different.sort(key=lambda d: d.factor, reverse=True)
    return CacheDifference(
        missing=tuple(t for t in needed if t not in file.tensors),
        unknown=tuple(t for t in file.tensors if t not in known),
        unused=len([t for t in file.tensors if t in known and t not in needed]),
        different=tuple(different),
        degenerate=tuple(degenerate),
        written_by=file.written_by,
    )


def _methods(method: str) -> list[Calibrator]:
    """The calibrators that ranges of `method` are to be compared with."""
    if method.startswith("TensorRT ") and method != _MINMAX_KIND:
        return [parse_method("minmax"), parse_method("entropy")]
    try:
        return [parse_method(method)]
    except UsageError:  # TensorRT's minmax, a user's own, a value set by hand
        return [parse_method("minmax")]


def _tensors(model: Model) -> set[str]:
    """The names of all tensors of a model, also of those that are folded away: TensorRT writes a
    range for each that it has."""
    nodes = model.file.proto.graph.node
    return {*model.graph.tensors, *(t for n in nodes for t in (*n.input, *n.output))}


_TAKEN = (*METHODS, "given")
"""Names that a user's function may have, but is not listed under."""
_EXECUTIONS = 10
"""Samples that are split are run in at least this many batches."""


def calibrate(
    settings: CalibrateSettings, progress: ProgressCallback = ignore_progress
) -> CalibrateResult:
    """Calibrate by every method of `settings`, and evaluate them on held-out samples.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    with ExitStack() as stack:
        return _calibrate(stack, settings, progress)


def _calibrate(
    stack: ExitStack, settings: CalibrateSettings, progress: ProgressCallback
) -> CalibrateResult:
    if settings.trt_cache is not None and settings.precision != "int8":
        raise UsageError(
            f"{option('trt_cache')}: TensorRT's calibration cache is for INT8, not "
            f"{settings.precision.upper()}",
            f"Drop it or {option('precision', settings.precision)}.",
            code="QD-USAGE-CACHE-PRECISION",
        )
    if settings.balance and settings.group is None:
        raise UsageError(
            f"{option('balance')} needs groups of samples",
            f"Say what tells them apart: {option('group', 'NAME')}.",
            code="QD-USAGE-REQUIRED",
        )
    calibrators = _calibrators(settings)
    metric = read_metric(settings.metric, settings.decode)
    sessions = session_settings(settings)
    pair = read_quantizable(settings, sessions, progress)
    metric = on_model(metric, pair.model)
    calibration, judging = open_subsets(
        settings.calibrates_on,
        settings.held_out,
        sample_inputs(pair.model.graph),
        setting="holdout",
        share=settings.holdout_share,
        executions=(_EXECUTIONS, 1),
    )
    check_metric(metric, pair.model, judging.samples)
    grouping = grouping_of(calibration.samples), grouping_of(judging.samples)
    context = context_of(settings, progress, open_executor(stack, settings))
    graph = pair.model.graph
    check_objects(context, graph, judging, metric)
    others = settings.calibrates_on if settings.held_out else None
    judged = context, graph, judging.samples, metric, others
    suspicious = suspicions(*judged, says_chance=True)
    needed = pair.needed
    given = _Given.read(settings.from_cache, pair.model) if settings.from_cache else None
    gathered = gather_ranges(context, graph, calibration, tensors=needed)
    seen = gather_ranges(context, graph, judging, tensors=needed)
    ranges = {c.name: _ranges(gathered.histograms, needed, c) for c in calibrators}
    if settings.balance and grouping[0] is not None:
        histograms = balanced_histograms(context, graph, calibration, grouping[0], tensors=needed)
        for calibrator in calibrators:
            found = _ranges(histograms, needed, calibrator)
            if found != ranges[calibrator.name]:  # the largest magnitude is that of all in any case
                ranges[f"{calibrator.name} {BALANCED}"] = found
    in_groups = shares(calibration, judging, grouping[0], grouping[1])
    unbalanced = settings.balance and not any(name.endswith(f" {BALANCED}") for name in ranges)
    difference = None
    if given:
        difference = compare_with_cache(given.file, gathered.histograms, needed, pair.model)
        if not difference.missing:  # it is judged as it is, or not at all
            ranges["given"] = {t: given.tensors[t] for t in needed}
    trials = tried(context, pair, ranges, judging, metric, grouping[1])
    methods = {
        name: MethodResult(
            name, _clipped(tensors, seen.histograms, pair.plan.precision), trials.by_name[name]
        )
        for name, tensors in ranges.items()
    }
    best, reason = _best(methods, trials.metric, judging.count)
    return CalibrateResult(
        model=ModelRef(settings.model, pair.model.file.sha256),
        precision=pair.plan.precision,
        calibration_samples=calibration.count,
        held_out_samples=judging.count,
        methods=methods,
        best=best,
        best_by=reason,
        metric=trials.metric,
        coverage=_coverage(gathered, seen, needed),
        weights=pair.weights,
        cache_difference=difference,
        from_cache=gathered.from_cache,
        source=settings.calib_data,
        control_flow=pair.model.taken,
        notes=(
            *suspicious,
            *pair.model.notes,
            *range_notes(gathered.histograms, needed),
            *([unchanged_note(in_groups)] if unbalanced else []),
        ),
        grouped_by=settings.group or "",
        groups=tuple(
            replace(group, reference=trials.by_group.get(group.name)) for group in in_groups
        ),
        balanced=settings.balance,
    )


@dataclass(frozen=True)
class _Given:
    """The calibration of `from_cache`, and the ranges in it that the model has tensors for."""

    file: Ranges
    tensors: Mapping[str, TensorRange]

    @classmethod
    def read(cls, path: str, model: Model) -> _Given:
        with given_by("from_cache"):
            return cls(read_ranges(path), ranges_for(path, model))


def _calibrators(settings: CalibrateSettings) -> list[Calibrator]:
    form = FORMAT_OF[Precision(settings.precision)]
    found = {c.name: c for c in (parse_method(m, form) for m in settings.method)}
    for spec in settings.calibrator:
        user = load_calibrator(spec)
        if user.name in found or user.name in _TAKEN:
            user = replace(user, name=spec)
        found[user.name] = user
    return list(found.values())


def _ranges(
    histograms: Mapping[str, TensorHistogram], needed: list[str], calibrator: Calibrator
) -> dict[str, TensorRange]:
    amax = calibrated(histograms, needed, calibrator)
    return {tensor: TensorRange(value, calibrator.name) for tensor, value in amax.items()}


def _clipped(
    tensors: Mapping[str, TensorRange],
    held_out: Mapping[str, TensorHistogram],
    precision: Precision,
) -> dict[str, CalibratedTensor]:
    return {
        tensor: CalibratedTensor(
            entry,
            share_above(held_out[tensor], float(np.max(entry.amax)))
            if tensor in held_out
            else None,
            precision,
        )
        for tensor, entry in tensors.items()
    }


def _best(
    methods: Mapping[str, MethodResult], metric: ReferenceMetric | None, samples: int
) -> tuple[str, str]:
    """The method to take, and by what; "" where no output tells them apart: then the first.

    Without a metric, that of the highest SQNR of the outputs. With one, the same among the methods
    within one standard error of the best metric: closer ones cannot be distinguished on so many
    samples. (The error is that of a share, √(p(1 − p)/n); a metric beyond 0 to 1 has none.) By one
    that is chance in FP32 nothing is ranked.
    """
    sign = -1 if metric and metric.higher_is_better is False else 1
    scores = {n: m.trial.metric for n, m in methods.items() if m.trial.metric is not None}
    top = max(scores.values(), key=lambda value: sign * value, default=None)
    close = list(methods.values())
    reason = "output SQNR"
    if top is None and not any(m.trial.outputs for m in close):
        return close[0].name, ""
    if top is not None and metric is not None and metric.is_chance:
        reason = f"{reason}, since FP32 is no better than guessing by the metric"
    elif top is not None:
        error = math.sqrt(top * (1 - top) / samples) if 0 <= top <= 1 else 0.0
        close = [methods[n] for n, value in scores.items() if sign * (top - value) <= error]
        equal = f"output SQNR among the {len(close)} that the metric cannot tell apart"
        reason = equal if len(close) > 1 else "the metric"
    return max(close, key=_sqnr).name, reason


def _sqnr(method: MethodResult) -> float:
    value = method.trial.sqnr_db
    return -math.inf if math.isnan(value) else value


def _coverage(gathered: Gathered, seen: Gathered, needed: list[str]) -> Coverage:
    amax = {t: gathered.sample_amax[t] for t in needed if t in gathered.sample_amax}
    whole_amax = {t: gathered.histograms[t].amax for t in amax}
    return Coverage(
        growth(amax),
        tuple(stretches(amax, gathered.samples)),
        tuple(excesses(whole_amax, seen.sample_amax)),
    )
