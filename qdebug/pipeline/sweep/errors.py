"""Errors of the outputs of many candidates: the reference runs once, each candidate once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from qdebug import __version__
from qdebug.errors import BackendError, ModelError, UsageError
from qdebug.measure.compare import CANDIDATE, REFERENCE, Comparison
from qdebug.measure.metrics import Metrics
from qdebug.measure.sweep import OutputErrors
from qdebug.measure.task import BUILT_IN, TaskMetric
from qdebug.model.graph import Graph
from qdebug.model.samples import Samples
from qdebug.model.samples.subset import whole
from qdebug.pipeline.context import Context
from qdebug.pipeline.evaluator import KeptReference, OutputKeeper, evaluate, run_of
from qdebug.plan.pair import ModelPair
from qdebug.run.base import Session
from qdebug.store.cache import load_result, save_result
from qdebug.store.manifest import reference_key
from qdebug.types import Feeds

_KIND = "sweep"


class OutputJudge:
    """Measures candidates on the same samples; the outputs of each reference are kept.

    Attributes:
        keeps: whether errors are kept from one run to the next.
    """

    def __init__(
        self, context: Context, samples: Samples, metric: TaskMetric | None, *, cached: bool
    ) -> None:
        """
        Args:
            cached: take errors that an earlier run measured, and keep those measured now; not
                those of a metric of the user's, whose code may change.
        """
        self._context, self._samples, self._metric = context, samples, metric
        self.keeps = cached and (metric is None or metric.name in BUILT_IN)
        self._references: dict[bytes, KeptReference] = {}

    def simulated(self, pair: ModelPair) -> OutputErrors:
        """Errors of the candidate on the backend of the context.

        Raises:
            QdebugError: the reference does not run, samples cannot be read, or the metric raised.
        """
        key = self.key(pair)
        found = load_result(_KIND, key) if self.keeps else None
        errors = found and errors_from_json(found)
        if errors:
            return errors
        self._reference(pair.reference)  # if that fails, it is not the candidate's failure
        with ExitStack() as stack:
            try:
                session = self._context.simulation.open(pair.candidate.proto, [])
                stack.callback(session.close)
                errors = self.of(session, pair)
            except (BackendError, ModelError) as error:
                return OutputErrors({}, None, None, error.message)
        if self.keeps:
            save_result(_KIND, key, asdict(errors))
        return errors

    def of(self, session: Session, pair: ModelPair) -> OutputErrors:
        """Errors of what `session` gives for the outputs of the candidate.

        Raises:
            QdebugError: also when the session does not run, or has other outputs.
        """
        reference = self._reference(pair.reference)
        names = {t: pair.tensors.get(t, t) for t in pair.reference.outputs}
        if not session.dtypes.keys() >= set(names.values()):
            raise UsageError(
                f"the reference has outputs that the model does not have: {', '.join(names)}",
                "Give the FP32 model that the quantized one was made from.",
                code="QD-USAGE-REFERENCE",
            )
        kept = OutputKeeper(CANDIDATE, list(names))
        task = reference.task
        totals = evaluate(
            reference.subset,
            {REFERENCE: reference.run, CANDIDATE: run_of(session, names)},
            {CANDIDATE: Comparison()},
            self._context,
            feeds=reference.feeds,
            sinks=[kept] if task else [],
            stage="evaluate",
        )
        return OutputErrors(
            totals[CANDIDATE].metrics(),
            task(kept.joined()) if task else None,
            task.of_reference() if task else None,
        )

    def _reference(self, graph: Graph) -> KeptReference:
        key = hashlib.sha256(graph.proto.SerializeToString(deterministic=True)).digest()
        if key not in self._references:
            session = self._context.backend.open(graph.proto, [])
            try:
                self._references[key] = KeptReference(
                    self._context, graph, session, whole(self._samples), self._metric
                )
            finally:
                session.close()
        return self._references[key]

    def first_feeds(self) -> Feeds:
        """The inputs of one execution."""
        first = next(self._samples.batches())
        return self._samples.feeds(first.start, first.count)

    def key(self, pair: ModelPair) -> str:
        """A digest of all that decides the errors of a simulation."""
        candidate = pair.candidate.proto.SerializeToString(deterministic=True)
        parts = [
            __version__,
            "errors",
            str(self._context.fp16_kernels),
            reference_key(pair, self._samples),
            hashlib.sha256(candidate).hexdigest(),
            self._metric.name if self._metric else "",
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def errors_from_json(found: Mapping[str, Any]) -> OutputErrors | None:
    """What was kept, None where it is not what this version keeps."""
    try:
        outputs = {name: Metrics(**metrics) for name, metrics in found["outputs"].items()}
        return OutputErrors(outputs, found["metric"], found["reference_metric"])
    except (AttributeError, KeyError, TypeError):
        return None
