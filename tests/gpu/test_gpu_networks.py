"""Networks that were not used to find out how kernels round: FP16 as it was simulated.

A folder of further networks (NAME.onnx with NAME_holdout.npz, as scripts/bench/digit_zoo.py writes
them) is taken from QDEBUG_GPU_NETWORKS.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from half_networks import NETWORKS

from qdebug.backends.engine import CaptureWay, noise
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.backends.tensorrt.backend import TensorRTBackend
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library
from qdebug.execute.context import Context
from qdebug.execute.engine.attribute import EngineFindings, attribute_engine
from qdebug.execute.engine.build import fitted
from qdebug.execute.engine.observe import EngineJob
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.plan.lower import Lowered, lower, required_opset
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.results.attribution import RELEVANT_DB
from qdebug.types import Fp16Kernels, Precision, ignore_progress

SAMPLES = 8
FOLDER = os.environ.get("QDEBUG_GPU_NETWORKS", "")
GIVEN = sorted(p.stem for p in Path(FOLDER).glob("*.onnx")) if FOLDER else []


@dataclass(frozen=True)
class Run:
    """A network, lowered to FP16, and what its engine did."""

    lowered: Lowered
    found: EngineFindings


def run(library: Library, cuda: Cuda, model: Path, inputs: Path, kernels: Fp16Kernels) -> Run:
    plan = PrecisionPlan(Precision.FP16)
    prepared = prepare_model(read_model(model), required_opset(plan))
    lowered = lower(bind_plan(plan, prepared, find_layers(prepared.graph)))
    graph = prepared.graph
    most = None if inputs.is_dir() else SAMPLES
    samples = open_samples(str(inputs), graph.inputs, limit=most, batch_size=most)
    runtime = TensorRTBackend(EngineFactory(library, BuildSettings(), cuda=cuda), find_device())
    runtime = replace(runtime, ways=(CaptureWay.OUTPUTS,))
    runtime = fitted(runtime, graph, samples, list(samples.batches()))
    simulation = SimulationBackend(fp16_kernels=kernels)
    context = Context(SimulationBackend(), simulation, Parallelism(2, 1), ignore_progress)
    job = EngineJob(runtime, context, whole(samples))
    return Run(lowered, attribute_engine(job, graph, lowered.graph, lowered.tensors))


def summary(one: Run) -> dict[str, Any]:
    """Tensors within 1 dB, and observed."""
    found = one.found
    below = [a for a in found.attributions if not a.total_db >= RELEVANT_DB]
    apart = sorted(found.attributions, key=lambda a: -abs(a.quantization_db - a.total_db))
    return {
        "observed": len(found.attributions),
        "not observed": [str(s) for s in found.skipped],
        "below 60 dB": len(below),
        "within 1 dB": sum(abs(a.quantization_db - a.total_db) <= 1 for a in below),
        "all within 1 dB": sum(
            a.quantization_db == a.total_db or abs(a.quantization_db - a.total_db) <= 1
            for a in found.attributions
        ),
        "furthest": [
            (a.tensor, round(a.quantization_db, 1), round(a.total_db, 1)) for a in apart[:6]
        ],
        "outputs": [(round(a.quantization_db, 1), round(a.total_db, 1)) for a in found.clean],
        "checks": [(c.way, c.observed, c.hides) for c in found.checks],
    }


@pytest.fixture
def network(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """The files of a network and of its inputs."""

    def make(name: str) -> tuple[Path, Path]:
        if name in GIVEN:
            return Path(FOLDER) / f"{name}.onnx", Path(FOLDER) / f"{name}_holdout.npz"
        proto = onnx.shape_inference.infer_shapes(NETWORKS[name]())
        folder = tmp_path / "inputs"
        folder.mkdir()
        onnx.save(proto, tmp_path / "network.onnx")
        specs = Graph(proto).inputs
        for k in range(SAMPLES):
            rng = np.random.default_rng(k)
            feeds = {n: rng.normal(size=a.shape).astype(a.dtype) for n, a in noise(specs).items()}
            np.savez(folder / f"{k}.npz", **feeds)
        return tmp_path / "network.onnx", folder

    return make


@pytest.mark.parametrize("name", [*NETWORKS, *GIVEN])
def test_the_simulation_predicts_the_engine(
    library: Library,
    cuda: Cuda,
    figures: dict[str, Any],
    network: Callable[[str], tuple[Path, Path]],
    name: str,
) -> None:
    model, inputs = network(name)
    found = summary(run(library, cuda, model, inputs, Fp16Kernels.TENSORRT))
    exact = summary(run(library, cuda, model, inputs, Fp16Kernels.EXACT))
    figures[f"fp16 {name}"] = {"simulated": found, "exact sums": exact}
    print(f"{name}: {found}; exact sums: {exact['all within 1 dB']} of {exact['observed']}")
    assert found["all within 1 dB"] >= 0.85 * found["observed"]
