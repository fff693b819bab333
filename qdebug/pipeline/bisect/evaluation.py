"""From sets of pins to measurements: the predicate of a search, by a candidate runner."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qdebug import __version__
from qdebug.measure.candidate import CandidateResult
from qdebug.measure.conditions import Condition
from qdebug.model.layers import Layers
from qdebug.pipeline.bisect.candidates import CandidateRunner
from qdebug.pipeline.bisect.target import Target, judge
from qdebug.plan.plan import BoundPlan
from qdebug.plan.planfile import plan_to_yaml
from qdebug.search.problem import Measurement, Pins
from qdebug.store.manifest import package_versions
from qdebug.types import Fp16Kernels


@dataclass(frozen=True)
class Evaluator:
    """Measures sets of pins on the samples of a runner."""

    runner: CandidateRunner
    condition: Condition
    layers: Layers
    at_once: int

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        """One measurement for each set, in order, each as soon as it is there."""
        for start in range(0, len(sets), self.at_once):
            chosen = [dict(pins) for pins in sets[start : start + self.at_once]]
            for result in self.runner.evaluate_many(chosen):
                yield self._measured(result)

    def _measured(self, result: CandidateResult) -> Measurement:
        if result.failure:
            return Measurement(None, False, seconds=result.seconds, failure=result.failure)
        checked = judge(self.condition, result, self.layers)
        slack = None
        if checked.value is not None:
            slack = checked.value - self.condition.bound
            slack = slack if self.condition.operator.startswith(">") else -slack
        return Measurement(checked.value, checked.passed, result.noise, result.seconds, slack)


def evaluator(runner: CandidateRunner, target: Target, layers: Layers, at_once: int) -> Evaluator:
    """The evaluator for `target` on the samples of `runner`, `at_once` sets in parallel."""
    return Evaluator(runner, target.condition_for(runner.reference_task), layers, at_once)


def search_key(
    bound: BoundPlan, one: Evaluator, metric: str, fp16_kernels: Fp16Kernels
) -> dict[str, str]:
    """All that decides what an evaluation gives, by name; two searches with the same key may share
    their evaluations. `metric` is the metric's key."""
    plan = plan_to_yaml(bound.plan)
    model = bound.layers.graph.proto.SerializeToString(deterministic=True)
    versions = {n: v for n, v in package_versions().items() if n.startswith("onnxruntime")}
    return {
        "qdebug": __version__,
        "model": hashlib.sha256(model).hexdigest(),
        "plan": hashlib.sha256(plan.encode()).hexdigest(),
        "samples": one.runner.subset.key,
        "target": one.condition.expression,
        "metric": metric,
        "machine": f"{platform.machine()} {versions}",
        "execution": "literal" if one.runner.literal else "fast",
        "fp16_kernels": str(fp16_kernels),
    }
