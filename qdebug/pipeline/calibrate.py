"""`qdebug calibrate`, whole: one pass, every method, judged on samples that none has seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdebug.calibrate.coverage import excesses, growth, share_above, stretches
from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.methods import Calibrator, parse_method
from qdebug.calibrate.user import load_calibrator
from qdebug.config.calibrate import CalibrateSettings
from qdebug.errors import UsageError
from qdebug.measure.calibration import CalibrateResult, Coverage, MethodResult
from qdebug.measure.task import load_metric
from qdebug.model.graph import Graph
from qdebug.model.layers import Layers, find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import Model, prepare_model
from qdebug.model.samples import open_samples
from qdebug.pipeline.build import ranges_for
from qdebug.pipeline.cachediff import compare_with_cache
from qdebug.pipeline.context import Context
from qdebug.pipeline.mix import choose_mix
from qdebug.pipeline.portion import Portion, split, whole
from qdebug.pipeline.ranges import Gathered, calibrated, gather_ranges
from qdebug.pipeline.sizing import parallelism
from qdebug.pipeline.trial import try_candidates
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.rangesfile import read_ranges
from qdebug.run.ort import OrtBackend
from qdebug.types import Precision, ProgressCallback, ignore_progress


def calibrate(
    settings: CalibrateSettings, progress: ProgressCallback = ignore_progress
) -> CalibrateResult:
    """Calibrate by every method of `settings`, and judge them on held-out samples.

    Raises:
        QdebugError: bad input, or a runtime that failed.
    """
    calibrators = _calibrators(settings)
    metric = load_metric(settings.metric) if settings.metric else None
    subject = _subject(settings)
    calibration, held_out = _portions(settings, subject.model)
    parallel = parallelism()
    context = Context(OrtBackend(parallel.threads), parallel, progress, settings.batch_size)
    graph = subject.model.graph
    needed, cached = subject.needed, settings.cache
    gathered = gather_ranges(context, graph, calibration, cached=cached, tensors=needed)
    seen = gather_ranges(context, graph, held_out, cached=cached, tensors=needed)
    ranges = {c.name: _ranges(gathered, needed, c) for c in calibrators}
    difference = None
    if settings.from_cache:
        given = ranges_for(settings.from_cache, subject.model)
        everything = read_ranges(settings.from_cache).tensors
        difference = compare_with_cache(everything, gathered.histograms, needed)
        if not difference.missing:  # it is judged as it is, or not at all
            ranges["given"] = {t: given[t] for t in needed}
    mix = choose_mix(ranges, seen.histograms) if settings.mix else None
    if mix:
        ranges["mix"] = dict(mix.tensors)
    graphs = {name: subject.lowered(tensors) for name, tensors in ranges.items()}
    trials = try_candidates(context, graph, graphs, held_out.samples, held_out.batches, metric)
    methods = tuple(
        MethodResult(name, tensors, trials.by_name[name], _clipped(tensors, seen.histograms))
        for name, tensors in ranges.items()
    )
    best, reason = _best(methods, held_out.count)
    return CalibrateResult(
        model_path=settings.model,
        model_sha256=subject.model.file.sha256,
        calibration_samples=calibration.count,
        held_out_samples=held_out.count,
        methods=methods,
        best=best,
        best_by=reason,
        metric=metric.name if metric else "",
        reference_task=trials.reference_task,
        coverage=_coverage(gathered, seen, needed),
        mix=mix,
        cache_difference=difference,
        from_cache=gathered.from_cache,
        source=settings.calib_data,
    )


@dataclass(frozen=True)
class _Subject:
    """A model all of whose layers that can run in INT8, `needed` being the tensors they read."""

    model: Model
    layers: Layers
    plan: PrecisionPlan
    needed: list[str]

    def lowered(self, tensors: Mapping[str, TensorRange]) -> Graph:
        """The model in INT8 with these ranges."""
        plan = replace(self.plan, tensors=tensors)
        return lower(bind_plan(plan, self.model, self.layers)).graph


def _subject(settings: CalibrateSettings) -> _Subject:
    plan = PrecisionPlan(
        Precision.INT8, Precision(settings.rest), weights=Granularity(settings.weights)
    )
    model = prepare_model(read_model(settings.model), required_opset(plan))
    if model.quantized:
        raise UsageError(
            f"{settings.model} carries Q/DQ nodes: it is calibrated already",
            "Give the FP32 model.",
        )
    layers = find_layers(model.graph)
    needed = bind_plan(plan, model, layers).needed_ranges()
    if not needed:
        raise UsageError(
            f"{settings.model} has no layer that INT8 takes",
            "INT8 takes Conv, ConvTranspose, Gemm and MatMul.",
        )
    return _Subject(model, layers, plan, needed)


def _calibrators(settings: CalibrateSettings) -> list[Calibrator]:
    found = {c.name: c for c in (parse_method(m) for m in settings.methods)}
    for spec in settings.calibrators:
        user = load_calibrator(spec)
        found[user.name] = user
    return list(found.values())


def _portions(settings: CalibrateSettings, model: Model) -> tuple[Portion, Portion]:
    inputs = model.graph.inputs
    samples = open_samples(
        settings.calib_data, inputs, limit=settings.samples, batch_size=settings.batch_size
    )
    if settings.holdout is None:
        return split(samples, settings.holdout_share)
    held_out = open_samples(settings.holdout, inputs, batch_size=settings.batch_size)
    return whole(samples), whole(held_out)


def _ranges(
    gathered: Gathered, needed: list[str], calibrator: Calibrator
) -> dict[str, TensorRange]:
    amax = calibrated(gathered.histograms, needed, calibrator)
    return {tensor: TensorRange(value, calibrator.name) for tensor, value in amax.items()}


def _clipped(
    tensors: Mapping[str, TensorRange], held_out: Mapping[str, TensorHistogram]
) -> dict[str, float]:
    return {
        tensor: share_above(held_out[tensor], float(np.max(entry.amax)))
        for tensor, entry in tensors.items()
        if tensor in held_out
    }


def _best(methods: Sequence[MethodResult], samples: int) -> tuple[str, str]:
    """The method to take, and by what.

    Without a metric, that of the highest SQNR of the outputs. With one, the same among the methods
    within one standard error of the best metric: closer ones cannot be told apart on so many
    samples. (The error is that of a share, √(p(1 − p)/n); a metric beyond 0 to 1 has none.)
    """

    def sqnr(method: MethodResult) -> float:
        value = method.trial.sqnr_db
        return -math.inf if math.isnan(value) else value

    tasks = [m.trial.task for m in methods if m.trial.task is not None]
    if not tasks:
        return max(methods, key=sqnr).name, "output SQNR"
    top = max(tasks)
    error = math.sqrt(top * (1 - top) / samples) if 0 <= top <= 1 else 0.0
    close = [m for m in methods if m.trial.task is not None and m.trial.task >= top - error]
    reason = (
        "the metric" if len(close) == 1 else f"output SQNR, of {len(close)} equal by the metric"
    )
    return max(close, key=sqnr).name, reason


def _coverage(gathered: Gathered, seen: Gathered, needed: list[str]) -> Coverage:
    amax = {t: gathered.sample_amax[t] for t in needed if t in gathered.sample_amax}
    whole_amax = {t: gathered.histograms[t].amax for t in amax}
    return Coverage(
        growth(amax),
        tuple(stretches(amax, gathered.samples)),
        tuple(excesses(whole_amax, seen.sample_amax)),
    )
