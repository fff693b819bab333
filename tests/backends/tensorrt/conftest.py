"""Real engines of the bundled networks, built once per session by TensorRT for RTX; no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.library import Library, LibraryKind, load_library
from qdebug.errors import QdebugError
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.plan.lower import Lowered, lower, required_opset
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

DATA = Path(__file__).parents[3] / "calib_data"
_ADA = BuildSettings(
    compute_capabilities=((8, 9),),
    profile={"input": ShapeRange((1, 1, 8, 8), (8, 1, 8, 8), (16, 1, 8, 8))},
)
_PLANS = {
    "fp32": PrecisionPlan(Precision.FP32),
    "fp16": PrecisionPlan(Precision.FP16),
    "int8": PrecisionPlan(Precision.INT8),
    "mixed": PrecisionPlan(Precision.INT8, fallback_precision=Precision.FP16),
}


@pytest.fixture(scope="session")
def rtx() -> Library:
    """TensorRT for RTX, or a skip that says why."""
    try:
        return load_library(LibraryKind.RTX)
    except QdebugError as error:
        pytest.skip(f"needs TensorRT for RTX: {error}")


@pytest.fixture(scope="session")
def ada() -> BuildSettings:
    """Settings for the bundled networks on compute capability 8.9."""
    return _ADA


@cache
def _bound(net: str, kind: str) -> BoundPlan:
    plan = _PLANS[kind]
    model = prepare_model(read_model(DATA / f"{net}.onnx"), required_opset(plan))
    layers = find_layers(model.graph)
    missing = bind_plan(plan, model, layers).missing_ranges()
    ranges = {tensor: TensorRange(4.0) for tensor in missing}
    return bind_plan(plan.with_ranges(ranges, "a test"), model, layers)


@cache
def _lowered(net: str, kind: str) -> Lowered:
    return lower(_bound(net, kind))


@pytest.fixture(scope="session")
def bound_plan() -> Callable[[str, str], BoundPlan]:
    """`bound_plan(net, kind)`: "digits_cnn" or "digits_encoder", all in "fp32", "fp16", "int8", or
    "mixed": INT8 with FP16 around."""
    return _bound


@pytest.fixture(scope="session")
def lowered() -> Callable[[str, str], Lowered]:
    """`lowered(net, kind)`: the lowered model of `bound_plan(net, kind)`."""
    return _lowered


@pytest.fixture(scope="session")
def built(rtx: Library) -> Callable[[str, str], BuiltEngine]:
    """`built(net, kind)`: the engine for compute capability 8.9, built on first use."""

    @cache
    def build(net: str, kind: str) -> BuiltEngine:
        return build_engine(rtx, _lowered(net, kind).graph.proto, _ADA)

    return build


@pytest.fixture(scope="session")
def one_node() -> Callable[..., onnx.ModelProto]:
    """`one_node(op, opset, domain=…, shape=…, dtype=…, **attributes)`: a Relu and then a node
    'suspect' of any operator."""
    return _one_node


def _one_node(op: str, opset: int = 13, **options: Any) -> onnx.ModelProto:
    domain = options.pop("domain", "")
    shape, kind = options.pop("shape", (1, 4, 8, 8)), options.pop("dtype", onnx.TensorProto.FLOAT)
    helper = onnx.helper
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node(op, ["r"], ["y"], "suspect", domain=domain, **options),
        ],
        "one node",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
