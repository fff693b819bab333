"""A quantized model with any number of ranges, and what each gives at its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qdebug.analyse.gate import chance_of
from qdebug.analyse.metric_direction import direction_of
from qdebug.analyse.metric_samples import score_interval
from qdebug.backends.options import SessionSettings
from qdebug.calibrators.weights import mse_weight_amax, weight_amax
from qdebug.config.calibrate import CalibrateSettings
from qdebug.errors import MetricError, UsageError
from qdebug.execute.context import Context, runner_of
from qdebug.execute.control_flow import open_model
from qdebug.execute.model_pair import check_in_fp32, check_not_quantized
from qdebug.execute.variants import PlannedVariants
from qdebug.formats.registry import WEIGHT_FORMAT_OF
from qdebug.metrics.chance import no_better_than_chance
from qdebug.metrics.effect import noise_by_sample
from qdebug.metrics.tasks.base import Outputs, TaskMetric
from qdebug.metrics.tensor import noise_db
from qdebug.network.layers import Layers, find_layers
from qdebug.network.prepare import Model
from qdebug.network.samples.groups import Grouping
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.samplespec import given_specs
from qdebug.plan.lower import required_opset
from qdebug.plan.plan import BoundPlan, Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.results.calibrate import GroupFigures, ReferenceMetric, Trial
from qdebug.run.outputs import Evaluated, MetricEvaluator, OutputEvaluator, joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array, Precision, ProgressCallback, ignore_progress

Ranges = Mapping[str, TensorRange]


@dataclass(frozen=True)
class Quantizable:
    """A model all of whose layers that can be quantized are.

    Attributes:
        needed: the activations that they read.
        weights: ranges of weights, where they are not the largest magnitude of each channel.
    """

    model: Model
    layers: Layers
    plan: PrecisionPlan
    needed: list[str]
    weights: Ranges

    def bound(self, ranges: Ranges) -> BoundPlan:
        """The quantized model with these ranges."""
        plan = replace(self.plan, tensors={**ranges, **self.weights})
        return bind_plan(plan, self.model, self.layers)


def read_quantizable(
    settings: CalibrateSettings,
    sessions: SessionSettings,
    progress: ProgressCallback = ignore_progress,
) -> Quantizable:
    """The model of `settings`.

    Raises:
        UsageError: it is quantized already, or has nothing to quantize.
        QdebugError: it cannot be read.
    """
    plan = PrecisionPlan(
        Precision(settings.precision),
        Precision(settings.fallback_precision),
        weights=Granularity(settings.weights),
    )
    sources = given_specs(settings.calibrates_on, settings.held_out)
    model = open_model(settings.model, required_opset(plan), sources, sessions, progress)
    check_not_quantized(model, "its ranges are in it")
    check_in_fp32(model)
    layers = find_layers(model.graph)
    bound = bind_plan(plan, model, layers)
    needed = bound.needed_ranges()
    if not needed:
        raise UsageError(
            f"{settings.model} has no layer that can run in {plan.precision.upper()}",
            f"Only Conv, ConvTranspose, Gemm and MatMul run in {plan.precision.upper()}."
            + "".join(f" {note}" for note in model.notes),
            code="QD-USAGE-NOTHING-TO-QUANTIZE",
        )
    weights = _weight_ranges(bound, mse=settings.weight_method == "mse")
    return Quantizable(model, layers, plan, needed, weights)


def _weight_ranges(bound: BoundPlan, *, mse: bool) -> dict[str, TensorRange]:
    """Of the weights of quantized layers, where they are not what a plan gives them by default: of
    least squared error, or one for the whole weight. A weight that two layers cut along different
    axes has none."""
    if not mse and bound.plan.weights is Granularity.PER_CHANNEL:
        return {}
    form = WEIGHT_FORMAT_OF[bound.plan.precision]
    method, amax_of = "max", weight_amax
    if mse:
        method, amax_of = "mse", partial(mse_weight_amax, form=form)
    graph = bound.layers.graph
    axes: dict[str, set[int | None]] = {}
    for layer in bound.quantized_layers():
        if layer.weight is not None:
            axis = weight_axis(graph.by_name[layer.name], graph, layer.weight)
            per_channel = bound.plan.weights is Granularity.PER_CHANNEL
            axes.setdefault(layer.weight, set()).add(axis if per_channel else None)
    ranges = {}
    for weight, (axis, *others) in axes.items():
        values = graph.constant(weight)
        if not others and values is not None and values.dtype == np.float32:
            amax = amax_of(values, axis).tolist()
            ranges[weight] = TensorRange(tuple(amax) if isinstance(amax, list) else amax, method)
    return ranges


@dataclass(frozen=True)
class Trials:
    """All candidates, and the end-to-end metric of the reference; None without one.

    Attributes:
        by_group: the metric of the reference on each group that it can be computed of.
    """

    by_name: Mapping[str, Trial]
    metric: ReferenceMetric | None
    by_group: Mapping[str, float]


def tried(
    context: Context,
    quantizable: Quantizable,
    ranges: Mapping[str, Ranges],
    subset: SampleSubset,
    metric: TaskMetric | None,
    grouping: Grouping | None = None,
) -> Trials:
    """The quantized model with each of some ranges, on held-out samples, and on each group of them.

    Raises:
        QdebugError: samples cannot be read, a model does not run, or the metric raised.
    """
    graph = quantizable.model.graph
    evaluator = OutputEvaluator(
        runner_of(context, subset),
        graph,
        as_it_is(graph.proto, context.backend),
        metric,
        parts=None if grouping is None else {},
    )
    found: dict[str, Evaluated] = evaluator.evaluated(
        {
            name: PlannedVariants(quantizable.bound(own), context.simulation).with_layers({})
            for name, own in ranges.items()
        },
        "evaluate",
    )
    task, groups = evaluator.task, dict[str, Array]()
    if grouping is not None:
        numbers = grouping.numbers[subset.indices]
        groups = {g: np.flatnonzero(numbers == k) for k, g in enumerate(grouping.groups)}
    trials = {name: _trial(found[name], task, groups) for name in ranges}
    if task is None:
        return Trials(trials, None, {})
    scores = {group: _score(task, task.reference, rows) for group, rows in groups.items()}
    by_group = {group: score for group, score in scores.items() if score is not None}
    return Trials(trials, _of_reference(task, subset.count), by_group)


def _trial(found: Evaluated, task: MetricEvaluator | None, groups: Mapping[str, Array]) -> Trial:
    outputs, energies = joined(found.outputs), found.sample_energies
    by_group = {}
    for group, rows in groups.items():
        if energies is not None and len(rows):
            noise = float(noise_by_sample(energies[:, :, rows]).sum())
            score = _score(task, outputs, rows) if task else None
            by_group[group] = GroupFigures(noise_db(noise), score)
    return Trial(found.errors.metrics(), task(outputs) if task else None, by_group)


def _score(task: MetricEvaluator, outputs: Outputs, rows: Array) -> float | None:
    """The metric of some samples; None where it cannot be computed of them, such as a curve of
    samples that are all of one class."""
    if not len(rows):
        return None
    try:
        return float(task.metric.judged(outputs, task.labels, task.reference, [rows]).left_out[0])
    except MetricError:
        return None


def _of_reference(task: MetricEvaluator, samples: int) -> ReferenceMetric:
    metric, higher = task.metric, direction_of(task, samples)
    interval = score_interval(task, task.reference, samples)
    score = task.of_reference()
    is_chance = no_better_than_chance(score, samples, chance_of(task))
    return ReferenceMetric(metric.name, score, higher, metric.is_share, interval, is_chance)
