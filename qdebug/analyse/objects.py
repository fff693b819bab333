"""Whether FP32 finds any object, before anything is compared with what it finds."""

from __future__ import annotations

import math
from contextlib import closing

from qdebug.errors import MetricError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import executed_batches, joined_batches, run_of
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.boxes.detections import DECISION, Candidates
from qdebug.metrics.tasks.kinds import reading
from qdebug.metrics.tasks.registry import built_in
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset
from qdebug.wording import counted, option


def check_objects(
    context: Context, graph: Graph, subset: SampleSubset, metric: TaskMetric | None
) -> None:
    """Refuse a metric that takes what FP32 finds as the truth where FP32 finds nothing: nobody
    waits for the candidate to hear that. FP32 runs until the first object is found.

    Raises:
        MetricError: it finds none, or the outputs are not what the metric takes.
        QdebugError: samples cannot be read, or the model does not run.
    """
    if metric is None or metric.takes != "boxes" or not metric.takes_reference_as_truth:
        return
    entry = built_in(metric_of(metric.name))
    assert entry is not None  # those of boxes are built in
    found, most = reading(entry, metric.facts, metric.decode).found, -math.inf
    with closing(context.backend.open(graph.proto, ())) as session:
        runs = {REFERENCE: run_of(session)}
        for executed in executed_batches(subset, runs, 1, ends_at=context.ends_at):
            given = executed.reference
            outputs = {t: given[t] for t in graph.outputs if t in given}
            candidates: Candidates = found(joined_batches({executed.batch: outputs}))
            most = max(most, float(candidates.scores.max(initial=-math.inf)))
            if most >= DECISION:
                return
    highest = f"the highest score is {most:.2g}" if math.isfinite(most) else "it gives no scores"
    raise MetricError(
        f"{option('metric', metric.name)} takes what FP32 finds as the truth, and FP32 finds no "
        f"object with a score of {DECISION:g} or more in {counted(subset.count, 'sample')}: "
        f"{highest}",
        "Give samples with objects of the model's classes, prepared as in training (`qdebug check` "
        f"tries other ways), and see that its outputs are read rightly: {metric.described} "
        f"({option('decode')}).",
        code="QD-METRIC-NO-BOXES",
    )
