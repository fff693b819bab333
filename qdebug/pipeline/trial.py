"""Try several candidates of one model on the same samples: outputs only, in lockstep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from qdebug.measure.calibration import Trial
from qdebug.measure.metrics import metrics_of
from qdebug.measure.sums import ErrorSums, measure
from qdebug.measure.task import TaskMetric
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch, Samples
from qdebug.pipeline.context import Context
from qdebug.run.base import Session
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Progress, Tensors


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
    with ExitStack() as stack:
        sessions = {
            name: _opened(stack, context, graph)
            for name, graph in {"": reference, **candidates}.items()
        }

        def one(batch: Batch) -> dict[str, Tensors]:
            feeds = samples.feeds(batch.start, batch.count)
            return {name: session.run(feeds) for name, session in sessions.items()}

        sums: dict[str, dict[str, ErrorSums]] = {name: {} for name in candidates}
        kept: dict[str, dict[str, list[Array]]] = {name: {} for name in sessions}
        done = 0
        results = map_in_order(one, batches, context.parallel.workers)
        for batch, outputs in zip(batches, results, strict=True):
            for name in candidates:
                _add(sums[name], outputs[""], outputs[name], batch)
            if metric is not None:
                for name, tensors in outputs.items():
                    for tensor, array in tensors.items():
                        kept[name].setdefault(tensor, []).append(array)
            done += batch.count
            context.progress(Progress("evaluate", done, total))
    joined = {n: {t: np.concatenate(a) for t, a in tensors.items()} for n, tensors in kept.items()}
    labels = {
        name: np.concatenate([array[b.start : b.start + b.count] for b in batches])
        for name, array in samples.extras.items()
        if array.ndim
    }

    def task(name: str) -> float | None:
        return metric(joined[name], labels, joined[""]) if metric is not None else None

    trials = {
        name: Trial({t: metrics_of(s) for t, s in sums[name].items()}, task(name))
        for name in candidates
    }
    return Trials(trials, task(""))


def _opened(stack: ExitStack, context: Context, graph: Graph) -> Session:
    session = context.backend.open(graph.proto, [])
    stack.callback(session.close)
    return session


def _add(sums: dict[str, ErrorSums], reference: Tensors, candidate: Tensors, batch: Batch) -> None:
    for tensor, array in reference.items():
        if not np.issubdtype(array.dtype, np.floating) or candidate[tensor].shape != array.shape:
            continue
        here = measure(array, candidate[tensor], first_sample=batch.start, samples=batch.count)
        known = sums.get(tensor)
        sums[tensor] = here if known is None else known.merge(here)
