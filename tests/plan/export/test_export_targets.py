"""What every target has in common."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from qdebug.errors import PlanError
from qdebug.plan.export import EXPORT_TARGETS
from qdebug.plan.export.source import ExportSource
from qdebug.types import Precision

ROOT = Path(__file__).parents[3]


def test_every_target_is_in_the_readme_and_the_guide_and_has_tests() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "export.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("qdebug export"))
    tests = {path.stem.removeprefix("test_export_") for path in Path(__file__).parent.glob("*.py")}
    for name in EXPORT_TARGETS:
        assert re.search(rf"\b{name}\b", line)
        assert f"| `--to {name}` |" in guide
        assert name == "onnx" or name.replace("-", "_") in tests  # onnx: below


def test_the_registry_imports_nothing_heavy() -> None:
    code = "import sys, qdebug.plan.export; assert not {'numpy', 'onnx'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_files_are_valid_and_beside_each_other(
    all_pinned: ExportSource, write: Any, tmp_path: Path, target: str
) -> None:
    before = all_pinned.model.file.path.read_bytes()
    rendered = write(all_pinned, target)
    assert next(iter(rendered.files)).name == f"precision{EXPORT_TARGETS[target].suffix}"
    for path, data in rendered.files.items():
        assert path.parent == tmp_path and data
        if path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(path), full_check=True)
        elif path.suffix == ".py":
            ast.parse(data)
        elif path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".sh":
            subprocess.run(["bash", "-n", path], check=True)
    for note in rendered.notes:  # said in the file too
        text = "".join(d.decode("utf-8") for p, d in rendered.files.items() if p.suffix != ".onnx")
        if target != "trt-cache":  # whose format has no comments
            assert note[:40] in text
    assert all_pinned.model.file.path.read_bytes() == before


def test_onnx_is_the_lowered_model(
    kit: SimpleNamespace, residual_net: Any, images: Any, tmp_path: Path
) -> None:
    model = kit.model_of(residual_net())
    bound = kit.bound(model, kit.int8({"x": 3, "r1": 6, "f": 4}))
    path = tmp_path / "out.onnx"
    (data,) = (
        EXPORT_TARGETS["onnx"].render(ExportSource(model, bound, "p.yaml"), path).files.values()
    )
    expected = kit.run(kit.lowered(residual_net(), bound.plan).graph, {"x": images})["out"]
    found = kit.run(onnx.load_from_string(data), {"x": images})["out"]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("target", [name for name in EXPORT_TARGETS if name != "onnx"])
def test_a_plan_in_another_format_than_int8_is_refused(
    all_pinned: ExportSource, tmp_path: Path, target: str
) -> None:
    bound = all_pinned.bound
    bound = replace(bound, precisions=dict.fromkeys(bound.precisions, Precision.FP8))
    with pytest.raises(PlanError, match="FP8") as caught:
        EXPORT_TARGETS[target].render(replace(all_pinned, bound=bound), tmp_path / "file")
    assert caught.value.code == "QD-PLAN-EXPORT-FORMAT"
