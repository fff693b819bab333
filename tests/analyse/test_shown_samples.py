"""What the run file shows of the samples that lose most by the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

import qdebug
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
