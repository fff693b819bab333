"""Every command on networks of 2 to 5 axes whose samples differ in size, also from those that
calibrate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_flow import model_of, value, weights
from varying import CASES, Case, Feed, node

import qdebug

Array = np.ndarray[Any, Any]


def run(proto: onnx.ModelProto, feeds: list[Feed], tensors: list[str]) -> dict[str, list[Array]]:
    """`tensors` of each feed, by ONNX Runtime alone and as the model is written."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    present = {v.name for v in proto.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=t) for t in tensors if t not in present)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        shown.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found = [session.run(tensors, feed) for feed in feeds]
    return {name: [one[i] for one in found] for i, name in enumerate(tensors)}


def sqnr_db(reference: list[Array], found: list[Array]) -> float:
    want, got = (np.concatenate([np.ravel(a).astype(float) for a in x]) for x in (reference, found))
    return float(10 * np.log10(np.sum(want**2) / np.sum((want - got) ** 2)))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def test_every_command(case: Case, tmp_path: Path) -> None:
    feeds, calibration = case.feeds(case.sizes, 0), case.feeds(case.calib_sizes, 1)
    plan, kept = tmp_path / "plan.yaml", tmp_path / "run.h5"
    result = qdebug.compare(
        case.proto, inputs=feeds, calib_data=calibration, save_plan=plan, output=kept,
        keep="worst:3", effect="exact",
    )  # fmt: skip
    assert {layer.name for layer in result.layers if layer.precision == "int8"} == case.int8
    # The figure is that of the exported model, on all values of all samples, whatever their sizes.
    onnx.save(case.proto, tmp_path / "net.onnx")
    exported = tmp_path / "qdq.onnx"
    qdebug.export(qdebug.load_run(kept).plan, model=case.proto, to="onnx", output=exported)
    output = result.outputs[0]
    reference = run(case.proto, feeds, [output.name])[output.name]
    candidate = run(onnx.load(exported), feeds, [output.name])[output.name]
    assert output.metrics.sqnr_db == pytest.approx(sqnr_db(reference, candidate), abs=0.1)

    calibrated = qdebug.calibrate(case.proto, calib_data=calibration, holdout=feeds,
                                  method=["minmax", "entropy"])  # fmt: skip
    ranges = calibrated.methods["minmax"].ranges
    inputs = {name for feed in calibration for name in feed}
    inside = run(case.proto, calibration, [t for t in ranges if t not in inputs])
    for name, entry in ranges.items():
        arrays = inside.get(name) or [feed[name] for feed in calibration]
        assert entry.amax == pytest.approx(max(float(np.abs(a).max()) for a in arrays), rel=1e-5)

    found = qdebug.ranges(case.proto, calib_data=feeds, holdout=calibration)
    assert {t.name for t in found.tensors} >= set(inside)
    searched = qdebug.bisect(
        case.proto, inputs=feeds, calib_data=calibration, target="output.sqnr_db>=60",
        max_evaluations=6,
    )  # fmt: skip
    assert searched.candidates == len(case.int8)
    qdebug.report(kept, output=tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 0


def test_repair_and_engines(case: Case) -> None:
    feeds, calibration = case.feeds(case.sizes, 0), case.feeds(case.calib_sizes, 1)
    repaired = qdebug.repair(case.proto, calib_data=calibration, inputs=feeds)
    assert repaired.to_dict()["schema"]
    deployed = qdebug.compare(case.proto, inputs=feeds, backend="onnxruntime")
    assert deployed.engine is not None
    half = qdebug.compare(case.proto, inputs=feeds, precision="fp16")
    assert half.outputs[0].metrics.sqnr_db > 40


def test_the_same_from_files(tmp_path: Path) -> None:
    """A folder with a file for each sample."""
    case = CASES["attention"]()
    feeds = case.feeds(case.sizes, 0)
    for number, feed in enumerate(feeds):
        np.savez(tmp_path / f"{number}.npz", **feed)
    given, read = (qdebug.compare(case.proto, inputs=data) for data in (feeds, tmp_path))
    assert read.outputs == given.outputs and read.samples == len(feeds)


def test_one_answer_for_all_rows(tmp_path: Path) -> None:
    """The leading axis is time, and the output has the classes of the whole: a feed is a sample,
    with one label, and the metric sees one answer of it."""
    nodes = [
        node("Gemm", ["x", "w"], ["h"], "fc"),
        node("ReduceMean", ["h"], ["y"], "mean", axes=[0], keepdims=0),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", [value("x", ["time", 6])], [value("y", ["classes"])], weights(0, w=(6, 4))
    )
    proto, rng = model_of(graph, 17), np.random.default_rng(0)
    feeds: list[Feed] = [{"x": rng.normal(size=(n, 6)).astype(np.float32)} for n in (3, 5, 2) * 8]
    answers = np.stack(run(proto, feeds, ["y"])["y"])
    labelled = [
        {**f, "labels": a.argmax(keepdims=True)} for f, a in zip(feeds, answers, strict=True)
    ]
    labelled[0]["labels"] = labelled[0]["labels"] + 1
    result = qdebug.compare(proto, inputs=labelled, metric="top1", framework={"y": answers})
    assert result.samples == len(feeds)
    assert result.metric is not None and result.metric.reference == pytest.approx(23 / 24)
    assert result.framework is not None and result.framework.agrees
