"""What a plan gives with some layers in other precisions: variants for the Runner."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import onnx

from qdebug.backends.engine import EngineRuntime
from qdebug.errors import MetricError, QdebugError
from qdebug.execute.context import Context, sized
from qdebug.execute.engine.build import fitted
from qdebug.execute.engine.request import planned_graph
from qdebug.execute.measure_options import measure_options, output_options
from qdebug.execute.variants import PlannedVariants
from qdebug.metrics.accumulate import CANDIDATE
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.prepare import Model
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import BoundPlan
from qdebug.run.outputs import Evaluated, MetricEvaluator, OutputEvaluator, joined
from qdebug.run.runner import Runner
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Precision


class Candidates:
    """Evaluates candidates of a plan on some samples. FP32 runs once for all of them.

    Attributes:
        subset: the samples, in the batches that are used.
    """

    def __init__(
        self,
        context: Context,
        model: Model,
        bound: BoundPlan,
        subset: SampleSubset,
        metric: TaskMetric | None,
        *,
        capture: Sequence[str] = (),
        engine: EngineRuntime | None = None,
    ) -> None:
        """Runs nothing yet but to choose the batches.

        Args:
            bound: the plan, with a range for every tensor that its layers need one for.
            capture: tensors of FP32 to measure besides the outputs.
            engine: runs the candidates in place of the simulation.

        Raises:
            QdebugError: samples cannot be read, or the model does not run.
        """
        graph = model.graph
        self.subset = sized(context, graph, subset, capture)
        runner = Runner(
            self.subset,
            workers=context.parallel.workers,
            progress=context.progress,
            executor=context.executor,
            memo=context.memo,
        )
        self._capture = {tensor: tensor for tensor in capture}
        options = output_options(graph)
        if capture:
            options |= measure_options(planned_pair(model, bound), capture)
        reference = as_it_is(graph.proto, context.backend, self._capture)
        self._evaluator = OutputEvaluator(runner, graph, reference, metric, options=options)
        self._variants = PlannedVariants(bound, context.simulation)
        self._bound, self._engine = bound, engine
        if engine is not None:
            self._engine = fitted(engine, graph, self.subset.samples, self.subset.batches)

    @property
    def task(self) -> MetricEvaluator | None:
        """The metric with FP32's outputs, which is run for it; None without one."""
        return self._evaluator.task

    def __call__(self, overrides: Mapping[str, Precision]) -> CandidateResult:
        """What a candidate gives with these layers in these precisions.

        Raises:
            QdebugError: samples cannot be read, or the metric raised on outputs that are finite.
        """
        started = time.perf_counter()
        variant = self._variant(overrides)
        found = self._evaluator.evaluated({CANDIDATE: variant}, attempt=True)[CANDIDATE]
        if isinstance(found, QdebugError):
            return _failed(found.message, started)
        return self._judged(found, started)

    def _judged(self, found: Evaluated, started: float) -> CandidateResult:
        outputs, task = found.errors.metrics(), self.task
        try:
            value, group = task.decided(joined(found.outputs)) if task else (None, "")
        except MetricError as error:
            if all(m.is_finite for m in outputs.values()):
                raise
            # Not the metric's fault: this candidate overflows, so it cannot be the answer.
            return _failed(f"its outputs hold NaN or Inf, and {error.message}", started)
        seconds = time.perf_counter() - started
        tensors = {**outputs, **found.inner.metrics()} if self._capture else {}
        return CandidateResult(outputs, value, found.errors.noise(), seconds, tensors, group)

    def _variant(self, overrides: Mapping[str, Precision]) -> Variant:
        if self._engine is None:
            return self._variants.with_layers(overrides, self._capture)
        plan = replace(self._bound.plan, layers={**self._bound.plan.layers, **overrides})
        precisions = {**self._bound.precisions, **overrides}
        bound = replace(self._bound, plan=plan, precisions=precisions)
        make = partial(_for_engine, self._engine.typing, bound)
        return Variant(make, self._engine, capture=self._capture)


def _for_engine(typing: str, bound: BoundPlan) -> onnx.ModelProto:
    return planned_graph(typing, bound).proto


def _failed(why: str, started: float) -> CandidateResult:
    return CandidateResult({}, None, math.nan, time.perf_counter() - started, failure=why)
