"""Try several candidates of one model on the same samples: outputs only, in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.measure.calibration import Trial
from qdebug.measure.task import TaskMetric
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch, Samples
from qdebug.pipeline.context import Context
from qdebug.pipeline.scoring import MetricEvaluator, TensorScore, labels_for
from qdebug.run.base import Backend, Session
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Feeds, Progress, Tensors


@dataclass(frozen=True)
class Candidate:
    """A model to try, with feeds of its own beside the samples."""

    proto: onnx.ModelProto
    feeds: Feeds


@dataclass(frozen=True)
class Trials:
    """All candidates, and the end-to-end metric of the reference."""

    by_name: Mapping[str, Trial]
    reference_task: float | None


def try_candidates(
    context: Context,
    reference: Graph,
    candidates: Mapping[str, Candidate],
    samples: Samples,
    batches: Iterable[Batch],
    metric: TaskMetric | None,
) -> Trials:
    """Run the reference once and every candidate on each batch; compare the outputs.

    Candidates of one model share its session. Without a metric nothing is kept but sums; with one,
    the outputs of all samples are.
    """
    batches = list(batches)
    total = sum(batch.count for batch in batches)
    everything = {"": Candidate(reference.proto, {}), **candidates}
    scores = {name: TensorScore(metric is not None) for name in everything}
    errors: dict[str, list[Mapping[str, float]]] = {name: [] for name in everything}
    with ExitStack() as stack:
        sessions: dict[int, Session] = {}
        for one in everything.values():
            if id(one.proto) not in sessions:
                backend = (
                    context.simulation if one.proto is not reference.proto else context.backend
                )
                sessions[id(one.proto)] = _opened(stack, backend, one.proto)

        def run(batch: Batch) -> dict[str, Tensors]:
            feeds = samples.feeds(batch.start, batch.count)
            return {
                name: sessions[id(one.proto)].run({**feeds, **one.feeds})
                for name, one in everything.items()
            }

        done = 0
        results = map_in_order(run, batches, context.parallel.workers)
        for batch, outputs in zip(batches, results, strict=True):
            for name, score in scores.items():
                score.add(outputs[""], outputs[name], batch)
                errors[name].append({t: sums.sq_err for t, sums in score.sums.items()})
            done += batch.count
            context.progress(Progress("evaluate", done, total))
    judge = MetricEvaluator(metric, labels_for(samples, batches), scores[""].joined())
    trials = {
        name: Trial(scores[name].metrics(), judge(scores[name]), _by_batch(errors[name]))
        for name in candidates
    }
    return Trials(trials, judge(scores[""]))


def _opened(stack: ExitStack, backend: Backend, proto: onnx.ModelProto) -> Session:
    session = backend.open(proto, [])
    stack.callback(session.close)
    return session


def _by_batch(totals: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    """What each batch added to totals that grow from batch to batch."""
    tensors = totals[-1] if totals else {}
    return {t: np.diff([one.get(t, 0.0) for one in totals], prepend=0.0) for t in tensors}
