"""The worst sample of a folder of pictures has the name of its file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import qdebug
from qdebug.cli.app import main


def _network(path: Path) -> Path:
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
            helper.make_node("GlobalAveragePool", ["c"], ["p"]),
            helper.make_node("Flatten", ["p"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [value("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def _folder(folder: Path) -> Path:
    rng = np.random.default_rng(1)
    for number in range(12):
        file = folder / f"class{number % 3}" / f"{number:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(file)
    return folder


def test_it_is_the_file_that_alone_has_this_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = _network(tmp_path / "m.onnx"), _folder(tmp_path / "pictures")
    common = ["--calib-data", str(folder), "--preprocess", "none", "--effect", "none"]

    def compared(data: Path) -> dict[str, object]:
        report = tmp_path / f"{data.stem}.json"
        told = ["compare", str(model), "--inputs", str(data), *common, "--json", str(report)]
        assert main(told) == 0
        return json.loads(report.read_text())["outputs"][0]

    whole = compared(folder)
    screen = capsys.readouterr().out
    file = str(whole["worst_file"])
    assert f"worst sample {whole['worst_sample']}, {file} (" in screen
    alone = compared(folder / file)
    assert alone["sqnr_db"] == pytest.approx(whole["worst_sample_sqnr_db"], abs=0.01)


def test_samples_that_are_no_files_have_none(tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(8, 3, 8, 8)).astype(np.float32)
    (output,) = qdebug.compare(_network(tmp_path / "m.onnx"), inputs={"x": x}).outputs
    assert output.worst_file == ""
