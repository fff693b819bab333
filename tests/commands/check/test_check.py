"""Planted mistakes are found, on several networks, and nothing is where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import qdebug
from qdebug.commands.check import trials
from qdebug.commands.check.judging import chance_of_gain, confidence, of_pictures
from qdebug.network.preprocessing import Preprocessing

DATA = Path(__file__).parents[3] / "calib_data"
MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)
COLOURS = np.array(
    [
        *([0.9, 0.2, 0.1], [0.45, 0.1, 0.05], [0.2, 0.9, 0.2], [0.1, 0.2, 0.9]),
        *([0.05, 0.05, 0.05], [0.5, 0.5, 0.5], [0.95, 0.95, 0.95]),
    ]
)
"""Dark and bright ones of one hue, so that their size counts, too."""
Arrays = dict[str, Any]


def kinds(result: Any, *severities: str) -> set[str]:
    """The kinds of what was found."""
    wanted = severities or ("error", "warning")
    return {f.kind for f in result.findings if f.severity in wanted}


def colour_net(path: Path) -> Path:
    """The nearest of COLOURS to the mean colour of a picture [N, 3, 8, 8] in 0 to 1."""
    weight = (2 * COLOURS).astype(np.float32)
    bias = (-(COLOURS**2).sum(1)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["x"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
        ],
        "colours",
        [value("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [value("y", TensorProto.FLOAT, ["N", len(COLOURS)])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def colour_pictures(count: int = 70, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % len(COLOURS)
    pixels = COLOURS[labels][:, :, None, None] + rng.normal(0, 0.08, (count, 3, 8, 8))
    return {"x": np.clip(pixels, 0, 1).astype(np.float32), "labels": labels}


def in_folders(folder: Path, count: int, *, classes: bool = True) -> Path:
    """Those pictures as files, in a folder for each class."""
    data = colour_pictures(count)
    for number, (pixels, label) in enumerate(zip(data["x"], data["labels"], strict=True)):
        own = folder / str(label) if classes else folder
        own.mkdir(parents=True, exist_ok=True)
        image = np.rint(pixels.transpose(1, 2, 0) * 255).astype(np.uint8)
        Image.fromarray(image).save(own / f"{number}.png")
    return folder


def digits() -> Arrays:
    with np.load(DATA / "digits_holdout.npz") as data:
        return {"input": data["input"][:80], "labels": data["labels"][:80]}


@pytest.fixture
def networks(tmp_path: Path) -> dict[str, tuple[Path, Arrays]]:
    return {
        "colours": (colour_net(tmp_path / "colours.onnx"), colour_pictures()),
        "cnn": (DATA / "digits_cnn.onnx", digits()),
        "encoder": (DATA / "digits_encoder.onnx", digits()),
    }


each_network = pytest.mark.parametrize("network", ["colours", "cnn", "encoder"])


@each_network
def test_nothing_is_found_where_all_is_right(networks: Any, network: str) -> None:
    model, data = networks[network]
    result = qdebug.check(model, inputs=data)
    assert result.passed and not kinds(result)
    assert result.score == "top1" and result.variants[0].value > 0.9


@each_network
def test_values_of_another_range(networks: Any, network: str) -> None:
    model, data = networks[network]
    name = next(iter(data))
    result = qdebug.check(model, inputs=data | {name: data[name] * np.float32(255)})
    assert kinds(result, "error") == {"value-range"}
    (finding,) = (f for f in result.findings if f.severity == "error")
    assert "values / 255" in finding.message
    result = qdebug.check(model, inputs=data | {name: data[name] * np.float32(2) - np.float32(1)})
    assert kinds(result) == {"value-range"}


@each_network
def test_labels_of_another_task(networks: Any, network: str) -> None:
    model, data = networks[network]
    labels = np.random.default_rng(3).permutation(data["labels"])
    result = qdebug.check(model, inputs=data | {"labels": labels})
    assert kinds(result) == {"chance-level"}


def test_one_class_for_all_samples(networks: Any) -> None:
    """Without labels, and by a metric that needs none; not where the labels say so."""
    model, data = networks["cnn"]
    same = {"input": np.repeat(data["input"][:1], 16, 0)}
    result = qdebug.check(model, inputs=same, metric="agreement")
    assert kinds(result, "warning") == {"one-class"}
    assert result.score == "confidence"  # by agreement FP32 is right however samples are prepared
    assert "one-class" in kinds(qdebug.check(model, inputs=same), "note")
    labelled = same | {"labels": np.repeat(data["labels"][:1], 16)}
    for inputs in (labelled, {"input": data["input"]}):
        result = qdebug.check(model, inputs=inputs, metric="agreement")
        assert "one-class" not in kinds(result, "warning", "note")


@each_network
def test_labels_that_are_off(networks: Any, network: str) -> None:
    model, data = networks[network]
    result = qdebug.check(model, inputs=data | {"labels": data["labels"] + 1})
    assert kinds(result, "error") >= {"labels-off-by-one", "label-range"}
    result = qdebug.check(model, inputs=data | {"labels": np.maximum(data["labels"] - 1, 0)})
    assert "labels-off-by-one" in kinds(result, "error")


@each_network
def test_calibration_on_what_is_compared(networks: Any, network: str) -> None:
    model, data = networks[network]
    name = next(iter(data))
    first = {name: data[name][:40]}
    result = qdebug.check(model, inputs=data, calib_data={name: data[name]})
    assert kinds(result, "error") == {"shared-samples"}
    rest = {n: array[40:] for n, array in data.items()}
    assert not kinds(qdebug.check(model, inputs=rest, calib_data=first))
    other = {name: first[name] * np.float32(3)}
    assert kinds(qdebug.check(model, inputs=rest, calib_data=other)) == {"unlike-samples"}
    some = {name: data[name][30:60]}
    assert kinds(qdebug.check(model, inputs=rest, calib_data=some)) == {"shared-samples"}
    for data_of in (rest, first):
        data_of[name] = data_of[name].copy()
        data_of[name][:2] = 0
    found = kinds(qdebug.check(model, inputs=rest, calib_data=first))
    assert "constant-samples" in found and "shared-samples" not in found


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        ("channel-order", lambda x: x[:, ::-1]),
        ("value-range", lambda x: (x - MEAN) / STD),
        ("layout", lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape)),
    ],
)
def test_colours(networks: Any, kind: str, plant: Callable[[Any], Any]) -> None:
    model, data = networks["colours"]
    planted = np.ascontiguousarray(plant(data["x"]), np.float32)
    assert kinds(qdebug.check(model, inputs=data | {"x": planted})) == {kind}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("colour: bgr", "channel-order"),
        ("scale: 1", "value-range"),
        ("preset: imagenet", "value-range"),
        ("colour: rgb", ""),
    ],
)
def test_pictures(tmp_path: Path, line: str, kind: str) -> None:
    model, folder = colour_net(tmp_path / "net.onnx"), in_folders(tmp_path / "pics", 42)
    (tmp_path / "how.yaml").write_text(line + "\n")
    result = qdebug.check(model, inputs=folder, preprocess=tmp_path / "how.yaml")
    assert kinds(result) == ({kind} if kind else set())
    assert result.data[0].told.startswith("42 pictures in 7 classes")


def test_a_second_change_is_tried_on_top_of_the_best(tmp_path: Path) -> None:
    """And what is told is a file that can be given at once."""
    model, folder = colour_net(tmp_path / "net.onnx"), in_folders(tmp_path / "pics", 42)
    file = tmp_path / "how.yaml"
    file.write_text("{colour: bgr, mean: 0.5, std: 0.5}\n")
    result = qdebug.check(model, inputs=folder, preprocess=file)
    assert kinds(result) == {"preprocessing"}
    finding = result.findings[0]
    assert "scale: 1/255, colour: rgb" in finding.message or "colour: rgb, scale" in finding.message
    file.write_text(finding.remedy.partition("holds ")[2].removesuffix("."))
    assert not kinds(qdebug.check(model, inputs=folder, preprocess=file))


def test_confidence_does_not_judge_the_scale_of_a_guess(tmp_path: Path) -> None:
    model = colour_net(tmp_path / "net.onnx")
    folder = in_folders(tmp_path / "pics", 12, classes=False)
    result = qdebug.check(model, inputs=folder)
    assert result.score == "confidence" and "scale-unjudged" in kinds(result, "note")
    assert {v.name: v.judged for v in result.variants}["scale: 1"] is False
    (tmp_path / "how.yaml").write_text("scale: 1/255\n")
    told = qdebug.check(model, inputs=folder, preprocess=tmp_path / "how.yaml")
    assert "scale-unjudged" not in kinds(told, "note")


def test_without_labels_a_network_that_is_unsure_is_suspected(networks: Any) -> None:
    model, data = networks["cnn"]
    result = qdebug.check(model, inputs={"input": data["input"]})
    assert not kinds(result) and result.score == "confidence"
    assert "error" not in {f.severity for f in result.findings}


def test_how_many_samples_a_drop_needs(networks: Any) -> None:
    model, data = networks["cnn"]
    few = qdebug.check(model, inputs=data, max_drop=0.01)
    assert kinds(few) == {"sample-count"} and "500 samples" in few.findings[0].message
    assert not kinds(qdebug.check(model, inputs=data, max_drop=0.1))


def test_a_model_alone(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("MaxPool", ["x"], ["m", "i"], kernel_shape=[2, 2]),
            helper.make_node("Det", ["m"], ["d"]),
            helper.make_node("Conv", ["x", "w"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [value("d", TensorProto.FLOAT, None), value("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.ones((2, 3, 1, 1), np.float32), "w"),
            numpy_helper.from_array(np.ones(3, np.float32), "unused"),
            numpy_helper.from_array(np.zeros(2000, np.int64), "wide"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    result = qdebug.check(tmp_path / "m.onnx")
    assert kinds(result, "warning") == {"tensorrt-operator"} and result.passed
    assert {"unused-initializer", "int64-weights"} <= kinds(result, "note")
    assert result.macs is None and result.inputs[0].meaning == "pictures"
    shaped = qdebug.check(tmp_path / "m.onnx", shape="1x3x10x20")
    assert shaped.macs == 2 * 3 * 10 * 20 and shaped.inputs[0].shape == (1, 3, 10, 20)
    for wrong in ("nothing:1x3x8x8", "x:1x3x8", "x:1x4x8x8"):
        with pytest.raises(qdebug.UsageError) as caught:
            qdebug.check(tmp_path / "m.onnx", shape=wrong)
        assert caught.value.code == "QD-USAGE-SHAPE"


def test_the_chance_of_a_gain() -> None:
    """Against the binomial distribution: of 10 samples that differ, 9 are gained by chance."""
    gains = np.array([1] * 9 + [-1] + [0] * 20)
    assert chance_of_gain(gains) == pytest.approx(11 / 1024)
    assert chance_of_gain(0 * gains) == 1.0


def test_how_sure_a_detector_is() -> None:
    """By the scores of its named classes, whichever axis they are on: YOLO's, or RT-DETR's."""
    rows = np.random.default_rng(0).random((2, 4 + 3, 9))
    rows[:, :4] += 5
    sure = confidence({"y": rows}, 3)
    assert sure == confidence({"y": rows.transpose(0, 2, 1)}, 3)
    assert sure == pytest.approx(rows[:, 4:].max((1, 2)).mean())


def test_gray_pictures_are_tried_with_values_of_one_channel_only() -> None:
    tried = [v.preprocessing for v in of_pictures(Preprocessing(colour="gray"))]
    assert {how.channels for how in tried if how} == {1}
    assert {how.mean for how in tried if how} == {(0.0,), (0.5,)}


def binary_net(path: Path, scale: float | None = None) -> Path:
    """The probability of the second of two classes, [N, 1]; quantized with a scale."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Sigmoid", ["m"], ["y" if scale is None else "p"], "sigmoid"),
    ]
    held = {"w": np.float32([[4.0], [-3.0]])}
    if scale is not None:
        held |= {"scale": np.float32(scale), "zero": np.int8(0)}
        nodes += [
            helper.make_node("QuantizeLinear", ["p", "scale", "zero"], ["codes"], "q"),
            helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["y"], "dq"),
        ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "binary",
        [value("x", TensorProto.FLOAT, ["N", 2])],
        [value("y", TensorProto.FLOAT, ["N", 1])],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def test_a_network_with_one_score_has_two_classes(tmp_path: Path) -> None:
    """Quantized with a range a little wide it reaches 1.004; the page shows what it says."""
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    labels = (4 * x[:, 0] - 3 * x[:, 1] > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    how: Arrays = {"inputs": tmp_path / "data.npz", "metric": "top1"}
    model = binary_net(tmp_path / "net.onnx")
    assert not kinds(qdebug.check(model, **how))
    int8 = binary_net(tmp_path / "int8.onnx", 1.05 / 127)
    page = {"html": tmp_path / "page.html", "effect": "none"}
    task = qdebug.compare(int8, reference=model, **how, **page).metric
    assert task.reference == task.candidate == 1.0


def test_scales_that_are_not_positive(tmp_path: Path) -> None:
    for scale, finds in ((0.0, True), (-0.01, True), (0.01, False)):
        found = kinds(qdebug.check(binary_net(tmp_path / "net.onnx", scale)))
        assert ("invalid-scale" in found) == finds


def test_fp32_runs_once_for_the_samples_and_the_steps_of_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=random.normal(size=(8, 2)).astype(np.float32))
    runs = []
    execute = trials.execute
    monkeypatch.setattr(trials, "execute", lambda *args: runs.append(args[3:]) or execute(*args))
    how: Arrays = {"inputs": tmp_path / "data.npz", "metric": "cosine", "max_drop": 1e-9}
    result = qdebug.check(binary_net(tmp_path / "net.onnx"), **how)
    assert result.samples == 8 and runs == [()]


def test_a_number_that_all_samples_share_is_not_unlike(tmp_path: Path) -> None:
    """Such as a sampling rate that is an input: no deviation in either set."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "rate"], ["y"])],
        "rated",
        [value("x", TensorProto.FLOAT, ["N", 8]), value("rate", TensorProto.FLOAT, [])],
        [value("y", TensorProto.FLOAT, ["N", 8])],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    sets = [
        {"x": random.standard_normal((64, 8)).astype(np.float32), "rate": np.float32(rate)}
        for rate in (16, 16, 8)
    ]
    same = qdebug.check(tmp_path / "m.onnx", inputs=sets[0], calib_data=sets[1])
    assert "unlike-samples" not in kinds(same)
    other = qdebug.check(tmp_path / "m.onnx", inputs=sets[0], calib_data=sets[2])
    assert "unlike-samples" in kinds(other)
