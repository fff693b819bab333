"""Candidates against the one way that is known to be right: lower the whole plan, run it on ORT."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.errors import MetricError, PlanError
from qdebug.measure.metrics import metrics_of
from qdebug.measure.sums import measure
from qdebug.measure.task import TaskMetric
from qdebug.model.layers import find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import Model, prepare_model
from qdebug.model.samples import open_samples
from qdebug.pipeline.candidates import CandidateRunner
from qdebug.pipeline.context import Context
from qdebug.pipeline.portion import Portion, split, whole
from qdebug.pipeline.ranges import gather_ranges
from qdebug.pipeline.sizing import Parallelism
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.run.ort import OrtBackend
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
    portion: Portion

    def runner(self, workers: int = 2, **options: Any) -> CandidateRunner:
        context = Context(OrtBackend(1), Parallelism(workers, 1), ignore_progress)
        return CandidateRunner(context, self.model, self.bound, self.portion, **options)

    def literal(self, pins: Mapping[str, Precision]) -> dict[str, Any]:
        """The outputs by the long way, batch by batch as the runner makes them."""
        plan = replace(self.bound.plan, layers={**self.bound.plan.layers, **pins})
        graph = lower(bind_plan(plan, self.model, self.bound.layers)).graph
        session = OrtBackend(1).open(graph.proto, [])
        with self.runner() as runner:
            samples = runner.portion.samples
        parts = [session.run(samples.feeds(b.start, b.count)) for b in samples.batches()]
        return {t: np.concatenate([part[t] for part in parts]) for t in graph.outputs}


def case(name: str, plan: PrecisionPlan, count: int = 24) -> Case:
    model = prepare_model(read_model(DATA / f"{name}.onnx"), required_opset(plan))
    samples = open_samples(str(DATA / "digits_holdout.npz"), model.graph.inputs, limit=count)
    context = Context(OrtBackend(1), Parallelism(2, 1), ignore_progress)
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


@pytest.mark.parametrize("base", BASES)
def test_literal_candidates_equal_the_lowered_plan_bit_for_bit(net: str, base: str) -> None:
    one = case(net, BASES[base])
    candidates = raises_of(one.bound, 3, seed=5)
    recorder = Recorder()
    with one.runner(metric=recorder.metric, literal=True) as runner:
        assert runner.literal
        recorder.seen.clear()
        results = runner.evaluate_many(candidates)
    reference = OrtBackend(1).open(one.model.graph.proto, []).run(one.portion.samples.feeds(0, 24))
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
    found = []
    for workers in (1, 2, 8):  # 8: more than there are candidates
        with cnn.runner(workers) as runner:
            results = runner.evaluate_many(candidates)
            found.append([replace(r, seconds=0.0) for r in results])
    assert found[0] == found[1] == found[2]
    assert found[0][1].noise == 0.0 or candidates[1]  # everything raised


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

    one = replace(cnn, portion=held_out)
    with one.runner(metric=TaskMetric("m", True, keep)) as runner:
        assert runner.reference_task == 0.5
        (result,) = runner.evaluate_many([{}])
    assert result.task == 0.5
    expected = samples.extras["labels"][held_out.indices].tolist()
    assert seen == [(5, expected, 5)] * 2


def test_unknown_layers_and_failing_metrics(cnn: Case) -> None:
    first = next(x.name for x in cnn.bound.layers)
    with cnn.runner() as runner, pytest.raises(PlanError, match="no layer 'nope'") as caught:
        runner.evaluate_many([{}, {"nope": FP32}])
    assert caught.value.hint
    with pytest.raises(MetricError, match="raised ZeroDivisionError"):
        cnn.runner(metric=TaskMetric("m", False, lambda *_: 1 / 0))
    with cnn.runner() as runner:
        assert runner.evaluate_many([]) == []
        assert not runner.evaluate_many([{first: FP32}])[0].failure
