"""OutputEvaluator on the bundled network: what plain ONNX Runtime and counting by hand give."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdebug.backends.simulation import SimulationBackend
from qdebug.errors import QdebugError
from qdebug.execute.variants import PlannedVariants
from qdebug.memo import Memo
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.outputparts import output_parts
from qdebug.network.prepare import prepare_model
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.run.outputs import Evaluated, OutputEvaluator
from qdebug.run.runner import Runner
from qdebug.run.variant import as_it_is
from qdebug.types import Precision

DATA = Path(__file__).parents[2] / "calib_data"
BACKEND = SimulationBackend(1)


@cache
def planned() -> BoundPlan:
    """The bundled network in INT8, the range of each tensor that of all samples."""
    plan = PrecisionPlan(Precision.INT8)
    model = prepare_model(read_model(str(DATA / "digits_cnn.onnx")), required_opset(plan))
    layers = find_layers(model.graph)
    needed = bind_plan(plan, model, layers).needed_ranges()
    session = BACKEND.open(model.graph.proto, needed)
    x = np.load(DATA / "digits_holdout.npz")
    [name] = (spec.name for spec in model.graph.inputs)
    tensors = {name: x[name], **session.run({name: x[name]})}
    ranges = {t: TensorRange(float(np.abs(tensors[t]).max())) for t in needed}
    return bind_plan(plan.with_ranges(ranges, "test"), model, layers)


def evaluator(memo: Memo | None = None, **options: bool) -> OutputEvaluator:
    graph = planned().layers.graph
    spec = SampleSpec(str(DATA / "digits_holdout.npz"), batch_size=100)
    runner = Runner(whole(spec.open(graph.inputs)), workers=2, memo=memo)
    reference = as_it_is(graph.proto, BACKEND)
    parts = output_parts(graph)
    return OutputEvaluator(runner, graph, reference, load_metric("top1"), parts=parts, **options)


def by_hand(bound: BoundPlan) -> tuple[float, float]:
    """Σerr²/Σref² and top-1 of a plan."""
    graph = bound.layers.graph
    data = np.load(DATA / "digits_holdout.npz")
    [name], [output] = [s.name for s in graph.inputs], graph.outputs
    labels = next(data[n] for n in data.files if n != name)
    both: list[onnx.ModelProto] = [graph.proto, lower(bound).graph.proto]
    expected, found = (BACKEND.open(p, ()).run({name: data[name]})[output] for p in both)
    error = ((found.astype(float) - expected) ** 2).sum() / (expected.astype(float) ** 2).sum()
    return float(error), float((found.argmax(1) == labels).mean())


@pytest.mark.parametrize("losses", [False, True])
def test_noise_and_score_are_those_counted_by_hand(losses: bool) -> None:
    bound = planned()
    variants = PlannedVariants(bound, BACKEND)
    names = [layer.name for layer in bound.quantized_layers()]
    candidates = {n: variants.with_layers({n: Precision.FP32}) for n in names[:2]}
    candidates[""] = variants.with_layers({})
    one = evaluator(losses=losses)
    found = one.evaluated(candidates)
    assert one.task is not None
    assert one.task.of_reference() == pytest.approx(0.986)
    for name, result in found.items():
        assert isinstance(result, Evaluated)
        pins = {name: Precision.FP32} if name else {}
        pinned = BoundPlan(bound.plan, bound.layers, {**bound.precisions, **pins})
        noise, score = by_hand(pinned)
        assert result.errors.noise() == pytest.approx(noise, rel=1e-5)
        assert one.score(result) == pytest.approx(score)
        energies = result.sample_energies
        assert energies is not None
        assert energies.shape == (1, 2, 500)
        by_sample = energies[0, 0].sum() / energies[0, 1].sum()
        assert by_sample == pytest.approx(noise, rel=1e-5)


def test_what_was_measured_is_taken_from_disk_whatever_it_is_called(tmp_path: Path) -> None:
    variants = PlannedVariants(planned(), BACKEND)
    before = evaluator(Memo(tmp_path)).evaluated({"a": variants.with_layers({})})["a"]
    again = PlannedVariants(planned(), BACKEND)
    kept = len(list(tmp_path.iterdir()))
    after = evaluator(Memo(tmp_path)).evaluated({"b": again.with_layers({})})["b"]
    assert after.errors == before.errors
    assert len(list(tmp_path.iterdir())) == kept
    layer = planned().quantized_layers()[0].name
    other = again.with_layers({layer: Precision.FP32})
    assert evaluator(Memo(tmp_path)).evaluated({"a": other})["a"].errors != before.errors


def test_captured_tensors_are_measured_by_the_names_of_the_reference() -> None:
    bound = planned()
    layer = bound.quantized_layers()[0]
    tensors = lower(bound).tensors
    captured = {layer.output: tensors[layer.output]}
    graph = bound.layers.graph
    spec = SampleSpec(str(DATA / "digits_holdout.npz"), batch_size=100)
    one = OutputEvaluator(
        Runner(whole(spec.open(graph.inputs))),
        graph,
        as_it_is(graph.proto, BACKEND, {t: t for t in captured}),
    )
    variant = PlannedVariants(bound, BACKEND).with_layers({}, captured)
    found = one.evaluated({"": variant})[""]
    assert list(found.inner.tensors) == [layer.output]
    assert 20 < found.inner.metrics()[layer.output].sqnr_db < 80
    assert one.score(found) is None


def test_a_candidate_that_cannot_be_lowered_is_a_failure() -> None:
    bound = planned()
    variants = PlannedVariants(bound, BACKEND)
    bad = variants.with_layers(dict.fromkeys(bound.precisions, Precision.FP8))
    found = evaluator().evaluated({"bad": bad, "good": variants.with_layers({})}, attempt=True)
    assert isinstance(found["good"], Evaluated)
    assert isinstance(found["bad"], QdebugError)
