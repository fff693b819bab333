"""Engines on a real GPU. Everything here is skipped, with the reason, where there is none.

Figures that were measured go to the file that QDEBUG_GPU_FIGURES names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qdebug.backends.engine import CaptureWay
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.cuda import Cuda, open_cuda
from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library, LibraryKind, load_library
from qdebug.errors import QdebugError
from qdebug.execute.context import Context
from qdebug.execute.engine.attribute import EngineFindings, attribute_engine
from qdebug.execute.engine.build import fitted
from qdebug.execute.engine.observe import EngineJob
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer, find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import Model, prepare_model
from qdebug.network.samples import Samples, open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.lower import Lowered, lower, required_opset
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Fp16Kernels, Precision, ignore_progress

os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # as in the process of its own: see process.py
DATA = Path(__file__).parents[2] / "calib_data"
SIMULATION = SimulationBackend(fp16_kernels=Fp16Kernels.TENSORRT)
PLANS = {
    "fp32": PrecisionPlan(Precision.FP32),
    "fp16": PrecisionPlan(Precision.FP16),
    "int8": PrecisionPlan(Precision.INT8),
    "mixed": PrecisionPlan(Precision.INT8, fallback_precision=Precision.FP16),
}


@dataclass(frozen=True)
class Net:
    """A network, its data, and how much of them to run."""

    model: Path
    calib: Path
    inputs: Path
    samples: int
    batch: int


ASSETS = Path(__file__).parents[3] / "shared" / "assets"
NETS = {
    net: Net(DATA / f"{net}.onnx", DATA / "digits_calib.npz", DATA / "digits_holdout.npz", 64, 16)
    for net in ("digits_cnn", "digits_encoder")
} | {
    net: Net(folder / "model.onnx", folder / "calib.npz", folder / "inputs.npz", samples, 1)
    for net, folder, samples in (
        ("minilm", ASSETS / "minilm_l6", 8),
        ("face detector", ASSETS / "ultraface_slim", 4),
    )
}


@dataclass(frozen=True)
class Case:
    """A bundled network, lowered, and what it takes to run it."""

    reference: Graph
    lowered: Lowered
    job: EngineJob
    layers: tuple[Layer, ...]


@pytest.fixture(scope="session")
def library() -> Library:
    """TensorRT for RTX."""
    try:
        return load_library(LibraryKind.RTX)
    except QdebugError as error:
        pytest.skip(f"needs TensorRT for RTX: {error.message}")


@pytest.fixture(scope="session")
def cuda(library: Library) -> Cuda:
    """The GPU."""
    try:
        return open_cuda()
    except QdebugError as error:
        pytest.skip(f"needs a GPU: {error.message}")


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """Where measured figures are put."""
    found: dict[str, Any] = {}
    yield found
    if path := os.environ.get("QDEBUG_GPU_FIGURES"):
        Path(path).write_text(json.dumps(found, indent=1, default=str))


@pytest.fixture(scope="session")
def case(library: Library, cuda: Cuda) -> Callable[..., Case]:
    """`case(net, kind)`: one of NETS in "fp32", "fp16", "int8", or "mixed": INT8 with
    FP16 around."""

    @cache
    def make(net: str, kind: str) -> Case:
        facts = NETS[net]
        if not facts.model.exists():
            pytest.skip(f"{net} is not beside the checkout (../shared/assets)")
        model, lowered = _lowered(net, kind)
        samples = open_samples(
            str(facts.inputs), model.graph.inputs, limit=facts.samples, batch_size=facts.batch
        )
        return Case(
            model.graph,
            lowered,
            _job(EngineFactory(library, BuildSettings(), cuda=cuda), model.graph, samples),
            find_layers(model.graph).all,
        )

    return make


@pytest.fixture(scope="session")
def findings(case: Callable[..., Case]) -> Callable[..., EngineFindings]:
    """`findings(net, kind, way)`: FP32, simulation and engine side by side, observed in one way."""

    @cache
    def run(net: str, kind: str, way: CaptureWay) -> EngineFindings:
        one = case(net, kind)
        runtime = replace(one.job.runtime, ways=(way,))
        job = replace(one.job, runtime=runtime)
        return attribute_engine(job, one.reference, one.lowered.graph, one.lowered.tensors)

    return run


def _job(maker: EngineFactory, graph: Graph, samples: Samples) -> EngineJob:
    batches = list(samples.batches())
    runtime = fitted(TensorRTBackend(maker, find_device()), graph, samples, batches)
    context = Context(SimulationBackend(), SIMULATION, Parallelism(2, 1), ignore_progress)
    return EngineJob(runtime, context, whole(samples))


@cache
def _lowered(net: str, kind: str) -> tuple[Model, Lowered]:
    plan, facts = PLANS[kind], NETS[net]
    model = prepare_model(read_model(facts.model), required_opset(plan))
    layers = find_layers(model.graph)
    missing = bind_plan(plan, model, layers).missing_ranges()
    if missing:
        ranges = {t: TensorRange(amax) for t, amax in _largest(model, missing, facts).items()}
        plan = plan.with_ranges(ranges, "min-max")
    return model, lower(bind_plan(plan, model, layers))


def _largest(model: Model, tensors: list[str], facts: Net) -> dict[str, float]:
    """The largest magnitude of each tensor on the calibration data."""
    samples = open_samples(
        str(facts.calib), model.graph.inputs, limit=4 * facts.batch, batch_size=facts.batch
    )
    session = SimulationBackend().open(
        model.graph.proto, [t for t in tensors if t in model.graph.producers]
    )
    amax = dict.fromkeys(tensors, 0.0)
    for batch in samples.batches():
        feeds = samples.feeds(batch.start, batch.count)
        found = {**feeds, **session.run(feeds)}
        amax = {t: max(a, float(np.abs(found[t]).max())) for t, a in amax.items()}
    return amax
