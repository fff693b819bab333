"""Try several candidates of one model on the same samples: outputs only, in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from qdebug.measure.calibration import Trial
from qdebug.measure.task import TaskMetric
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch, Samples
from qdebug.pipeline.context import Context
from qdebug.pipeline.scoring import Judge, TensorScore, labels_for
from qdebug.run.base import Session
from qdebug.run.stream import map_in_order
from qdebug.types import Progress, Tensors


@dataclass(frozen=True)
class Trials:
    """All candidates, and the end-to-end metric of the reference."""

    by_name: Mapping[str, Trial]
    reference_task: float | None


def try_candidates(
    context: Context,
    reference: Graph,
    candidates: Mapping[str, Graph],
    samples: Samples,
    batches: Iterable[Batch],
    metric: TaskMetric | None,
) -> Trials:
    """Run the reference once and every candidate on each batch; compare the outputs.

    Without a metric nothing is kept but sums; with one, the outputs of all samples are.
    """
    batches = list(batches)
    total = sum(batch.count for batch in batches)
    scores = {name: TensorScore(metric is not None) for name in ("", *candidates)}
    with ExitStack() as stack:
        sessions = {
            name: _opened(stack, context, graph)
            for name, graph in {"": reference, **candidates}.items()
        }

        def one(batch: Batch) -> dict[str, Tensors]:
            feeds = samples.feeds(batch.start, batch.count)
            return {name: session.run(feeds) for name, session in sessions.items()}

        done = 0
        results = map_in_order(one, batches, context.parallel.workers)
        for batch, outputs in zip(batches, results, strict=True):
            for name, score in scores.items():
                score.add(outputs[""], outputs[name], batch)
            done += batch.count
            context.progress(Progress("evaluate", done, total))
    judge = Judge(metric, labels_for(samples, batches), scores[""].joined())
    trials = {n: Trial(scores[n].metrics(), judge(scores[n])) for n in candidates}
    return Trials(trials, judge(scores[""]))


def _opened(stack: ExitStack, context: Context, graph: Graph) -> Session:
    session = context.backend.open(graph.proto, [])
    stack.callback(session.close)
    return session
