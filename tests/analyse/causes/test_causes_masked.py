"""An attention whose scores share the range of a mask's constant is told apart from rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

import qdebug
from qdebug.analyse.causes.masked import MaskedScores
from qdebug.results.compare import Cause, CompareResult

KEYS = 8


class _Reader(CalibrationDataReader):
    """The samples, one by one."""

    def __init__(self, samples: dict[str, np.ndarray]) -> None:
        self.left = [
            {k: v[i : i + 1] for k, v in samples.items()} for i in range(len(samples["x"]))
        ]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def _attention(path: Path, mask: float, *, by: str, factor: bool = False) -> Path:
    """Scores of [N, 4, 8] keys, masked by a Where or an Add, perhaps times 2; Softmax; values."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    constants = {
        "k": rng.normal(size=(6, KEYS)),
        "v": rng.normal(size=(KEYS, 5)),
        "huge": np.array(mask),
        "two": np.array(2.0),
    }
    masking = (
        [helper.make_node("Where", ["hidden", "huge", "s"], ["m"], "where")]
        if by == "Where"
        else [
            helper.make_node("Cast", ["hidden"], ["h"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["h", "huge"], ["b"], "bias"),
            helper.make_node("Add", ["s", "b"], ["m"], "add"),
        ]
    )
    scaled = [helper.make_node("Mul", ["m", "two"], ["f"], "factor")] if factor else []
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "k"], ["s"], "scores"),
            *masking,
            *scaled,
            helper.make_node("Softmax", ["f" if factor else "m"], ["p"], "softmax", axis=-1),
            helper.make_node("MatMul", ["p", "v"], ["y"], "values"),
        ],
        "g",
        [
            value("x", TensorProto.FLOAT, ["N", 4, 6]),
            value("hidden", TensorProto.BOOL, ["N", 1, 8]),
        ],
        [value("y", TensorProto.FLOAT, ["N", 4, 5])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def _compared(tmp_path: Path, mask: float, *, by: str, factor: bool = False) -> CompareResult:
    rng = np.random.default_rng(1)
    hidden = np.arange(KEYS) >= rng.integers(3, KEYS, (16, 1, 1))
    samples = {"x": rng.normal(size=(16, 4, 6)).astype(np.float32), "hidden": hidden}
    path = _attention(tmp_path / "fp32.onnx", mask, by=by, factor=factor)
    quantize_static(path, tmp_path / "int8.onnx", _Reader(samples))
    return qdebug.compare(tmp_path / "int8.onnx", reference=path, inputs=samples)


def _main(result: CompareResult, layer: str) -> Cause | None:
    causes = next(x.causes for x in result.layers if x.name == layer)
    return causes[0] if causes else None


@pytest.mark.parametrize(
    ("mask", "by", "said"),
    [
        (-1e9, "Where", "(-1e+09): one INT8 step, 3.9e+06,"),
        (-65504.0, "Where", "(-6.55e+04): one INT8 step, 2.6e+02,"),
        (-1e9, "Add", "(-1e+09): one INT8 step, 3.9e+06,"),
        (np.finfo(np.float32).min, "Where", "(-3.4e+38): one INT8 step, 1.3e+36,"),
    ],
)
def test_the_mask_is_named(tmp_path: Path, mask: float, by: str, said: str) -> None:
    cause = _main(_compared(tmp_path, mask, by=by), "softmax")
    assert cause is not None
    assert cause.label == "mixed-scales"
    assert f"the range is that of the mask {said} is larger than every score" in cause.evidence
    assert "keep the input of Softmax in FP32" in cause.remedy
    assert "a mask of about -100 in" in cause.remedy
    assert "typical value" not in cause.brief


def test_what_lies_between_the_mask_and_its_softmax(tmp_path: Path) -> None:
    """Beside the mask, which it passes on, the loss of all scores is a local SQNR of 160 dB."""
    result = _compared(tmp_path, -1e9, by="Where", factor=True)
    layer = next(x for x in result.layers if x.name == "factor")
    assert layer.local_sqnr_db is not None
    assert layer.local_sqnr_db > 100
    assert layer.causes
    assert layer.causes[0].label == "mixed-scales"
    assert "the range is that of the mask" in layer.causes[0].evidence


def test_the_mask_that_is_advised_leaves_the_scores_their_steps(tmp_path: Path) -> None:
    results = [_compared(tmp_path, mask, by="Where") for mask in (-1e9, -100.0)]
    causes = [_main(result, "softmax") for result in results]
    assert causes[0] is not None
    assert causes[1] is None or causes[1].label != "mixed-scales"
    before, after = (result.outputs[0].metrics.sqnr_db for result in results)
    assert after > before + 10


@pytest.mark.parametrize(
    ("lowest", "mask"), [(0.0, 100), (-12.3, 100), (-60.0, 200), (-239.0, 300)]
)
def test_the_mask_that_is_advised_is_far_below_the_lowest_score(lowest: float, mask: int) -> None:
    cause = MaskedScores(-1e9, 294.0, lowest, 3.9e6).cause(1.0, "t", "INT8 step")
    assert f"a mask of about -{mask} in" in cause.remedy
