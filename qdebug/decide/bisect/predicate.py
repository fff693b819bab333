"""Whether a target holds with some layers in other precisions: variants for the Runner."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import onnx

from qdebug.backends.engine import EngineRuntime
from qdebug.decide.bisect.target import AccuracyTarget
from qdebug.decide.search.problem import Measurement, Pins
from qdebug.errors import MetricError, QdebugError
from qdebug.execute.context import Context, runner_of, sized
from qdebug.execute.engine.build import fitted
from qdebug.execute.engine.request import planned_graph
from qdebug.execute.measure_options import measure_options, output_options
from qdebug.execute.variants import PlannedVariants
from qdebug.metrics.accumulate import CANDIDATE
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import BoundPlan
from qdebug.results.conditions import check_condition
from qdebug.run.outputs import Evaluated, OutputEvaluator, joined
from qdebug.run.variant import Variant, as_it_is
from qdebug.types import Precision


class Predicate:
    """Whether a target holds on some samples with a set of layers raised; each set is run once.

    Attributes:
        subset: the samples, in the batches that are used.
        task: the metric with FP32's outputs; None without one.
        reference_task: FP32's metric on the samples; None without one.
        condition: the target on them; that of a largest drop depends on FP32's metric.
    """

    def __init__(
        self,
        context: Context,
        pair: ModelPair,
        bound: BoundPlan,
        subset: SampleSubset,
        target: AccuracyTarget,
        engine: EngineRuntime | None = None,
    ) -> None:
        """Runs FP32, where there is a metric.

        Args:
            bound: the plan, with a range for every tensor that its layers need one for.
            engine: runs the candidates in place of the simulation.

        Raises:
            QdebugError: samples cannot be read, or the model does not run.
        """
        graph, self._layers, self._bound = pair.reference, pair.layers, bound
        captured = target.captured(pair.layers, graph)
        self.subset = sized(context, graph, subset, captured)
        self._capture = {tensor: tensor for tensor in captured}
        options = output_options(graph)
        if captured:
            options |= measure_options(pair, captured)
        # The parts and the losses are those of `compare`, whose sets are then found in the memo.
        self._evaluator = OutputEvaluator(
            runner_of(context, self.subset),
            graph,
            as_it_is(graph.proto, context.backend, self._capture),
            target.metric,
            options=options,
            parts=pair.parts,
            losses=True,
        )
        self._variants = PlannedVariants(bound, context.simulation)
        self._engine = engine and fitted(engine, graph, self.subset.samples, self.subset.batches)
        self.task = self._evaluator.task
        self.reference_task = self.task.of_reference() if self.task else None
        self.condition = target.condition_for(self.reference_task)
        self._known: dict[Pins, Measurement] = {}

    def __call__(self, pins: Pins) -> Measurement:
        """What a set of pins gives.

        Raises:
            QdebugError: samples cannot be read, or the metric raised on outputs that are finite.
        """
        if pins not in self._known:
            started = time.perf_counter()
            variants = {CANDIDATE: self._variant(dict(pins))}
            evaluated = self._evaluator.evaluated(variants, attempt=True)[CANDIDATE]
            if isinstance(evaluated, QdebugError):
                measured = Measurement(None, False, failure=evaluated.message)
            else:
                measured = self._measured(evaluated)
            self._known[pins] = replace(measured, seconds=time.perf_counter() - started)
        return self._known[pins]

    def _measured(self, evaluated: Evaluated) -> Measurement:
        outputs, condition = evaluated.errors.metrics(), self.condition
        score, group = None, ""
        try:
            if self.task:
                score, group = self.task.decided(joined(evaluated.outputs))
        except MetricError as error:
            if all(m.is_finite for m in outputs.values()):
                raise
            # Not the metric's fault: this candidate overflows, so it cannot be the answer.
            why = f"its outputs hold NaN or Inf, and {error.message}"
            return Measurement(None, False, failure=why)
        values = [score]
        if condition.scope != "metric":
            tensors = {**outputs, **evaluated.inner.metrics()}
            if condition.scope == "layer":
                tensors = {x.output: tensors[x.output] for x in self._layers if x.output in tensors}
            values = [getattr(m, condition.name) for m in tensors.values()]
        checked = check_condition(condition, values)
        sign = 1 if condition.operator.startswith(">") else -1
        return Measurement(
            checked.value,
            checked.passed,
            evaluated.errors.noise(),
            slack=None if checked.value is None else sign * (checked.value - condition.bound),
            worst_group=group,
            metric=score,
        )

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
