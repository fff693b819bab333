"""One layer, one planted defect each: the diagnosis must name it, with its share."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.analyse.causes.quantization import inherited_cause
from qdebug.commands.compare.command import compare
from qdebug.config.compare import CompareSettings
from qdebug.results.compare import Cause, LayerResult
from qdebug.types import Array

BUNDLED = Path(__file__).parents[2] / "calib_data"
RNG = np.random.default_rng(3)
WEIGHT = RNG.normal(size=(16, 16)).astype(np.float32)
X = RNG.uniform(-1, 1, size=(32, 16)).astype(np.float32)


def _model(folder: Path, weight: Array | None) -> str:
    """y = x · weight, or x · xᵀ without one."""
    names = ["x", "w"] if weight is not None else ["x", "other"]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 16))]
    constants = []
    if weight is not None:
        constants = [numpy_helper.from_array(weight, "w")]
    else:
        inputs.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (16, 16)))
    graph = helper.make_graph(
        [helper.make_node("MatMul", names, ["y"], "mm")],
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", 16))],
        constants,
    )
    path = folder / "net.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return str(path)


def _layer(folder: Path, data: Array, calibration: Array, weight: Array, **how: str) -> LayerResult:
    np.savez(folder / "data.npz", x=data)
    np.savez(folder / "calib.npz", x=calibration)
    settings = CompareSettings(
        _model(folder, weight),
        str(folder / "data.npz"),
        calib_data=str(folder / "calib.npz"),
        cache=False,
        **how,
    )
    return compare(settings).layers[0]


def _main(layer: LayerResult) -> Cause:
    own = [c.share for c in layer.causes if c.label not in ("accumulation", "amplification")]
    assert own == sorted(own, reverse=True)
    assert sum(own) <= 1.0 + 1e-9
    return layer.causes[0]


def test_underflow_is_a_share_of_the_values_that_are_not_zero(tmp_path: Path) -> None:
    """As behind a Relu: few values are not 0, and those lose their digits."""
    data, weight = np.zeros((32, 16), np.float32), np.zeros((16, 16), np.float32)
    data[0, 0], weight[0, 0] = 1e-6, 1.0
    layer = _layer(tmp_path, data, data, weight, precision="fp16", fp16_kernels="exact")
    assert "fp16-underflow" in [cause.label for cause in layer.causes]


def test_ranges_from_other_data(tmp_path: Path) -> None:
    cause = _main(_layer(tmp_path, X, X / 3, WEIGHT))
    assert cause.label == "unrepresentative-calibration"
    assert cause.share > 0.95
    assert re.search("6[5-8]% of its values are beyond", cause.evidence)


@pytest.mark.parametrize("factor", [1 / 10, 255])
def test_calibration_samples_on_another_scale(tmp_path: Path, factor: float) -> None:
    cause = _main(_layer(tmp_path, X, X * np.float32(factor), WEIGHT))
    assert cause.label == "stale-calibration"
    assert cause.share > 0.95


def test_a_range_that_the_values_fill_leaves_the_rounding_of_int8(tmp_path: Path) -> None:
    layer = _layer(tmp_path, X, X, WEIGHT)
    assert {cause.label for cause in layer.causes} == {"rounding", "weight-rounding"}
    shares = [cause.share for cause in layer.causes]
    assert None not in shares and sum(shares) <= 1


def test_a_calibrator_that_clips(tmp_path: Path) -> None:
    cause = _main(_layer(tmp_path, X, X, WEIGHT, method="percentile:50"))
    assert cause.label == "clipping"
    assert cause.share > 0.95


def test_an_outlier_stretches_the_range(tmp_path: Path) -> None:
    data = X.copy()
    data[0, 0] = 100
    cause = _main(_layer(tmp_path, data, data, WEIGHT))
    assert cause.label == "coarse-step"
    assert cause.share > 0.95
    assert "reaches 100" in cause.evidence


@pytest.mark.parametrize("weights", ["per-tensor", "per-channel"])
def test_the_bundled_network_has_unequal_channels(weights: str) -> None:
    result = compare(
        CompareSettings(
            str(BUNDLED / "digits_cnn.onnx"),
            str(BUNDLED / "digits_holdout.npz"),
            calib_data=str(BUNDLED / "digits_calib.npz"),
            weights=weights,
            samples=32,
            cache=False,
        )
    )
    depthwise = [x for x in result.layers if "depthwise" in x.name]
    assert len(depthwise) == 6
    if weights == "per-channel":  # which is the remedy
        assert all("weight-range" not in [c.label for c in x.causes] for x in result.layers)
        return
    for layer in depthwise:
        assert _main(layer).label == "weight-range"
        assert _main(layer).share > 0.85
    last = next(x for x in result.layers if x.op_type == "Gemm")
    assert [c.label for c in last.causes][-1] == "accumulation"


def test_both_operands_are_told_apart(tmp_path: Path) -> None:
    other = RNG.uniform(-1, 1, size=(16, 16)).astype(np.float32)
    spiked = other.copy()
    spiked[3, 3] = 80
    np.savez(tmp_path / "data.npz", x=X[:16], other=np.repeat(spiked[None], 1, axis=0)[0])
    settings = CompareSettings(
        _model(tmp_path, None), str(tmp_path / "data.npz"), cache=False, batch_size=16
    )
    cause = _main(compare(settings).layers[0])
    assert cause.label == "coarse-step"
    assert "'other'" in cause.evidence
    assert cause.share > 0.9


@pytest.mark.parametrize(
    ("local", "inputs", "output", "label"),
    [
        (1e-4, 1e-3, 5e-4, None),
        (1e-4, 1e-1, 1e-1, "accumulation"),
        (0.0, 1e-1, 1e-1, "accumulation"),
        (1e-4, 1e-3, 1e-1, "amplification"),
        (0.0, 0.0, 1e-1, None),
        (float("nan"), 1e-1, 1e-1, None),
        (1e-3, 1.0, float("nan"), None),
    ],
)
def test_inherited(local: float, inputs: float, output: float, label: str | None) -> None:
    cause = inherited_cause(local, inputs, output)
    assert (cause.label if cause else None) == label


def test_a_mask_that_stretches_a_range_is_told(tmp_path: Path) -> None:
    data = X.copy()
    data[:, 3] = -3.4e38
    np.savez(tmp_path / "data.npz", x=data)
    weight = WEIGHT.copy()
    weight[3] = 0
    result = compare(
        CompareSettings(_model(tmp_path, weight), str(tmp_path / "data.npz"), cache=False)
    )
    assert any("mask" in note and "'x'" in note for note in result.notes)
    cause = _main(result.layers[0])
    assert cause.label == "coarse-step"
    assert "mask" in cause.evidence
