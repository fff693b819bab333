"""Candidates against the one way that is known to be right: lower the whole plan, run it on ORT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from qdebug.backends.ort_fast.prefix_cache import PrefixCache
from qdebug.backends.ort_fast.session import CandidateSessions
from qdebug.backends.simulation import SimulationBackend, SimulationSession
from qdebug.backends.sizing import Parallelism
from qdebug.decide.bisect.candidates import CandidateRunner, RunnerOptions, joined_parts
from qdebug.errors import BackendError
from qdebug.execute.context import Context
from qdebug.execute.gather import gather_ranges
from qdebug.metrics.sums import measure
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tensor import metrics_of
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import SampleSubset, split, whole
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision, ignore_progress

DATA = Path(__file__).parents[2] / "calib_data"
INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


@dataclass
class Recorder:
    """A metric that keeps the outputs it is given."""

    seen: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def metric(self) -> TaskMetric:
        return TaskMetric("recorder", False, self._take)

    def _take(self, outputs: Any, labels: Any, reference: Any) -> float:
        self.seen.append(dict(outputs))
        return float(len(self.seen))


@dataclass(frozen=True)
class Case:
    model: Model
    bound: BoundPlan
    subset: SampleSubset

    def runner(
        self, workers: int = 2, metric: TaskMetric | None = None, **options: Any
    ) -> CandidateRunner:
        context = Context(
            SimulationBackend(1), SimulationBackend(1), Parallelism(workers, 1), ignore_progress
        )
        return CandidateRunner(
            context,
            self.model,
            self.bound,
            self.subset,
            metric=metric,
            options=RunnerOptions(**options),
        )

    def literal(self, pins: Mapping[str, Precision]) -> dict[str, Any]:
        """The outputs by the long way, batch by batch as the runner makes them."""
        plan = replace(self.bound.plan, layers={**self.bound.plan.layers, **pins})
        graph = lower(bind_plan(plan, self.model, self.bound.layers)).graph
        session = SimulationBackend(1).open(graph.proto, [])
        with self.runner() as runner:
            samples = runner.subset.samples
        parts = [session.run(samples.feeds(b.start, b.count)) for b in samples.batches()]
        return {t: np.concatenate([part[t] for part in parts]) for t in graph.outputs}


def case(name: str, plan: PrecisionPlan, count: int = 24) -> Case:
    model = prepare_model(read_model(DATA / f"{name}.onnx"), required_opset(plan))
    samples = open_samples(str(DATA / "digits_holdout.npz"), model.graph.inputs, limit=count)
    context = Context(
        SimulationBackend(1), SimulationBackend(1), Parallelism(2, 1), ignore_progress
    )
    gathered = gather_ranges(context, model.graph, whole(samples), cached=False)
    ranges = {t: TensorRange(h.amax) for t, h in gathered.histograms.items()}
    bound = bind_plan(plan.with_ranges(ranges, "test"), model, find_layers(model.graph))
    return Case(model, bound, whole(samples))


BASES = {
    "int8": PrecisionPlan(INT8),
    "int8-rest-fp16": PrecisionPlan(INT8, FP16),
    "fp16": PrecisionPlan(FP16, FP16),
}


@pytest.fixture(scope="module", params=["digits_cnn", "digits_encoder"])
def net(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cnn() -> Case:
    return case("digits_cnn", BASES["int8"])


def raises_of(bound: BoundPlan, count: int, seed: int) -> list[dict[str, Precision]]:
    """Nothing, everything, and random sets of raises in between."""
    rng = np.random.default_rng(seed)
    base = FP32 if bound.plan.precision is FP16 else None
    names = [x.name for x in bound.layers if x.quantizable or base]
    chosen = [
        [],
        names,
        *(rng.permutation(names)[: rng.integers(1, len(names))] for _ in range(count)),
    ]
    return [{str(n): base or (FP16, FP32)[int(rng.integers(2))] for n in some} for some in chosen]


def test_a_metric_is_asked_on_all_samples_only(cnn: Case) -> None:
    """An AUC, say, has no value where a class is missing."""
    asked: list[int] = []

    def metric(outputs: Any, labels: Any, reference: Any) -> float:
        asked.append(len(next(iter(outputs.values()))))
        return 1.0

    with cnn.runner(metric=TaskMetric("all", False, metric)) as runner:
        assert runner.agreement is not None
        runner.evaluate_many([{}])
    assert asked == [24, 24]


@pytest.mark.parametrize("literal", [False, True])
def test_parts_joined_give_what_all_samples_give_bit_for_bit(cnn: Case, literal: bool) -> None:
    subset = whole(cnn.subset.samples.with_batch_size(5))
    metric = load_metric("top1")
    candidates = raises_of(cnn.bound, 2, seed=8)
    capture = [next(iter(cnn.bound.layers)).output] if literal else []
    options = {"literal": literal, "capture": capture, "metric": metric}
    with replace(cnn, subset=subset).runner(**options) as runner:
        expected = runner.evaluate_many(candidates)
        task = runner._reference.task
        parts = [SampleSubset(subset.samples, subset.batches[a:b]) for a, b in ((0, 2), (2, 5))]
        with (
            replace(cnn, subset=parts[0]).runner(literal=literal, capture=capture) as first,
            replace(cnn, subset=parts[1]).runner(literal=literal, capture=capture) as last,
        ):
            for candidate, one in zip(candidates, expected, strict=True):
                runs = [
                    runner.run_part(candidate, literal=literal, keep=True)
                    for runner in (first, last)
                ]
                found = joined_parts(runs, task)
                assert replace(found, seconds=one.seconds) == one
                failed = replace(runs[1], failure="no kernel")
                assert joined_parts([runs[0], failed], task).failure == "no kernel"


@pytest.mark.parametrize("base", BASES)
def test_literal_candidates_equal_the_lowered_plan_bit_for_bit(net: str, base: str) -> None:
    one = case(net, BASES[base])
    candidates = raises_of(one.bound, 3, seed=5)
    recorder = Recorder()
    with one.runner(metric=recorder.metric, literal=True) as runner:
        assert runner.literal
        recorder.seen.clear()
        results = runner.evaluate_many(candidates)
    reference = (
        SimulationBackend(1).open(one.model.graph.proto, []).run(one.subset.samples.feeds(0, 24))
    )
    for pins, found, result in zip(candidates, recorder.seen, results, strict=True):
        expected = one.literal(pins)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
            sums = measure(reference[name], array, samples=24)
            assert result.outputs[name].rmse == pytest.approx(metrics_of(sums).rmse, rel=1e-3)
            assert result.noise == pytest.approx(sums.sq_err / sums.ref_sq, rel=1e-3)


def test_results_do_not_depend_on_the_number_of_workers(cnn: Case) -> None:
    candidates = raises_of(cnn.bound, 3, seed=1)
    for literal in (True, False):
        found = []
        for workers in (1, 2, 8):  # 8: more than there are candidates
            with cnn.runner(workers, literal=literal) as runner:
                results = runner.evaluate_many(candidates)
                found.append([replace(r, seconds=0.0) for r in results])
        assert found[0] == found[1] == found[2]


class _Watched(PrefixCache):
    """Remembers how much it has held at most."""

    most = 0

    def reserve(self, crossing: Any, more: int) -> bool:
        reserved = super().reserve(crossing, more)
        self.most = max(self.most, self.size)
        return reserved


@pytest.mark.parametrize("limit", [1 << 30, 1 << 20])
def test_stored_activations_change_no_bit_of_any_result(
    net: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ran before, in few workers or many; a limit that drops most of them too."""
    failures = []
    plain = CandidateRunner._try

    def watched(self: CandidateRunner, *arguments: Any, **named: Any) -> Any:
        run = plain(self, *arguments, **named)
        failures.append(run.failure)
        return run

    monkeypatch.setattr(CandidateRunner, "_try", watched)
    one = case(net, BASES["int8"])
    candidates = raises_of(one.bound, 6, seed=7)
    for pins in candidates[2:5]:  # as the search goes on: one layer less
        candidates += [{n: p for n, p in pins.items() if n != left} for left in list(pins)[:3]]
    found = []
    for way, workers in (("whole", 1), ("stored", 1), ("stored", 2)):
        with one.runner(workers, literal=False) as runner:
            assert runner._sessions is not None
            store = _Watched(runner._sessions, limit)
            store.measured(running=1.0, keeping={})  # as a large network: keeps everywhere
            runner._cache = store if way == "stored" else None
            results = [r for pins in candidates for r in runner.evaluate_many([pins])]
            found.append([replace(r, seconds=0.0) for r in results])
            if way == "stored":
                assert store.resumed > 0
                assert 0 < store.most <= limit
                assert store.size == sum(known.size for known in store._known.values())
    assert found[0] == found[1] == found[2]
    assert not any(failures)  # none fell back to the plain way


def test_captured_tensors_are_measured(cnn: Case) -> None:
    layer = next(x for x in cnn.bound.layers if x.quantizable)
    with cnn.runner(capture=[layer.output, layer.output]) as runner:
        base, raised = runner.evaluate_many([{}, {layer.name: FP32}])
    assert set(base.tensors) == {layer.output}
    assert base.tensors[layer.output].sqnr_db < 60
    assert base.tensors[layer.output].clipped_fraction is not None
    assert base.tensors[layer.output].worst_channel is not None
    assert math.isinf(raised.tensors[layer.output].sqnr_db)


def test_a_held_out_portion_with_its_own_labels(cnn: Case) -> None:
    samples = open_samples(str(DATA / "digits_holdout.npz"), cnn.model.graph.inputs, limit=20)
    _, held_out = split(samples, 0.25)
    seen: list[Any] = []

    def keep(outputs: Any, labels: Any, reference: Any) -> float:
        seen.append((len(outputs["logits"]), labels["labels"].tolist(), len(reference["logits"])))
        return 0.5

    one = replace(cnn, subset=held_out)
    with one.runner(metric=TaskMetric("m", True, keep), literal=True) as runner:
        assert runner.reference_task == 0.5
        (result,) = runner.evaluate_many([{}])
    assert result.task == 0.5
    expected = samples.extras["labels"][held_out.indices].tolist()
    assert seen == [(5, expected, 5)] * 2


def test_unknown_layers_and_failing_metrics(cnn: Case) -> None:
    first = next(x.name for x in cnn.bound.layers)
    with cnn.runner() as runner, refused("QD-PLAN-UNKNOWN-LAYER", "'nope'") as caught:
        runner.evaluate_many([{}, {"nope": FP32}])
    assert caught.value.hint
    with refused("QD-METRIC-RAISED", "ZeroDivisionError"):
        cnn.runner(metric=TaskMetric("m", False, lambda *_: 1 / 0))
    with cnn.runner() as runner:
        assert runner.evaluate_many([]) == []
        assert not runner.evaluate_many([{first: FP32}])[0].failure


def test_the_kernels_agree_on_bundled_networks(net: str) -> None:
    """And the noise of candidates found with them is that of literal Q/DQ."""
    one = case(net, BASES["int8"], count=100)
    names = [x.name for x in one.bound.layers if x.quantizable]
    candidates = [{}, dict.fromkeys(names[::2], FP32), dict.fromkeys(names[::3], FP16)]
    with one.runner(metric=load_metric("agreement")) as runner:
        assert not runner.literal
        assert "which agree with the simulation (output SQNR" in runner.reason
        agreement = runner.agreement
        assert agreement is not None
        assert agreement.difference_db < 0.5
        assert agreement.sqnr_db > agreement.literal.sqnr_db + 3  # nearer each other than to FP32
        assert agreement.fast.task == pytest.approx(agreement.literal.task, abs=0.05)
        fast = runner.evaluate_many(candidates)
        literally = runner.evaluate_many(candidates, literal=True)
    with one.runner(literal=True) as runner:
        assert runner.agreement is None
        literal = runner.evaluate_many(candidates)
    for a, b in zip(literally, literal, strict=True):
        assert (a.noise, a.outputs) == (b.noise, b.outputs)
    for a, b in zip(fast, literal, strict=True):
        assert 10 * abs(math.log10(a.noise / b.noise)) < 0.5
        assert (a.failure, a.task is None, b.task) == ("", False, None)


def test_kernels_that_disagree_or_fail_are_not_used(
    cnn: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = CandidateSessions.open

    def saturating(self: CandidateSessions, precisions: Any, *, kernels: bool) -> Any:
        session = opened(self, precisions, kernels=kernels)
        run = session.run
        if kernels:
            session.run = lambda feeds: {t: np.minimum(a, 2) for t, a in run(feeds).items()}
        return session

    def failing(self: CandidateSessions, precisions: Any, *, kernels: bool) -> Any:
        if kernels:
            raise BackendError("no such kernel")
        return opened(self, precisions, kernels=kernels)

    def failing_part(*_: Any, **__: Any) -> Any:
        raise BackendError("no such kernel")

    with cnn.runner(literal=True) as runner:
        expected = [replace(r, seconds=0.0) for r in runner.evaluate_many([{}])]
    for broken, words in ((saturating, "differ from it here"), (failing, "fail: no such kernel")):
        monkeypatch.setattr(CandidateSessions, "open", broken)
        with cnn.runner() as runner:
            assert runner.literal
            assert words in runner.reason
            assert [replace(r, seconds=0.0) for r in runner.evaluate_many([{}])] == expected
    monkeypatch.setattr(CandidateSessions, "assemble", failing_part)
    with cnn.runner(literal=False) as runner:  # asked for: one by one, what fails runs literally
        assert [replace(r, seconds=0.0) for r in runner.evaluate_many([{}])] == expected


def test_a_runtime_that_fails_is_a_result(cnn: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    with cnn.runner(literal=True) as runner:
        monkeypatch.setattr(
            SimulationSession,
            "run",
            lambda *_: (_ for _ in ()).throw(BackendError("out of memory")),
        )
        (result,) = runner.evaluate_many([{}])
    assert result.failure == "out of memory"
    assert (result.outputs, result.task) == ({}, None)
    assert math.isnan(result.noise)
    assert math.isnan(result.sqnr_db)


@pytest.mark.parametrize("base", ["fp16", "int8-rest-fp16"])
def test_bases_without_kernels_run_literally_and_say_so(cnn: Case, base: str) -> None:
    with case("digits_cnn", BASES[base]).runner() as runner:
        assert runner.literal
        assert runner.agreement is None
        assert ("no layer runs in INT8" if base == "fp16" else "no INT8 kernels") in runner.reason


def test_another_backend_gets_candidates_lowered(cnn: Case) -> None:
    class Other:
        name = "other"

        def open(self, proto: Any, capture: Any) -> Any:
            return SimulationBackend(1).open(proto, capture)

    context = Context(Other(), Other(), Parallelism(2, 1), ignore_progress)
    with CandidateRunner(context, cnn.model, cnn.bound, cnn.subset) as runner:
        assert runner.literal
        (found,) = runner.evaluate_many([{}])
    with cnn.runner(literal=True) as runner:
        assert runner.evaluate_many([{}])[0].outputs == found.outputs
