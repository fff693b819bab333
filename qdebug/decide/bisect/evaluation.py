"""From sets of pins to measurements: the predicate of a search, and the check of its answer."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from qdebug import __version__
from qdebug.analyse.metric_samples import reference_interval
from qdebug.decide.bisect.candidates import (
    IN_SIMULATION,
    CandidateRunner,
    Engines,
    RunnerOptions,
)
from qdebug.decide.bisect.setup import Setup
from qdebug.decide.bisect.spread import SpreadRunner
from qdebug.decide.bisect.target import check_target
from qdebug.decide.search.outcome import Check
from qdebug.decide.search.problem import Measurement, Pins
from qdebug.metrics.candidate import CandidateResult
from qdebug.metrics.uncertainty import Interval
from qdebug.network.layers import Layers
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.plan.plan import corrections_digest
from qdebug.plan.planfile import plan_to_yaml
from qdebug.results.conditions import Condition
from qdebug.store.manifest import package_versions

SEARCHED = "searched samples, simulation"
ON_ENGINE = "searched samples, on the engine"


@dataclass(frozen=True)
class Evaluator(AbstractContextManager["Evaluator"]):
    """Measures sets of pins on the samples of a runner, `at_once` sets in parallel. A context
    manager.

    Attributes:
        literal: on literal Q/DQ, or `on_engines`.
        interval_s: seconds that the interval of FP32's metric may take.
    """

    runner: CandidateRunner | SpreadRunner
    condition: Condition
    layers: Layers
    at_once: int
    literal: bool
    on_engines: bool
    interval_s: float

    @property
    def how(self) -> str:
        """What runs the candidates, for people."""
        return self.runner.reason if self.literal == self.runner.literal else IN_SIMULATION

    @cached_property
    def reference_interval(self) -> Interval | None:
        """Of FP32's metric, 95 %; None without a metric, and as `reference_interval`."""
        task, count = self.runner.task, self.runner.subset.count
        return reference_interval(task, count, self.interval_s) if task else None

    def literally(self) -> Evaluator:
        """The same on literal Q/DQ; what it is compared with is run once for both."""
        return replace(self, literal=True)

    def __exit__(self, *error: object) -> None:
        self.runner.close()

    def __call__(self, sets: Sequence[Pins]) -> Iterator[Measurement]:
        """One measurement for each set, in order, each as soon as it is there."""
        for start in range(0, len(sets), self.at_once):
            chosen = [dict(pins) for pins in sets[start : start + self.at_once]]
            for result in self.runner.evaluate_many(chosen, literal=self.literal):
                yield self._measured(result)

    def _measured(self, result: CandidateResult) -> Measurement:
        if result.failure:
            return Measurement(None, False, seconds=result.seconds, failure=result.failure)
        checked = check_target(self.condition, result, self.layers)
        slack = None
        if checked.value is not None:
            slack = checked.value - self.condition.bound
            slack = slack if self.condition.operator.startswith(">") else -slack
        found = checked.value, checked.passed, result.noise, result.seconds, slack
        return Measurement(*found, worst_group=result.worst_group, metric=result.task)


def open_evaluator(
    setup: Setup,
    subset: SampleSubset,
    *,
    literal: bool | None,
    engines: Engines | None = None,
    cache_bytes: int = 0,
    ends_at: float = math.inf,
) -> Evaluator:
    """Run the reference on `subset`, and be ready to measure sets on it. See CandidateRunner.

    Raises:
        QdebugError: the samples cannot be read, the runtime or the metric failed.
        OutOfTimeError: it takes until `ends_at`, on the clock of `time.monotonic`.
    """
    target, layers = setup.target, setup.pair.layers
    captured = target.captured(layers, setup.model.graph)
    options = RunnerOptions(captured, literal, engines, cache_bytes)
    given = setup.context, setup.model, setup.planned.bound, subset
    runner: CandidateRunner | SpreadRunner
    if setup.context.executor.workers:
        engine = setup.engine_settings
        runner = SpreadRunner(*given, metric=target.metric, options=options, engine=engine)
        at_once = runner.at_once
    else:
        options = replace(options, sessions=setup.sessions, ends_at=ends_at)
        runner = CandidateRunner(*given, metric=target.metric, options=options)
        at_once = 1 if engines else setup.context.parallel.workers
    condition = target.condition_for(runner.reference_task)
    how = runner.literal, engines is not None
    return Evaluator(runner, condition, layers, at_once, *how, setup.interval_s)


def search_key(setup: Setup, one: Evaluator, metric: str) -> dict[str, str]:
    """All that decides what an evaluation gives, by name; two searches with the same key may share
    their evaluations. `metric` is the metric's key."""
    bound = setup.planned.bound
    plan = replace(bound.plan, calibration="")  # names the data as they were spelled
    operators = setup.context.sessions.operators_digest
    versions = {n: v for n, v in package_versions(operators).items() if n.startswith("onnxruntime")}
    return {
        "qdebug": __version__,
        "model": model_digest(bound.layers.graph.proto),
        "plan": hashlib.sha256(plan_to_yaml(plan).encode()).hexdigest(),
        **({"corrections": corrections_digest(bound)} if bound.corrections else {}),
        "samples": one.runner.subset.key,
        "target": one.condition.expression,
        "metric": metric,
        "machine": f"{platform.machine()} {versions}",
        "execution": "simulation" if one.literal else "fast",
        "fp16_kernels": str(setup.context.fp16_kernels),
    }


class Verifier:
    """Runs sets of pins once more, more exactly than while searching or on the samples that took no
    part in it.

    Attributes:
        on_engines: they run on engines.
    """

    def __init__(self, evaluator: Evaluator, always: Pins, on: str) -> None:
        """`on` says which samples it measures on, for people; `always` are there in every set."""
        self.on_engines = evaluator.on_engines
        self._evaluator, self._always, self._on = evaluator, always, on
        self._known: dict[Pins, Measurement] = {}

    def check(self, pins: Pins) -> Check:
        """What `pins` give, next to nothing pinned."""
        known, runner = self.measure([pins, self._always]), self._evaluator.runner
        return Check(
            self._on,
            runner.subset.count,
            known[pins],
            known[self._always],
            runner.reference_task,
            bound=self._evaluator.condition.bound,
            reference_interval=self._evaluator.reference_interval,
        )

    def measure(self, sets: Sequence[Pins]) -> dict[Pins, Measurement]:
        """What each of the sets gives; each is run once."""
        new = [pins for pins in dict.fromkeys(sets) if pins not in self._known]
        self._known |= dict(zip(new, self._evaluator(new), strict=True))
        return {pins: self._known[pins] for pins in sets}


@contextmanager
def open_verifier(
    setup: Setup, subset: SampleSubset, on: str, engines: Engines | None = None
) -> Iterator[Verifier]:
    """Run the reference on `subset`, and be ready to measure sets on it in the simulation, or on
    `engines`.

    Raises:
        QdebugError: the samples cannot be read, the runtime or the metric failed.
    """
    with open_evaluator(setup, subset, literal=True, engines=engines) as evaluator:
        yield Verifier(evaluator, setup.space.problem.always, on)
