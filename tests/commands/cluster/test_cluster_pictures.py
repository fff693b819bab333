"""Workers read pictures again, as the command found out to, and also of objects in memory."""

from __future__ import annotations

from pathlib import Path

import onnx

import qdebug
from qdebug.network.preprocessing import PRESETS

DATA = Path(__file__).parents[3] / "calib_data"


def test_workers_read_the_same_pictures() -> None:
    model, pictures = DATA / "digits_detector.onnx", DATA / "scenes" / "calib"
    quick = {"inputs": pictures, "samples": 8, "effect": "none", "preprocess": PRESETS["yolo"]}
    here = qdebug.compare(onnx.load(model), **quick)
    there = qdebug.compare(onnx.load(model), cluster="local:1", **quick)
    assert here.outputs == there.outputs
    assert here.data == there.data and "given in memory" in here.data[0].told
