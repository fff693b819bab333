"""Real build logs: networks lowered to a precision and built by TensorRT for RTX, with no GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdebug.model.layers import find_layers
from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.plan.lower import lower, required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.run.tensorrt.inspect.build_log import read_build_log
from qdebug.run.tensorrt.inspect.layers import EngineInfo
from qdebug.types import Precision

NETWORKS = Path(__file__).parents[4] / "calib_data"
PLANS = {
    "fp32": PrecisionPlan(Precision.FP32),
    "fp16": PrecisionPlan(Precision.FP16),
    "int8": PrecisionPlan(Precision.INT8),
    "mixed": PrecisionPlan(Precision.INT8, rest=Precision.FP16),
}


@dataclass(frozen=True)
class Built:
    """A lowered plan, and the log of its build."""

    bound: BoundPlan
    log: str

    @property
    def info(self) -> EngineInfo:
        return read_build_log(self.log, "build.log")


def bound_plan(path: Path, plan: PrecisionPlan) -> BoundPlan:
    """The plan with an amax of 4 for whatever it lacks."""
    model = prepare_model(read_model(path), required_opset(plan))
    layers = find_layers(model.graph)
    missing = bind_plan(plan, model, layers).missing_ranges()
    ranges = {name: TensorRange(4.0) for name in missing}
    return bind_plan(plan.with_ranges(ranges, "a test"), model, layers)


def build_log(proto: onnx.ModelProto) -> str:
    """The verbose log of a build for compute capability 8.9."""
    trt: Any = pytest.importorskip("tensorrt_rtx", reason="needs TensorRT for RTX")
    lines: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            lines.append(f"[{severity.name}] {message}")

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(proto.SerializeToString()), lines[-5:]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.clear_flag(trt.BuilderFlag.TF32)
    profile = builder.create_optimization_profile()
    for i in range(network.num_inputs):
        tensor = network.get_input(i)
        least, most = ([d if d > 0 else n for d in tensor.shape] for n in (1, 4))
        profile.set_shape(tensor.name, least, most, most)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is not None, lines[-5:]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def built() -> Callable[[str, str], Built]:
    """built(network of calib_data, "fp32" | "fp16" | "int8" | "mixed")."""

    @cache
    def build(network: str, precision: str) -> Built:
        bound = bound_plan(NETWORKS / f"{network}.onnx", PLANS[precision])
        return Built(bound, build_log(lower(bound).graph.proto))

    return build


@pytest.fixture(scope="session")
def build_model() -> Callable[[onnx.ModelProto, Path, PrecisionPlan], Built]:
    """Lower and build a test's own model, by way of a file."""

    def build(proto: onnx.ModelProto, folder: Path, plan: PrecisionPlan) -> Built:
        path = folder / "model.onnx"
        onnx.save(proto, path)
        bound = bound_plan(path, plan)
        return Built(bound, build_log(lower(bound).graph.proto))

    return build
