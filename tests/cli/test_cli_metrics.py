"""Metrics by name on the command line, on a small detector."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

DATA = ["--inputs", "pictures.npz", "--calib-data", "pictures.npz", "--effect", "none"]


def detector(surest: float = 1.0) -> onnx.ModelProto:
    """An output as YOLOv8's, [N, 4 + 3 classes, 64 places], of pictures of 64 pixels."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((7, 3, 8, 8)) / 4,
        "scale": np.concatenate([[64, 64, 16, 16], [surest] * 3]).reshape(1, 7, 1),
        "shape": np.array([0, 7, 64]),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["images", "w"], ["c"], "conv", strides=[8, 8]),
        node("Reshape", ["c", "shape"], ["r"], "reshape"),
        node("Sigmoid", ["r"], ["s"], "sigmoid"),
        node("Mul", ["s", "scale"], ["output0"], "scaled"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 64, 64])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, ["N", 7, 64])],
        [
            numpy_helper.from_array(v if n == "shape" else v.astype(np.float32), n)
            for n, v in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, {"names": "{0: 'a', 1: 'b', 2: 'c'}", "task": "detect"})
    return model


@pytest.fixture
def detecting(desk: Any) -> Any:
    onnx.save(detector(), desk.folder / "detector.onnx")
    random = np.random.default_rng(1)
    boxes = np.zeros((12, 2, 4), np.float32)
    boxes[:, 0] = 8, 8, 24, 24
    classes = np.tile([0, -1], (12, 1))
    pictures = random.random((12, 3, 64, 64)).astype(np.float32)
    np.savez(desk.folder / "pictures.npz", images=pictures)
    np.savez(desk.folder / "labelled.npz", images=pictures, boxes=boxes, classes=classes)
    return desk


def test_boxes_of_fp32_are_the_truth_without_labels(detecting: Any) -> None:
    done = detecting.run("compare", "detector.onnx", *DATA, "--metric", "box-f1-to-reference")
    assert "1.0000 in FP32" in done.out and "boxes as yolov8" in done.out
    assert " kept, " in done.out and "95% interval" in done.out


def test_a_decoder_is_named_or_a_function(detecting: Any) -> None:
    detecting.write(
        "read.py",
        "import numpy as np\n"
        "def boxes(outputs):\n"
        "    rows = np.moveaxis(outputs['output0'], 1, 2)\n"
        "    half = rows[..., 2:4] / 2\n"
        "    corners = np.concatenate([rows[..., :2] - half, rows[..., :2] + half], 2)\n"
        "    return corners, rows[..., 4:]\n",
    )
    metric = ["--metric", "box-f1-to-reference"]
    results = [
        detecting.run("compare", "detector.onnx", *DATA, *metric, *decode, "--json", "-").json
        for decode in ([], ["--decode", "yolov8"], ["--decode", "read.py:boxes"])
    ]
    values = [(r["metric"]["candidate"], r["metric"]["boxes"]) for r in results]
    assert values[0] == values[1] == values[2] and values[0][0] < 1
    assert results[0]["metric"]["uncertainty"]["p_value"] is None
    assert sum(values[0][1].values()) > 12
    assert "read.py:boxes" in results[2]["metric"]["described"]


def test_labelled_boxes_are_found_in_the_data(detecting: Any) -> None:
    data = ["--inputs", "labelled.npz", "--calib-data", "pictures.npz", "--effect", "none"]
    metric = ["--metric", "box-f1", "--json", "-"]
    result = detecting.run("compare", "detector.onnx", *data, *metric).json
    boxes = result["metric"]["boxes"]
    assert boxes["kept"] + boxes["lost"] == 12 and 0 <= result["metric"]["reference"] < 1


@pytest.mark.parametrize("command", ["compare", "calibrate", "bisect", "repair"])
def test_where_fp32_finds_no_object_nothing_is_quantized(detecting: Any, command: str) -> None:
    onnx.save(detector(surest=0.1), detecting.folder / "shy.onnx")
    data = ["--calib-data", "pictures.npz", "--metric", "box-f1-to-reference"]
    target = ["--max-drop", "0.1"] if command == "bisect" else []
    inputs = [] if command in ("calibrate", "repair") else ["--inputs", "pictures.npz"]
    says = ["QD-METRIC-NO-BOXES", "the highest is 0", "qdebug check", "as yolov8", "--decode"]
    refused = detecting.refused(command, "shy.onnx", *data, *inputs, *target, says=says)
    assert refused.err.count("no object") == 1


def segmenter(planes: int, shift: float) -> onnx.ModelProto:
    """Masks [N, planes, 16, 16] of pictures of 64 pixels: all the same class where `shift` is far
    below 0."""
    weights = np.random.default_rng(0).standard_normal((planes, 3, 4, 4)).astype(np.float32)
    bias = np.array([-shift] * (planes - 1) + [shift], np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "w", "b"], ["c"], "conv", strides=[4, 4]),
        helper.make_node("Sigmoid", ["c"], ["mask"], "sigmoid"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 64, 64])],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["N", planes, 16, 16])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("planes", [1, 2])
@pytest.mark.parametrize("command", ["compare", "calibrate", "bisect", "repair", "check"])
def test_where_fp32s_masks_are_empty_nothing_is_quantized(
    detecting: Any, command: str, planes: int
) -> None:
    onnx.save(segmenter(planes, -40), detecting.folder / "empty.onnx")
    data = ["--calib-data", "pictures.npz", "--metric", "miou-to-reference"]
    target = ["--max-drop", "0.1"] if command == "bisect" else []
    inputs = [] if command in ("calibrate", "repair") else ["--inputs", "pictures.npz"]
    arguments = command, "empty.onnx", *data, *inputs, *target
    says = ["every pixel", "class 0", "qdebug check"]
    if command == "check":
        findings = detecting.run(*arguments, "--json", "-").json["findings"]
        (found,) = (f for f in findings if f["kind"] == "metric")
        assert found["severity"] == "error"
        assert all(each in f"{found['message']} {found['remedy']}" for each in says)
    else:
        detecting.refused(*arguments, says=["QD-METRIC-EMPTY-MASK", *says])


def test_a_mask_that_is_not_empty_is_compared(detecting: Any) -> None:
    onnx.save(segmenter(1, 0), detecting.folder / "full.onnx")
    flags = ["--metric", "miou-to-reference", "--json", "-"]
    result = detecting.run("compare", "full.onnx", *DATA, *flags).json["metric"]
    assert result["reference_classes"] == 2 and 0.5 < result["candidate"] < 1
    findings = detecting.run("check", "full.onnx", *DATA[:2], *flags).json["findings"]
    assert not any(found["kind"] == "metric" for found in findings)


def test_that_fp32s_masks_are_empty_is_noted_where_labels_judge(detecting: Any) -> None:
    onnx.save(segmenter(2, -40), detecting.folder / "empty.onnx")
    data = dict(np.load(detecting.folder / "pictures.npz"), masks=np.zeros((12, 16, 16), np.uint8))
    np.savez(detecting.folder / "masks.npz", **data)
    flags = ["--inputs", "masks.npz", "--effect", "none", "--metric", "miou", "--json", "-"]
    result = detecting.run("compare", "empty.onnx", *flags).json
    assert any("same class for every pixel of 12 samples" in note for note in result["notes"])


def test_labels_without_any_object_are_refused(detecting: Any) -> None:
    data = dict(np.load(detecting.folder / "labelled.npz"))
    np.savez(detecting.folder / "empty.npz", **{**data, "classes": data["classes"] * 0 - 1})
    flags = ["--inputs", "empty.npz", "--metric", "box-f1"]
    says = ["QD-METRIC-NO-BOXES", "empty.npz", "none of the 12 samples"]
    detecting.refused("compare", "detector.onnx", *flags, says=says)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--metric", "agreement"], ["QD-METRIC-NOT-A-CLASSIFIER", "map-to-reference"]),
        (["--metric", "box-f1"], ["QD-METRIC-LABELS", "pictures.npz", "'boxes'"]),
        (["--decode", "yolov8"], ["QD-METRIC-MISSING", "--decode", "--metric"]),
        (["--metric", "mae", "--decode", "yolov8"], ["QD-METRIC-DECODE", "--decode"]),
        (["--metric", "box-f1", "--decode", "no.py:f"], ["QD-METRIC-DECODE", "no.py"]),
        (
            ["--metric", "box-f1-to-reference", "--fail-on", "metric<=0.9"],
            ["QD-USAGE-METRIC-DIRECTION", "--fail-on", "metric>=0.9"],
        ),
    ],
)
def test_what_does_not_fit_is_refused(detecting: Any, flags: list[str], says: list[str]) -> None:
    detecting.refused("compare", "detector.onnx", *DATA, *flags, says=says)


def test_what_computes_a_metric_is_missed_before_anything_is_run(detecting: Any) -> None:
    there = importlib.util.find_spec("jiwer")
    says = ["QD-METRIC-LABELS", "'text'"] if there else ["QD-METRIC-EXTRA", "pip install", "jiwer"]
    detecting.refused("compare", "detector.onnx", *DATA, "--metric", "cer", says=says)
