"""The bundled detector and its pictures: what is planted is found, and nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import qdebug

DATA = Path(__file__).parents[3] / "calib_data"
MODEL, SCENES = DATA / "digits_detector.onnx", DATA / "scenes" / "test"


def suspicious(result: Any) -> set[str]:
    return {f.kind for f in result.findings if f.severity != "note"}


def test_the_files_are_those_of_the_manifest() -> None:
    files = json.loads((DATA / "manifest.json").read_text())["files"]
    there = {p.relative_to(DATA).as_posix() for p in DATA.rglob("*.*") if p.name != "manifest.json"}
    assert set(files) == there
    for name, known in files.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == known["sha256"], name


def test_a_folder_of_pictures_is_enough() -> None:
    pytest.importorskip("faster_coco_eval")
    result = qdebug.check(MODEL, inputs=SCENES, calib_data=DATA / "scenes" / "calib")
    assert not suspicious(result) and result.score == "map50"
    assert result.variants[0].value > 0.9
    assert "letterboxed to 96x96" in result.data[0].told and not result.data[0].guess
    assert result.macs is not None and result.macs > 1e7


def test_boxes_of_other_classes(tmp_path: Path) -> None:
    """The model has no such class, and finds nothing of what is asked for."""
    pytest.importorskip("faster_coco_eval")
    shutil.copytree(SCENES, tmp_path / "scenes")
    file = tmp_path / "scenes" / "annotations.json"
    data = json.loads(file.read_text())
    for category in data["categories"]:
        category["name"] = f"animal {category['id']}"
    for one in data["annotations"]:
        one["category_id"] = (one["category_id"] + 3) % 10
    file.write_text(json.dumps(data))
    result = qdebug.check(MODEL, inputs=tmp_path / "scenes")
    assert suspicious(result) == {"chance-level"}
    assert "the model has no class 'animal 0'" in result.data[0].told


def test_several_mistakes_at_once_are_told_with_what_to_give(tmp_path: Path) -> None:
    pytest.importorskip("faster_coco_eval")
    (tmp_path / "how.yaml").write_text("{scale: 1, resize: shortest-edge}\n")
    result = qdebug.check(MODEL, inputs=SCENES, preprocess=tmp_path / "how.yaml", samples=16)
    assert suspicious(result) == {"preprocessing"}
    assert "Prepare the samples so: preprocess='yolo'." in result.findings[0].remedy


@pytest.mark.parametrize(
    ("lines", "kind"),
    [("scale: 1", "value-range"), ("resize: shortest-edge", "resize")],
)
def test_planted_mistakes(tmp_path: Path, lines: str, kind: str) -> None:
    pytest.importorskip("faster_coco_eval")
    (tmp_path / "how.yaml").write_text(f"preset: yolo\n{lines}\n")
    result = qdebug.check(MODEL, inputs=SCENES, preprocess=tmp_path / "how.yaml")
    assert suspicious(result) == {kind}
