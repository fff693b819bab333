"""`qdebug check` as a program."""

from __future__ import annotations

from typing import Any

import numpy as np


def test_exit_codes_and_json(desk: Any, cnn: Any, pictures: Any) -> None:
    """0 where nothing is certainly wrong, 1 where something is, 2 for bad input."""
    done = desk.run("check", "net.onnx")
    assert done.code == 0 and "5 layers" not in done.out and "opset 17" in done.out
    desk.data("bad.npz", x=pictures(8), labels=np.full(8, 99))
    done = desk.run("check", "net.onnx", "--inputs", "bad.npz", "--json", "-")
    assert done.code == 1 and done.json["passed"] is False
    assert done.json["findings"][0]["kind"] == "label-range"
    shown = desk.run("check", "net.onnx", "--inputs", "bad.npz")
    assert "Wrong: 8 of 8 labels" in shown.out and shown.out.rstrip().endswith("certainly wrong.")
    desk.refused("check", "net.onnx", "--inputs", "none.npz", says=["QD-SAMPLES-NOT-FOUND"])
