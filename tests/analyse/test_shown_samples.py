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


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    model, reference = (DATA / f"digits_detector{end}.onnx" for end in ("_int8", ""))
    given = {"inputs": DATA / "scenes" / "test", "samples": 12, "metric": "box-f1"}
    found = shown(tmp_path / "run.h5", model, reference=reference, **given)
    assert all(sample["picture"].startswith("data:image/jpeg;base64,") for sample in found)
    assert all(sample["lost"] > 0 for sample in found[:1])


def test_what_a_network_reads(tmp_path: Path) -> None:
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


def test_what_a_network_hears(tmp_path: Path) -> None:
    hearing = network("MatMul", (800, 2), ["N", 800], ["N", 2])
    onnx.save(hearing, tmp_path / "model.onnx")
    (folder := tmp_path / "wav").mkdir()
    for k in range(3):
        values = np.sin(np.arange(1000) * (k + 1) / 9).astype(np.float32)
        wavfile.write(folder / f"{k}.wav", 8000, values)
    found = shown(tmp_path / "run.h5", tmp_path / "model.onnx", inputs=folder, metric="cosine")
    sound = found[0]["sound"]
    assert sound["url"].startswith("data:audio/wav;")
    assert sound["seconds"] == sound["heard_seconds"] == 0.1  # as the network hears it
    assert not found[0]["picture"]


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
