"""The script for NVIDIA's Model Optimizer, called with a stand-in that reads node names as it does
(re.match), and with the real one where it is installed."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from qdebug.errors import PlanError


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the script; the arguments of modelopt.onnx.quantization.quantize, and the names of the
    nodes that they exclude."""

    def run() -> tuple[dict[str, Any], set[str]]:
        seen: dict[str, Any] = {}
        excluded: set[str] = set()

        def quantize(**arguments: Any) -> None:
            seen.update(arguments)
            names = [n.name for n in onnx.load(arguments["onnx_path"]).graph.node]
            assert len(set(names)) == len(names)
            for pattern in arguments["nodes_to_exclude"]:
                excluded.update(name for name in names if re.match(pattern, name))

        for name in ("modelopt", "modelopt.onnx", "modelopt.onnx.quantization"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setattr(sys.modules["modelopt.onnx.quantization"], "quantize", quantize, False)
        monkeypatch.setattr(sys, "argv", ["precision_modelopt.py", "out.onnx"])
        runpy.run_path(str(tmp_path / "precision_modelopt.py"), run_name="__main__")
        return seen, excluded

    return run


def test_exactly_the_pinned_nodes_are_excluded(all_pinned: Any, write: Any, called: Any) -> None:
    rendered = write(all_pinned, "modelopt")
    arguments, excluded = called()
    names = [n.name for n in onnx.load(all_pinned.model.file.path).graph.node]
    # The first three have no name of their own in the file; the script gives them one.
    pinned = {"Conv_c1", "dup_1", "dup_2", *names[3:8], "fc"}
    assert excluded == pinned
    assert arguments["quantize_mode"] == "int8" and arguments["high_precision_dtype"] == "fp32"
    assert Path(arguments["calibration_cache_path"]).is_file()
    assert Path(arguments["onnx_path"]) != all_pinned.model.file.path  # which it would rewrite
    assert arguments["output_path"] == "out.onnx"
    assert any("in fp16 (first 'x*y') will run in fp32" in note for note in rendered.notes)
    assert any("3 nodes of the model without a unique name" in note for note in rendered.notes)


def test_the_real_one_takes_the_command_line(
    cnn: Path, plan_for: Any, write: Any, tmp_path: Path
) -> None:
    main = pytest.importorskip("modelopt.onnx.quantization.__main__")
    write(plan_for(cnn, {"/stem/conv/Conv": "fp32"}), "modelopt")
    lines = (tmp_path / "precision_modelopt.py").read_text("utf-8").splitlines()
    (line,) = [x.removeprefix("#   ") for x in lines if "-m modelopt" in x]
    options = main.get_parser().parse_args(shlex.split(line)[3:])
    assert any(re.match(pattern, "/stem/conv/Conv") for pattern in options.nodes_to_exclude)


def test_rest_in_fp16_is_its_high_precision(
    cnn: Path, plan_for: Any, write: Any, called: Any
) -> None:
    from qdebug.types import Precision

    rendered = write(plan_for(cnn, fallback_precision=Precision.FP16, opset=19), "modelopt")
    arguments, excluded = called()
    assert arguments["high_precision_dtype"] == "fp16" and not excluded
    assert rendered.notes == ()


def test_a_plan_without_int8_is_refused(cnn: Path, plan_for: Any, write: Any) -> None:
    with pytest.raises(PlanError, match="QD-PLAN-NOTHING-TO-QUANTIZE"):
        write(plan_for(cnn, precision="fp16"), "modelopt")
