"""Try several candidates of one model on the same samples, by their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qdebug.analyse.gate import chance_of
from qdebug.analyse.metric_direction import direction_of
from qdebug.analyse.metric_samples import score_interval
from qdebug.commands.calibrate.quantizable import Quantizable, Ranges
from qdebug.errors import MetricError
from qdebug.execute.context import Context, runner_of
from qdebug.execute.variants import PlannedVariants
from qdebug.metrics.chance import no_better_than_chance
from qdebug.metrics.effect import noise_by_sample
from qdebug.metrics.tasks.base import Outputs, TaskMetric
from qdebug.metrics.tensor import noise_db
from qdebug.network.samples.groups import Grouping
from qdebug.network.samples.subset import SampleSubset
from qdebug.results.calibrate import GroupFigures, ReferenceMetric, Trial
from qdebug.run.outputs import Evaluated, MetricEvaluator, OutputEvaluator, joined
from qdebug.run.variant import as_it_is
from qdebug.types import Array


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
