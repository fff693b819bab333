"""Costs in milliseconds, from profiles written by the documented fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdebug.errors import UsageError
from qdebug.execute.engine.latency import profiled_costs, read_kernels
from qdebug.network.layers import find_layers
from qdebug.network.load import read_model
from qdebug.network.macs import work_of
from qdebug.network.prepare import prepare_model
from qdebug.plan.cost import Costs, mac_costs
from qdebug.plan.pair import ModelPair, planned_pair
from qdebug.plan.plan import PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Precision

BUNDLED = Path(__file__).parents[2] / "calib_data"
STEM, FIRST = "/stem/conv/Conv", "/blocks/blocks.0/depthwise/conv/Conv"
INT8, FP32 = Precision.INT8, Precision.FP32


@pytest.fixture(scope="module")
def digits() -> tuple[ModelPair, Costs]:
    model = prepare_model(read_model(str(BUNDLED / "digits_cnn.onnx")))
    layers = find_layers(model.graph)
    plan = PrecisionPlan(INT8)
    needed = bind_plan(plan, model, layers).needed_ranges()
    plan = plan.with_ranges({t: TensorRange(1.0) for t in needed}, "")
    work = mac_costs(work_of(layers, {"input": (1, 1, 8, 8)}))
    return planned_pair(model, bind_plan(plan, model, layers)), work


def _profile(folder: Path, *layers: tuple[str, float]) -> Path:
    entries: list[dict[str, Any]] = [{"count": 10}]
    entries += [{"name": name, "timeMs": 10 * ms, "averageMs": ms} for name, ms in layers]
    path = folder / "profile.json"
    path.write_text(json.dumps(entries))
    return path


def _costs(profile: Path, layers: str | None, pair: ModelPair, work: Costs) -> Costs:
    kernels = read_kernels(profile, layers, pair.model.file)
    return profiled_costs(kernels, str(profile), pair, work)


def test_names_that_tell(tmp_path: Path, digits: tuple[ModelPair, Costs]) -> None:
    pair, work = digits
    fused = "/blocks/blocks.0/depthwise/conv/Conv + /blocks/blocks.0/depthwise/act/Clip"
    costs = _costs(_profile(tmp_path, (STEM, 0.5), (fused, 0.25)), None, pair, work)
    assert costs.unit == "ms"
    assert costs.by_layer[STEM][INT8] == pytest.approx(0.5)
    assert costs.by_layer[STEM][FP32] == pytest.approx(2.0)  # four times the work
    assert costs.by_layer[FIRST][INT8] == pytest.approx(0.25)
    assert costs.by_layer["/classifier/Gemm"][FP32] == 0  # not in the profile


def test_layer_information_tells_what_a_kernel_holds(
    tmp_path: Path, digits: tuple[ModelPair, Costs]
) -> None:
    pair, work = digits
    layers = tmp_path / "layers.json"
    kernel = {
        "Name": "__myl_Conv_myl0_1", "LayerType": "conv",
        "Inputs": [{"Name": "input", "Datatype": "Float"}],
        "Outputs": [{"Name": "x", "Datatype": "Float"}],
        "Metadata": f"[ONNX Layer: {STEM}]\x1f[ONNX Layer: {FIRST}]",
    }  # fmt: skip
    layers.write_text(json.dumps({"Layers": [kernel], "Bindings": []}))
    profile = _profile(tmp_path, (kernel["Name"], 1.0))
    costs = _costs(profile, str(layers), pair, work)
    # Measured in FP32, and split by the work of the two.
    both = costs.by_layer[STEM][FP32] + costs.by_layer[FIRST][FP32]
    assert both == pytest.approx(1.0)
    ratio = work.by_layer[STEM][INT8] / work.by_layer[FIRST][INT8]
    assert costs.by_layer[STEM][FP32] / costs.by_layer[FIRST][FP32] == pytest.approx(ratio)
    assert costs.by_layer[STEM][INT8] == pytest.approx(costs.by_layer[STEM][FP32] / 4)
    with pytest.raises(UsageError, match="profile_layers"):
        _costs(profile, None, pair, work)
