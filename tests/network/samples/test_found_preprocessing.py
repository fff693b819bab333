"""How pictures become inputs, read in the files of other tools and in the model's metadata."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from qdebug.errors import SampleError
from qdebug.network.preprocessing import (
    PRESETS,
    Preprocessing,
    as_setting,
    given_preprocessing,
)
from qdebug.network.samples.found_preprocessing import find_preprocessing, fitted_preprocessing
from qdebug.network.samplespec import SampleSpec
from qdebug.types import TensorSpec

INPUT = TensorSpec("x", ("N", 3, "H", "W"), np.dtype(np.float32))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "net.onnx")


def save_model(path: Path, classes: int = 5, **metadata: str) -> Path:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [value("y", TensorProto.FLOAT, ["N", 3, "H", classes])],
    )
    proto = helper.make_model(graph)
    helper.set_model_props(proto, metadata)
    onnx.save(proto, path)
    return path


def found(model: Path, given: str | None = None) -> Preprocessing:
    return find_preprocessing(str(model), given, INPUT)


def test_a_guess_is_called_one(model: Path) -> None:
    assert found(model) == Preprocessing() and found(model).guess
    assert not found(model, "yolo").guess


def test_hugging_face(model: Path) -> None:
    (model.parent / "preprocessor_config.json").write_text(
        json.dumps(
            {
                "do_resize": True,
                "size": {"shortest_edge": 256},
                "resample": 3,
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "do_rescale": True,
                "rescale_factor": 1 / 255,
                "do_normalize": True,
                "image_mean": MEAN,
                "image_std": STD,
            }
        )
    )
    expected = Preprocessing(
        *("shortest-edge", (224, 224)),
        shortest_edge=256,
        resampling="pillow-bicubic",
        mean=MEAN,
        std=STD,
    )
    assert found(model) == expected and not found(model).guess
    assert found(model).source.endswith("preprocessor_config.json")
    inner = model.parent / "onnx"
    inner.mkdir()
    assert found(save_model(inner / "model.onnx")) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"size": {"height": 32, "width": 64}}, ("exact", (32, 64))),
        ({"size": 64, "crop_pct": 0.875}, ("shortest-edge", (64, 64))),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}}, ("letterbox", None)),
        ({"do_resize": False}, ("none", None)),
    ],
)
def test_sizes_of_hugging_face(model: Path, config: Any, expected: Any) -> None:
    written = {"do_normalize": False, "do_flip_channel_order": True} | config
    (model.parent / "preprocessor_config.json").write_text(json.dumps(written))
    how = found(model)
    assert ((how.resize, how.size), how.colour, how.mean) == (expected, "bgr", (0.0,))


def test_timm(model: Path) -> None:
    cfg = {
        "input_size": [3, 288, 288],
        "interpolation": "bicubic",
        "crop_pct": 0.95,
        "mean": MEAN,
        "std": STD,
    }
    (model.parent / "config.json").write_text(json.dumps({"pretrained_cfg": cfg}))
    how = found(model)
    assert (how.size, how.edge, how.resampling) == ((288, 288), 303, "pillow-bicubic")


def test_nvinfer(model: Path) -> None:
    text = (
        "[property]\nonnx-file=net.onnx\nnet-scale-factor=0.0039215697906911373\n"
        "offsets=123.675;116.28;103.53\nmodel-color-format=1\nmaintain-aspect-ratio=1\n"
        "symmetric-padding=1\n"
    )
    (model.parent / "config_infer_primary.txt").write_text(text)
    how = found(model)
    assert (how.resize, how.pad, how.pad_value, how.colour) == ("letterbox", "both", 0.0, "bgr")
    assert how.mean == pytest.approx((0.485, 0.456, 0.406), abs=1e-5)
    (model.parent / "config_infer_primary.txt").write_text(text.replace("net.onnx", "other.onnx"))
    assert found(model).guess


def test_openvino(model: Path) -> None:
    (model.parent / "net.xml").write_text(
        '<net><rt_info><model_info><mean_values value="123.675 116.28 103.53"/>'
        '<scale_values value="58.395 57.12 57.375"/><reverse_input_channels value="True"/>'
        '<resize_type value="fit_to_window_letterbox"/><pad_value value="114"/>'
        '<layout value="NCHW"/></model_info></rt_info></net>'
    )
    how = found(model)
    assert (how.resize, how.pad_value, how.colour) == ("letterbox", 114.0, "rgb")
    assert (how.scale, how.std) == (1.0, (58.395, 57.12, 57.375))


def test_rknn_and_triton(model: Path) -> None:
    (model.parent / "config.pbtxt").write_text('input [{ name: "x" format: FORMAT_NHWC }]')
    assert found(model).layout == "nhwc" and found(model).guess
    (model.parent / "net.yml").write_text(
        "models:\n  model_file_path: ./net.onnx\n  configs:\n    mean_values: [[0, 0, 0]]\n"
        "    std_values: [[255, 255, 255]]\n    quant_img_RGB2BGR: true\n"
    )
    how = found(model)
    assert (how.std, how.colour) == ((255.0, 255.0, 255.0), "bgr")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("preprocessor_config.json", "[]", "list"),
        ("preprocessor_config.json", '{"image_mean": [0, 0, 0], "image_std": [0, 0, 0]}', "std is"),
        (
            "config.json",
            '{"pretrained_cfg": {"input_size": [3, 8, 8], "interpolation": "random", '
            '"mean": [0, 0, 0], "std": [1, 1, 1]}}',
            "random",
        ),
        ("config_a.txt", "[property]\nnet-scale-factor=0\n", "scale is 0"),
        (
            "net.xml",
            '<n><rt_info><model_info><resize_type value="x"/></model_info></rt_info></n>',
            "x",
        ),
    ],
)
def test_what_is_not_understood_is_refused(model: Path, name: str, text: str, says: str) -> None:
    (model.parent / name).write_text(text)
    with pytest.raises(SampleError, match=says) as caught:
        found(model)
    assert caught.value.code == "QD-SAMPLES-PREPROCESSING" and name in caught.value.message


def test_one_value_for_all_channels_is_for_gray_ones_too(model: Path) -> None:
    """But not three values, of which it is not known which one would be the gray one's."""
    gray = TensorSpec("x", ("N", 1, 8, 8), np.dtype(np.float32))
    file = model.parent / "how.yaml"
    file.write_text("mean: 0.5\nstd: 0.5\n")
    spec = SampleSpec("pics", preprocess=str(file))
    assert fitted_preprocessing(spec, gray, [(8, 8)]).colour == "gray"
    file.write_text("mean: 0.5\nstd: [1, 2, 3]\n")
    with pytest.raises(SampleError, match="3 channels"):
        fitted_preprocessing(spec, gray, [(8, 8)])


def test_ultralytics(tmp_path: Path) -> None:
    said = {"task": "detect", "imgsz": "[96, 128]", "names": "{0: 'a'}", "version": "8.3.1"}
    how = found(save_model(tmp_path / "net.onnx", **said))
    assert (how.resize, how.size, how.pad_value) == ("letterbox", (96, 128), 114.0)
    assert how.resampling == PRESETS["yolo"].resampling and "Ultralytics 8.3.1" in how.source
    how = found(save_model(tmp_path / "net.onnx", **{**said, "task": "classify"}))
    assert (how.resize, how.edge) == ("shortest-edge", 96)


def test_paddleocr(tmp_path: Path) -> None:
    how = found(save_model(tmp_path / "rec.onnx", 5, character="a\nb\nc"))
    assert (how.colour, how.mean, how.pad) == ("bgr", (0.5,), "end")
    assert found(save_model(tmp_path / "layout.onnx", 9, character="a\nb\nc")).guess


@pytest.mark.parametrize(
    ("shape", "sizes", "expected"),
    [
        (("N", 3, 64, 32), [(9, 9)], (64, 32)),
        (("N", 3, "H", "W"), [(90, 100)] * 2, (96, 128)),
        (("N", 3, "H", "W"), [(90, 100), (90, 90)], (640, 640)),
        (("N", 3, 48, "W"), [(20, 50), (20, 130)], (48, 320)),
        (("N", "H", "W", 1), [(32, 32)], (32, 32)),
    ],
)
def test_the_size_of_free_axes(shape: Any, sizes: Any, expected: Any) -> None:
    taken = TensorSpec("x", shape, np.dtype(np.float32))
    how = fitted_preprocessing(SampleSpec("pics"), taken, sizes)
    assert how.size == expected and how.guess
    assert how.colour == ("gray" if 1 in shape else "rgb")


def test_classes_are_numbered_as_in_the_model(tmp_path: Path) -> None:
    from PIL import Image

    names = {"task": "classify", "imgsz": "[8, 8]", "names": "{0: 'dog', 1: 'x', 2: 'cat'}"}
    path = save_model(tmp_path / "net.onnx", **names)
    for name in ("cat", "dog"):
        (tmp_path / "pics" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "pics" / name / "a.png")
    samples = SampleSpec(str(tmp_path / "pics"), model=str(path)).open([INPUT])
    assert samples.extras["labels"].tolist() == [2, 0]


@given(
    st.sampled_from(list(PRESETS)),
    st.fixed_dictionaries(
        {},
        optional={
            "resize": st.sampled_from(["exact", "shortest-edge", "letterbox"]),
            "pad": st.sampled_from(["both", "end"]),
            "colour": st.sampled_from(["rgb", "bgr"]),
            "scale": st.sampled_from([1.0, 1 / 255, 0.017]),
            "mean": st.sampled_from([(0.0,), (0.485, 0.456, 0.406)]),
            "std": st.sampled_from([(1.0,), (0.229, 0.224, 0.225)]),
            "crop": st.floats(0.5, 1),
        },
    ),
    st.sampled_from([None, (320, 416)]),
)
def test_a_preprocessing_is_told_as_a_setting(
    tmp_path_factory: Any, preset: str, changes: Any, size: Any
) -> None:
    """Which says the same when it is read, however the picture is resized."""
    how = replace(PRESETS[preset], **changes, size=size or PRESETS[preset].size)
    setting, holds = as_setting(how, sized=True)
    if holds:
        file = tmp_path_factory.mktemp("how") / setting
        file.write_text(holds)
        setting = str(file)
    told = given_preprocessing(setting)
    assert (told.told(), told.size, told.scale) == (how.told(), how.size, how.scale)
    if how.resize == "letterbox":
        assert (told.pad, told.pad_value) == (how.pad, how.pad_value)
    if how.resize == "shortest-edge":
        assert (told.crop, told.shortest_edge) == (pytest.approx(how.crop), how.shortest_edge)
