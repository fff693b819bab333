"""`qdebug calibrate`: which samples decide about what, and when a kept calibration is the one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

FLAGS = ("calibrate", "net.onnx", "--calib-data", "calib.npz", "--method", "minmax")


def result(desk: Any, *flags: str) -> Any:
    done = desk.run(*FLAGS, *flags, "--no-progress", "--json", "-")
    assert done.code == 0, done.err
    return done.json


def test_held_out_samples_judge_and_take_no_part(desk: Any, pictures: Any, cnn: Any) -> None:
    calib, others = pictures(8, seed=2), pictures(12, seed=3)
    others[4:7] *= 2
    desk.data("others.npz", x=others)
    found = result(desk, "--holdout", "others.npz")
    largest = np.abs(calib).max()
    tensors = found["methods"]["minmax"]["tensors"]
    assert tensors["x"]["amax"] == largest
    proto = cnn()
    proto.graph.output.extend(onnx.ValueInfoProto(name=t) for t in ("r1", "f"))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    seen = dict(zip(("r1", "f"), session.run(["r1", "f"], {"x": others}), strict=True))
    for tensor, values in {"x": others, **seen}.items():
        beyond = np.mean(np.abs(values) > tensors[tensor]["amax"])
        assert beyond > 0
        assert tensors[tensor]["clipped_fraction"] == pytest.approx(beyond, rel=0.1), tensor
    excess = {e["tensor"]: e for e in found["coverage"]["held_out"]}["x"]
    assert excess["ratio"] == pytest.approx(np.abs(others).max() / largest)
    share = np.mean(np.abs(others).reshape(12, -1).max(axis=1) > largest)
    assert excess["samples_beyond"] == share
    growth = found["coverage"]["growth"]
    assert (growth["samples"], growth["median"][-1]) == ([1, 2, 4, 8], 1.0)


def test_a_kept_calibration_is_that_of_its_samples_and_model(desk: Any, cnn: Any) -> None:
    first = result(desk, "--holdout-share", "0.25")
    assert not first["from_cache"]
    other = result(desk, "--holdout-share", "0.5")
    assert not other["from_cache"]
    assert other["calibration_samples"] < first["calibration_samples"]
    assert result(desk, "--holdout-share", "0.25") == first | {"from_cache": True}
    assert not result(desk, "--holdout-share", "0.25", "--no-cache")["from_cache"]
    changed = cnn()
    weight = next(t for t in changed.graph.initializer if t.name == "w1")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), "w1"))
    desk.save(changed)
    doubled = result(desk, "--holdout-share", "0.25")
    assert not doubled["from_cache"]
    amax = [run["methods"]["minmax"]["tensors"]["r1"]["amax"] for run in (first, doubled)]
    assert amax[1] > 1.5 * amax[0]


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_methods_are_judged_in_the_precisions_of_the_comparison(desk: Any, rest: str) -> None:
    flags = (
        "--fallback-precision",
        rest,
        "--calib-data",
        "calib.npz",
        "--method",
        "minmax",
        "--no-cache",
    )
    compared = desk.result(*flags)["outputs"][0]["sqnr_db"]
    found = result(desk, "--holdout", "data.npz", "--fallback-precision", rest)["methods"][
        "minmax"
    ]["sqnr_db"]
    assert found == pytest.approx(compared, abs=0.01)
