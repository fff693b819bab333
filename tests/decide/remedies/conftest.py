"""What it takes to study a network: data, calibration, an execution on all samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.calibrators.registry import parse_method
from qdebug.decide.remedies.quantized import Quantized, quantized
from qdebug.decide.remedies.remedy import Study
from qdebug.execute.context import simulation_context
from qdebug.execute.gather import calibrated, gather_ranges
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.plan import Granularity, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Fp16Kernels, Precision, ignore_progress

DATA = Path(__file__).parents[3] / "calib_data"


@dataclass(frozen=True)
class Case:
    """A network as quantized, and what a remedy may look at."""

    study: Study
    start: Quantized

    def feeds(self) -> list[Mapping[str, Any]]:
        """All samples."""
        samples = self.study.samples.samples
        return [samples.feeds(b.start, b.count) for b in self.study.samples.batches]

    def run(self, proto: onnx.ModelProto, capture: Sequence[str] = ()) -> dict[str, Any]:
        """Outputs over all samples."""
        session = self.study.simulation.open(proto, capture)
        found = [session.run(feeds) for feeds in self.feeds()]
        session.close()
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}

    def only(self, layer: str) -> Quantized:
        """The start with one layer in INT8."""
        bound = self.start.bound
        named = {name: Precision.FP32 for name in bound.plan.layers if name != layer}
        plan = replace(bound.plan, layers={**named, layer: Precision.INT8})
        return Quantized(self.start.model, bind_plan(plan, self.start.model, bound.layers))

    def noise(self, network: Quantized) -> float:
        """Σerr²/Σref² of the first output in INT8, against FP32."""
        reference = next(iter(self.run(self.start.graph.proto).values()))
        found = next(iter(self.run(network.proto()).values()))
        return float(np.square(found - reference).sum() / np.square(reference).sum())


def study_of(model: Model, data: str, weights: str = "per-channel", method: str = "minmax") -> Case:
    """`model` with every layer in INT8, calibrated on the samples in a file."""
    context = simulation_context(Parallelism(1, 1), ignore_progress, DEFAULT_SESSIONS)
    samples = whole(open_samples(data, model.graph.inputs, batch_size=16))
    plan = PrecisionPlan(Precision.INT8, weights=Granularity(weights))
    start = quantized(model, bind_plan(plan, model, find_layers(model.graph)))
    calibrator = parse_method(method)

    def gather(network: Quantized, tensors: Sequence[str]) -> Any:
        graph = network.graph
        wanted = list(tensors)
        return gather_ranges(context, graph, samples, tensors=wanted).histograms

    def fill(network: Quantized) -> Quantized:
        missing = network.bound.missing_ranges()
        if not missing:
            return network
        found = calibrated(gather(network, missing), missing, calibrator)
        return network.with_ranges({t: TensorRange(a, calibrator.name) for t, a in found.items()})

    backend = SimulationBackend(1)
    return Case(Study(backend, backend, samples, gather, fill), fill(start))


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """A generated model to study, on random samples."""

    def make(model: Model, count: int = 32, seed: int = 0, weights: str = "per-channel") -> Case:
        rng = np.random.default_rng(seed)
        arrays = {}
        for spec in model.graph.inputs:
            shape = [count if not isinstance(d, int) else d for d in spec.shape]
            arrays[spec.name] = rng.normal(size=shape).astype(np.float32)
        path = tmp_path_factory.mktemp("samples") / "samples.npz"
        np.savez(path, **arrays)
        return study_of(model, str(path), weights)

    return make


@pytest.fixture
def half(case: Callable[..., Any]) -> Callable[[Model], Any]:
    """A generated model to study, every layer in FP16 as TensorRT computes it."""

    def make(model: Model) -> Any:
        at = case(model)
        bound = bind_plan(PrecisionPlan(Precision.FP16), model, at.start.layers)
        study = replace(at.study, simulation=SimulationBackend(1, Fp16Kernels.TENSORRT))
        return replace(at, study=study, start=quantized(model, bound))

    return make


@pytest.fixture(scope="session")
def bundled() -> Callable[[str], Case]:
    """A bundled network to study."""
    known: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in known:
            model = prepare_model(read_model(str(DATA / f"{name}.onnx")))
            known[name] = study_of(model, str(DATA / "digits_calib.npz"))
        return known[name]

    return make
