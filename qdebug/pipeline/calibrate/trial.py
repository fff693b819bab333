"""Try several candidates of one model on the same samples: outputs only, in lockstep."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.measure.calibration import Trial
from qdebug.measure.compare import REFERENCE, Comparison, ErrorTotals, ExecutedBatch
from qdebug.measure.task import TaskMetric
from qdebug.model.graph import Graph
from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.context import Context
from qdebug.pipeline.evaluator import (
    MetricEvaluator,
    OutputKeeper,
    Run,
    Sink,
    evaluate,
    open_all,
    run_of,
)
from qdebug.run.base import Session
from qdebug.types import Array, Feeds, Tensors


@dataclass(frozen=True)
class Candidate:
    """A model to try, with feeds of its own besides the samples."""

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
    subset: SampleSubset,
    metric: TaskMetric | None,
) -> Trials:
    """Run the reference once and every candidate on each batch; compare the outputs.

    Candidates of one model share its session. Without a metric nothing is kept but sums; with one,
    the outputs of all samples are.

    Raises:
        QdebugError: samples cannot be read, a model does not run, or the metric raised.
    """
    kept = {run: OutputKeeper(run, reference.outputs) for run in (REFERENCE, *candidates)}
    by_batch = _ErrorsByBatch({name: [] for name in candidates})
    with ExitStack() as stack:
        protos = {id(one.proto): one.proto for one in candidates.values()}
        models = [(context.simulation, proto, ()) for proto in protos.values()]
        first, *others = open_all(stack, [(context.backend, reference.proto, ()), *models])
        sessions = dict(zip(protos, others, strict=True))
        runs: dict[str, Run] = {REFERENCE: run_of(first)}
        for name, one in candidates.items():
            runs[name] = _run_of(sessions[id(one.proto)], one.feeds)
        comparisons = {name: Comparison(candidate=name) for name in candidates}
        sinks: list[Sink] = [by_batch, *(kept.values() if metric else ())]
        totals = evaluate(subset, runs, comparisons, context, sinks=sinks, stage="evaluate")
    task = None
    if metric is not None:
        task = MetricEvaluator.of(metric, subset.samples, kept[REFERENCE])
    trials = {
        name: Trial(
            totals[name].metrics(),
            task(kept[name].joined()) if task else None,
            by_batch.of(name),
        )
        for name in candidates
    }
    return Trials(trials, task.of_reference() if task else None)


def _run_of(session: Session, own: Feeds) -> Run:
    def run(executed: ExecutedBatch) -> Tensors:
        return session.run({**executed.feeds, **own})

    return run


@dataclass(frozen=True)
class _ErrorsByBatch:
    """A sink: Σerr² of every output in each batch, by candidate."""

    found: dict[str, list[dict[str, float]]]

    def __call__(self, _: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        for name, batches in self.found.items():
            batches.append({t: sums.sq_err for t, sums in errors[name].tensors.items()})

    def of(self, candidate: str) -> dict[str, Array]:
        batches = self.found[candidate]
        tensors = dict.fromkeys(t for one in batches for t in one)
        return {t: np.array([one.get(t, 0.0) for one in batches]) for t in tensors}
