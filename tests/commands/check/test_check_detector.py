"""The bundled detector and its pictures: what is planted is found, and nothing else."""

from __future__ import annotations

import hashlib
import json
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


@pytest.mark.parametrize(
    ("lines", "kind"),
    [("scale: 1", "value-range"), ("resize: shortest-edge", "resize")],
)
def test_planted_mistakes(tmp_path: Path, lines: str, kind: str) -> None:
    pytest.importorskip("faster_coco_eval")
    (tmp_path / "how.yaml").write_text(f"preset: yolo\n{lines}\n")
    result = qdebug.check(MODEL, inputs=SCENES, preprocess=tmp_path / "how.yaml")
    assert suspicious(result) == {kind}
