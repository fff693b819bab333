"""Where FP16 breaks, and the parts of the pipeline that are easier to test alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.analyse.run_file import sample_part
from qdebug.backends.sizing import capture_groups
from qdebug.commands.compare.command import compare
from qdebug.config.compare import CompareSettings
from qdebug.results.compare import CompareResult
from qdebug.types import Progress


def save(
    folder: Path, nodes: list[onnx.NodeProto], weights: Mapping[str, Any], width: int = 8
) -> str:
    """A model from x [N, width] to y [N, width]."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ("N", width))

    initializers = [numpy_helper.from_array(v, n) for n, v in weights.items()]
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = folder / "net.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    )
    return str(path)


def run(folder: Path, model: str, **changes: Any) -> CompareResult:
    data = folder / "data.npz"
    if not data.exists():
        x = np.random.default_rng(0).uniform(0.5, 1, size=(10, 8)).astype(np.float32)
        np.savez(data, x=x)
    return compare(CompareSettings(model, str(data), **changes))


@pytest.mark.parametrize("where", [0, 2, 4])
def test_fp16_overflow_is_found_at_its_layer(tmp_path: Path, where: int) -> None:
    """One of five layers makes 1e5 of 1, the next scales it back: FP32 is fine, FP16 is not."""
    rng = np.random.default_rng(1)
    nodes, weights, tensor = [], {}, "x"
    for i in range(5):
        factor = 1e5 if i == where else 1e-5 if i == where + 1 else 1.0
        weights[f"w{i}"] = (factor * (np.eye(8) + 0.01 * rng.uniform(size=(8, 8)))).astype(
            np.float32
        )
        if i == where:  # no weight of its own is beyond FP16
            weights[f"w{i}"] = np.full((8, 8), 3e4, np.float32)
        output = "y" if i == 4 else f"t{i}"
        nodes.append(helper.make_node("MatMul", [tensor, f"w{i}"], [output], f"fc{i}"))
        tensor = output
    result = run(tmp_path, save(tmp_path, nodes, weights), precision="fp16")
    first = result.layers[0]
    assert (first.name, first.metrics.inf_count) == (f"fc{where}", 80)
    assert first.local_sqnr_db is not None and math.isnan(first.local_sqnr_db)
    assert math.isnan(first.metrics.sqnr_db)
    assert result.first_divergence is not None
    assert result.first_divergence.layer == f"fc{where}"
    others = [x for x in result.layers if x.name != first.name]
    for layer in others:  # the next one cannot even read what the reference feeds it
        if layer.name != f"fc{where + 1}":
            assert layer.local_sqnr_db is not None and layer.local_sqnr_db > 30
    behind = [x for x in others if x.name > first.name]
    assert all(x.metrics.nan_count + x.metrics.inf_count == 80 for x in behind)


def masked(*, shown: bool) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Scores that are masked with float32's lowest value, as exporters write attention masks; with
    `shown` the masked scores are an output themselves."""
    nodes = [
        helper.make_node("Less", ["x", "half"], ["hidden"], "less"),
        helper.make_node("Where", ["hidden", "lowest", "zero"], ["mask"], "where"),
        helper.make_node("MatMul", ["x", "w"], ["scores"], "scores"),
        helper.make_node("Sub", ["scores", "zero"], ["moved"], "sub"),
        helper.make_node("Add", ["moved", "mask"], ["y" if shown else "masked"], "add"),
    ]
    if not shown:
        nodes.append(helper.make_node("Softmax", ["masked"], ["y"], "softmax"))
    weights = {
        "half": np.float32(0.75),
        "lowest": np.float32(np.finfo(np.float32).min),
        "zero": np.float32(0.25),
        "w": np.eye(8, dtype=np.float32),
    }
    return nodes, weights


def test_a_mask_of_inf_ranks_by_what_it_does(tmp_path: Path) -> None:
    """FP16 turns the mask into -Inf: Softmax makes the same 0 of it."""
    result = run(tmp_path, save(tmp_path, *masked(shown=False)), precision="fp16")
    ranks = {x.name: x for x in result.layers}
    softmax, where, add = ranks["softmax"], ranks["where"], ranks["add"]
    assert softmax.local_sqnr_db is not None and softmax.local_sqnr_db > 60
    for layer in (where, add):
        assert layer.local_sqnr_db is not None and math.isnan(layer.local_sqnr_db)
        assert layer.harmless and layer.readers_sqnr_db == softmax.local_sqnr_db
        assert layer.rank > softmax.rank
        (cause,) = layer.causes
        assert cause.label == "fp16-overflow" and "harmless" in cause.evidence
    assert result.first_divergence is None
    (note,) = result.notes
    assert note.startswith("2 layers overflow") and "harmless" in note


def test_a_mask_of_inf_that_is_an_output_is_the_worst(tmp_path: Path) -> None:
    result = run(tmp_path, save(tmp_path, *masked(shown=True)), precision="fp16")
    assert {x.name for x in result.layers[:2]} == {"where", "add"}
    assert not any(x.harmless for x in result.layers)
    assert result.first_divergence is not None and result.first_divergence.layer == "where"


def test_an_overflow_that_its_reader_shows_ranks_by_the_reader(tmp_path: Path) -> None:
    """The inverse of Inf is 0: finite, and all wrong."""
    nodes = [
        helper.make_node("Mul", ["x", "much"], ["large"], "mul"),
        helper.make_node("Reciprocal", ["large"], ["inverse"], "inverse"),
        helper.make_node("Mul", ["inverse", "some"], ["y"], "back"),
    ]
    model = save(tmp_path, nodes, {"much": np.float32(6e4), "some": np.float32(1e4)})
    data = np.random.default_rng(0).uniform(2, 4, size=(10, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=data)
    result = run(tmp_path, model, precision="fp16")
    layers = {x.name: x for x in result.layers}
    assert (
        layers["mul"].readers_sqnr_db
        == layers["inverse"].local_sqnr_db
        == pytest.approx(0, abs=1e-6)
    )
    assert not layers["mul"].harmless and layers["mul"].rank <= 2
    assert result.first_divergence is not None and result.first_divergence.layer == "mul"


def test_what_stays_in_fp32_unasked_is_said(tmp_path: Path) -> None:
    """Behind an operator that ONNX does not define types are unknown; bodies are not lowered."""
    inner = helper.make_tensor_value_info("t", TensorProto.FLOAT, None)
    body = helper.make_graph(
        [helper.make_node("Neg", ["n"], ["u"]), helper.make_node("Neg", ["u"], ["t"])],
        *("body", [], [inner]),
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("ReduceMax", ["n"], ["m"], "max", keepdims=0),
        helper.make_node("Less", ["m", "zero"], ["c"], "less"),
        helper.make_node("If", ["c"], ["i"], "if", then_branch=body, else_branch=body),
        helper.make_node("QuickGelu", ["i"], ["g"], "gelu", domain="com.microsoft"),
        helper.make_node("Add", ["n", "g"], ["s"], "add"),
        helper.make_node("Mul", ["g", "s"], ["y"], "mul"),
    ]
    model = save(tmp_path, nodes, {"zero": np.float32(-0.55)})  # some samples are below
    result = run(tmp_path, model, precision="fp16")
    precisions = {x.name: str(x.precision) for x in result.layers}
    assert {n for n, p in precisions.items() if p == "fp32"} == {"if", "gelu", "add", "mul"}
    bodies, foreign, behind = result.notes
    assert foreign.startswith("1 layer requested in FP16 stays") and "QuickGelu" in foreign
    assert behind.startswith("2 layers requested") and "com.microsoft.QuickGelu" in behind
    assert "If 'if'" in bodies and "4 nodes" in bodies
    assert run(tmp_path, model, precision="fp32").notes == (bodies,)


def test_progress_counts_the_samples(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")]
    model = save(tmp_path, nodes, {"w": np.eye(8, dtype=np.float32)})
    np.savez(tmp_path / "data.npz", x=np.ones((10, 8), np.float32))
    seen: list[Progress] = []
    settings = CompareSettings(model, str(tmp_path / "data.npz"), batch_size=3)
    compare(settings, seen.append)
    steps = [(s.stage, s.done, s.total) for s in seen if s.stage == "compare"]
    assert steps == [("compare", n, 10) for n in (3, 6, 9, 10)]
    assert any(s.stage == "calibrate" and s.done == s.total for s in seen)


def test_capture_groups() -> None:
    sizes = {"a": 10, "b": 10, "c": 10, "d": 10}
    assert capture_groups(list(sizes), sizes, 300) == [["a", "b", "c", "d"]]
    assert capture_groups(list(sizes), sizes, 20) == [["a", "b"], ["c", "d"]]
    assert capture_groups(list(sizes), sizes, 10) == [["a"], ["b"], ["c"], ["d"]]
    assert capture_groups(list(sizes), sizes, 1) == [["a"], ["b"], ["c"], ["d"]]
    assert capture_groups([], {}, 1) == []


@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_of_samples_make_the_whole(count: int) -> None:
    whole = np.arange(24).reshape(4, 6)
    parts = [sample_part(whole, i, count) for i in range(count)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_what_cannot_be_split_belongs_to_every_sample() -> None:
    for array in (np.float32(3).reshape(()), np.arange(5)):
        for i in range(2):
            np.testing.assert_array_equal(sample_part(array, i, 2), array)
