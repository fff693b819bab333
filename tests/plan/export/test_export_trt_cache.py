"""The calibration cache, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdebug.errors import PlanError
from qdebug.plan.plan import TensorRange
from qdebug.plan.rangesfile import read_ranges
from qdebug.plan.trtcache import read_cache


def test_a_cache_read_back_is_equal(cnn: Path, plan_for: Any, write: Any, tmp_path: Path) -> None:
    amax = {"input": 0.7, "/stem/act/Clip_output_0": 6.0, "logits": 1e-30, "/Flatten_output_0": 0.0}
    tensors = {name: TensorRange(value) for name, value in amax.items()}
    tensors["classifier.weight"] = TensorRange(1.0)
    source = plan_for(cnn, tensors=tensors)
    rendered = write(source, "trt-cache")
    cache = read_cache(tmp_path / "precision.cache")
    expected = {**dict.fromkeys(source.bound.needed_ranges(), 4.0), **amax}
    assert cache.kind == "EntropyCalibration2" and cache.scales.keys() == expected.keys()
    for name, scale in cache.scales.items():
        assert scale == np.float32(expected[name] / 127 if expected[name] else 1)
    assert any("no ranges of weights" in note for note in rendered.notes)
    again = plan_for(cnn, tensors=read_ranges(tmp_path / "precision.cache").tensors)
    assert write(again, "trt-cache").files == rendered.files


def test_pins_and_names_that_it_cannot_hold_are_said(
    kit: Any, plan_for: Any, write: Any, tmp_path: Path
) -> None:
    nodes = [
        kit.node("MatMul", ["a\nb", "w"], ["c: d"], "one"),
        kit.node("MatMul", ["c: d", "w"], ["é"], "two"),
        kit.node("MatMul", ["é", "w"], ["y"], "three"),
    ]
    net = kit.make(nodes, {"a\nb": (2, 3)}, ["y"], {"w": np.eye(3, dtype=np.float32)})
    onnx.save(net, tmp_path / "net.onnx")
    rendered = write(plan_for(tmp_path / "net.onnx", {"three": "fp32"}), "trt-cache")
    assert list(read_cache(tmp_path / "precision.cache").scales) == ["c: d"]
    assert any("1 tensor are" in note and r"'a\nb'" in note for note in rendered.notes)
    assert any(
        "precision of 1 layer is not in it (first 'three')" in note for note in rendered.notes
    )


def test_nothing_to_write(cnn: Path, plan_for: Any, write: Any) -> None:
    with pytest.raises(PlanError, match="QD-PLAN-NOTHING-TO-QUANTIZE"):
        write(plan_for(cnn, precision="fp16"), "trt-cache")
