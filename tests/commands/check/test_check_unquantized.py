"""Recurrent layers, which no Q/DQ pair reaches, are named with their part of the work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdebug
from qdebug.cli.app import main

STEPS, READS, STATE, CLASSES = 6, 8, 16, 4
_GRU = STEPS * 2 * 3 * STATE * (READS + STATE)
_GEMM = 2 * STATE * CLASSES


def _network(path: Path, steps: int | str = STEPS, wide: int = 1) -> Path:
    """A bidirectional GRU [N, steps, 8] whose last states a Gemm reads, which is computed from
    `wide` copies of them."""
    rng = np.random.default_rng(0)
    shapes = {
        "w": (2, 3 * STATE, READS),
        "r": (2, 3 * STATE, STATE),
        "v": (2 * STATE * wide, CLASSES),
    }
    constants = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    constants.append(numpy_helper.from_array(np.array([0, -1]), "flat"))
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node(
                "GRU",
                ["t", "w", "r"],
                ["", "h"],
                "gru",
                hidden_size=STATE,
                direction="bidirectional",
            ),
            helper.make_node("Transpose", ["h"], ["s"], perm=[1, 0, 2]),
            helper.make_node("Reshape", ["s", "flat"], ["f"]),
            helper.make_node("Concat", ["f"] * wide, ["c"], axis=1),
            helper.make_node("Gemm", ["c", "v"], ["y"], "gemm"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", steps, READS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CLASSES])],
        constants,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def _samples() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(8, STEPS, READS)).astype(np.float32)}


SAID = (
    "1 GRU stays in FP32: such a layer gets no Q/DQ pairs. It does "
    f"{100 * _GRU / (_GRU + _GEMM):.3g}% of the multiply-accumulates, and quantization speeds up "
    "only the rest."
)


@pytest.mark.parametrize("steps", [STEPS, "T"])
def test_check_names_them_with_their_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int | str
) -> None:
    path = _network(tmp_path / "m.onnx", steps)
    result = qdebug.check(path, inputs=_samples())
    assert [f.message for f in result.findings if f.kind == "unquantized-work"] == [SAID]
    assert (result.uncounted, result.macs) == ({"GRU": 1}, _GEMM)
    assert main(["check", str(path)]) == 0
    screen = capsys.readouterr().out
    assert "MMACs a sample; without 1 GRU" in screen
    told = "Its part of the work is not known" if steps == "T" else "It does 99.1%"
    assert told in screen.replace("\n", " ")


def test_compare_says_so_in_a_note_of_quantized_networks(tmp_path: Path) -> None:
    path = _network(tmp_path / "m.onnx")
    assert SAID in qdebug.compare(path, inputs=_samples(), precision="int8").notes
    assert SAID not in qdebug.compare(path, inputs=_samples(), precision="fp16").notes


def test_a_small_part_is_no_news(tmp_path: Path) -> None:
    path = _network(tmp_path / "m.onnx", wide=1000)
    result = qdebug.check(path, inputs=_samples())
    assert not [f for f in result.findings if f.kind == "unquantized-work"]
    assert result.uncounted == {"GRU": 1}
