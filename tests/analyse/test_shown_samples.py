"""What the run file shows of the samples that lose most by the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused
from scipy.io import wavfile

import qdebug
from qdebug.analyse.shown_samples import _chosen
from qdebug.store.reader import RunReader

DATA = Path(__file__).parents[2] / "calib_data"


def shown(run: Path, model: Any, **settings: Any) -> list[dict[str, Any]]:
    result = qdebug.compare(model, output=run, effect="none", local_samples=1, **settings)
    assert not result.failed
    with RunReader(run) as reader:
        assert [s["sample"] for s in reader.shown] == [w.sample for w in result.metric.worst[:8]]
        return reader.shown


def network(operator: str, weight: tuple[int, ...], given: list[Any], gives: list[Any]) -> Any:
    values = np.random.default_rng(0).normal(size=weight).astype(np.float32)
    node = helper.make_node(operator, ["x", "w"], ["y"], "layer")
    tensor = helper.make_tensor_value_info
    x, y = (tensor(n, TensorProto.FLOAT, s) for n, s in (("x", given), ("y", gives)))
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(values, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_boxes_of_the_truth_and_of_both_runs(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model, reference = (DATA / f"digits_detector{end}.onnx" for end in ("_int8", ""))
    given = {"inputs": DATA / "scenes" / "test", "samples": 12, "metric": "box-f1"}
    found = shown(tmp_path / "run.h5", model, reference=reference, **given)
    counts = dict.fromkeys(("truth", "FP32", "INT8"), 0)
    for sample in found:
        assert sample["picture"].startswith("data:image/jpeg;base64,")
        assert (sample["height"], sample["width"]) == (96, 96)
        assert [view["of"] for view in sample["views"]] == list(counts)
        for view in sample["views"]:
            right = sum(box["right"] for box in view["boxes"])
            counts[view["of"]] += right
            assert all((box["score"] is None) == (view["of"] == "truth") for box in view["boxes"])
    assert counts["truth"] == counts["INT8"] > 4
    # One scale for boxes and scores: of these, one step is 0.53.
    scores = {b["score"] for s in found for b in s["views"][2]["boxes"]}
    assert len(scores) <= 2


def test_boxes_with_their_masks(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    pytest.importorskip("faster_coco_eval")
    function = tmp_path / "read.py"
    function.write_text(
        "import numpy as np\n"
        "def masks(outputs):\n"
        "    logits = next(iter(outputs.values()))\n"
        "    boxes = np.tile(np.array([0.0, 0, 12, 12]), (*logits.shape[:2], 1))\n"
        "    return boxes, logits.max((2, 3))[..., None], logits > 0.5\n"
    )
    model = network("Conv", (3, 3, 1, 1), ["N", 3, 12, 12], ["N", 3, 12, 12])
    pictures = {"x": np.random.default_rng(1).random((6, 3, 12, 12)).astype(np.float32)}
    settings = {"metric": "map50-to-reference", "decode": f"{function}:masks"}
    found = shown(tmp_path / "run.h5", model, inputs=pictures, **settings)
    for view in found[0]["views"]:
        assert view["boxes"] and view["mask"].startswith("data:image/png;")


def test_what_a_classifier_says(tmp_path: Path) -> None:
    inputs, calib = DATA / "digits_holdout.npz", DATA / "digits_calib.npz"
    given = {"inputs": inputs, "calib_data": calib, "samples": 64, "weights": "per-tensor"}
    found = shown(tmp_path / "run.h5", DATA / "digits_cnn.onnx", metric="top1", **given)
    truth, reference, candidate = found[0]["views"]
    assert truth["says"] == reference["says"].split()[0] != candidate["says"].split()[0]
    assert truth["boxes"] is None and not truth["mask"]


def test_text_and_masks(tmp_path: Path) -> None:
    pytest.importorskip("jiwer")
    random = np.random.default_rng(1)
    reader = network("MatMul", (6, 5), ["N", 9, 6], ["N", 9, 5])
    lines = {"x": random.normal(size=(24, 9, 6)).astype(np.float32)}
    found = shown(tmp_path / "text.h5", reader, inputs=lines, metric="cer-to-reference")
    assert [view["of"] for view in found[0]["views"]] == ["FP32", "INT8"]
    assert all(view["says"] for view in found[0]["views"]) and not found[0]["picture"]
    pytest.importorskip("PIL")
    segmenter = network("Conv", (3, 3, 1, 1), ["N", 3, 12, 12], ["N", 3, 12, 12])
    pictures = {"x": random.random((6, 3, 12, 12)).astype(np.float32)}
    found = shown(tmp_path / "mask.h5", segmenter, inputs=pictures, metric="miou-to-reference")
    assert all(v["mask"].startswith("data:image/png;") for v in found[0]["views"])


def test_what_a_network_reads_and_what_is_nearest(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = ["good", "bad", "dull", "fine", "great", "poor"]
    kind = tokenizers.models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="good")
    tokenizers.Tokenizer(kind).save(str(tmp_path / "tokenizer.json"))
    table = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], "lookup"),
        helper.make_node("ReduceMean", ["rows"], ["mean"], "mean", axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["y"], "layer"),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["N", 1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])
    weights = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.eye(8, dtype="f4"), "w"),
    ]
    graph = helper.make_graph(nodes, "g", [ids], [y], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, model := tmp_path / "model.onnx")
    (tmp_path / "texts.txt").write_text("\n".join(words))
    given = {"texts": tmp_path / "texts.txt", "ids": {"input_ids": np.arange(6)[:, None]}}
    for name, inputs in given.items():  # as they were, and read back
        found = shown(tmp_path / f"{name}.h5", model, inputs=inputs, metric="cosine")
        for sample in found:
            assert sample["text"] == words[sample["sample"]]
            nearest = sample["views"][0]["says"]
            assert nearest.startswith("nearest: sample ")
            assert nearest.endswith(f": {words[int(nearest.split()[2].strip(','))]}")


def test_what_a_network_hears_and_its_values(tmp_path: Path) -> None:
    hearing = network("MatMul", (800, 2), ["N", 800], ["N", 2])
    onnx.save(hearing, tmp_path / "model.onnx")
    (folder := tmp_path / "wav").mkdir()
    for k in range(3):
        values = np.sin(np.arange(1000) * (k + 1) / 9).astype(np.float32)
        wavfile.write(folder / f"{k}.wav", 8000, values)
    found = shown(tmp_path / "run.h5", tmp_path / "model.onnx", inputs=folder, metric="cosine")
    sound = found[0]["sound"]
    assert sound["rate"] == sound["heard_rate"] == 8000
    assert sound["seconds"] == sound["heard_seconds"] == 0.1  # as the network hears it
    assert len(found[0]["views"][0]["says"].split(", ")) == 2 and not found[0]["picture"]


def test_the_noisiest_that_fail_alike_are_shown_without_a_metric(tmp_path: Path) -> None:
    digits = np.load(DATA / "digits_holdout.npz")["input"][:32].copy()
    digits[1::2] *= 0.3
    calib = {"input": 0.3 * np.load(DATA / "digits_calib.npz")["input"][:40]}
    model, run = DATA / "digits_cnn.onnx", tmp_path / "run.h5"
    result = qdebug.compare(
        model, inputs={"input": digits}, calib_data=calib, effect="none", output=run
    )
    with RunReader(run) as reader:
        found = reader.shown
    assert result.clusters is not None and len(found) == 8
    alike = result.clusters.each[0].samples
    assert all(s["lost"] is None and s["sample"] in alike for s in found)
    assert [s["sqnr_db"] for s in found] == sorted(s["sqnr_db"] for s in found)


def test_some_of_each_cluster_are_among_them() -> None:
    assert _chosen(range(20), [(15, 16, 17), (2, 3)]) == [0, 1, 2, 3, 4, 5, 15, 16]


@pytest.mark.parametrize("settings", [{}, {"metric": "agreement", "keep": "none"}])
def test_a_run_that_shows_none(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = network("MatMul", (6, 5), ["N", 6], ["N", 5])
    inputs = {"x": np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)}
    qdebug.compare(model, inputs=inputs, output=tmp_path / "run.h5", **settings)
    with RunReader(tmp_path / "run.h5") as reader:
        assert reader.shown == []


def test_samples_that_are_damaged(tmp_path: Path) -> None:
    run = tmp_path / "run.h5"
    model = network("MatMul", (6, 5), ["N", 6], ["N", 5])
    qdebug.compare(model, inputs={"x": np.ones((2, 6), np.float32)}, output=run)
    for text in ("[{}]", "[1]", "{"):
        with h5py.File(run, "a") as file:
            file.pop("shown", None)
            file["shown"] = np.frombuffer(text.encode(), np.uint8)
        with refused("QD-STORE-DAMAGED", "the worst samples"):
            qdebug.report(run, output=tmp_path / "page.html")
