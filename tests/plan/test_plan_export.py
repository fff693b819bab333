"""Plans written for other tools."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from qdebug.errors import PlanError, StoreError
from qdebug.plan.export import TARGETS


def test_onnx(kit: SimpleNamespace, residual_net: Any, images: Any, tmp_path: Path) -> None:
    bound = kit.bound(residual_net(), kit.int8({"x": 3, "r1": 6, "f": 4}))
    TARGETS["onnx"](bound, tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    expected = kit.run(kit.lowered(residual_net(), bound.plan).graph, {"x": images})["out"]
    np.testing.assert_array_equal(kit.run(written, {"x": images})["out"], expected)
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_nothing_is_left_behind(kit: SimpleNamespace, residual_net: Any, tmp_path: Path) -> None:
    bound = kit.bound(residual_net(), kit.int8({"x": 3, "r1": 6, "f": 4}))
    with pytest.raises(StoreError, match="cannot be written"):
        TARGETS["onnx"](bound, tmp_path / "none" / "out.onnx")
    with pytest.raises(PlanError, match="has no amax"):
        TARGETS["onnx"](kit.bound(residual_net(), kit.int8()), tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())
