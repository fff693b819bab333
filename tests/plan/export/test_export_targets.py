"""What every target has in common."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from qdebug.errors import PlanError
from qdebug.formats.registry import FORMAT_OF, SCALED
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


@pytest.mark.parametrize("precision", FORMAT_OF)
@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_a_target_takes_a_precision_or_says_what_it_takes(
    plan_for: Any, cnn: Path, tmp_path: Path, target: str, precision: Precision
) -> None:
    source = plan_for(cnn, precision=precision, opset=22)
    taken = EXPORT_TARGETS[target].precisions
    if not taken or precision in taken:
        try:
            assert EXPORT_TARGETS[target].render(source, tmp_path / "file").files
        except PlanError as error:  # a cache of no ranges
            assert precision not in SCALED
            assert error.code in ("QD-PLAN-NO-RANGES", "QD-PLAN-NOTHING-TO-QUANTIZE")
        return
    with pytest.raises(PlanError, match=precision.upper()) as caught:
        EXPORT_TARGETS[target].render(source, tmp_path / "file")
    assert caught.value.code == "QD-PLAN-EXPORT-FORMAT"
    assert all(p.upper() in caught.value.message for p in taken)


@pytest.mark.parametrize("target", ["trtexec", "polygraphy", "python"])
@pytest.mark.parametrize("precision", ["fp8", "bf16"])
def test_without_an_implicit_way_scripts_build_the_explicit_model(
    plan_for: Any, cnn: Path, tmp_path: Path, target: str, precision: str
) -> None:
    source = plan_for(cnn, precision=precision, opset=22)
    path = tmp_path / f"out{EXPORT_TARGETS[target].suffix}"
    rendered = EXPORT_TARGETS[target].render(source, path)
    assert [p.suffix for p in rendered.files] == [path.suffix, ".onnx"]
    assert any("no implicit way" in note for note in rendered.notes)
    text = rendered.files[path].decode("utf-8")
    assert ".explicit.onnx" in text and ".implicit.onnx" not in text
    if target == "trtexec":
        path.write_text(text, "utf-8")
        subprocess.run(["bash", "-n", path], check=True)
        done = subprocess.run(["bash", path], capture_output=True, text=True, check=False)
        assert (done.returncode, "explicit|rtx [flags" in done.stderr) == (2, True)
    else:
        compile(text, str(path), "exec")
