"""`ranges`, from Python: numbers against numpy, from a model and from a run file."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.registry import default_calibrators
from qdebug.commands.compare.command import compare
from qdebug.commands.ranges import RangesSettings, ranges
from qdebug.config.compare import CompareSettings
from qdebug.errors import UsageError
from qdebug.results.orders import ORDERS
from qdebug.results.ranges import TensorDynamics, even_bins, octaves

WEIGHT = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], np.float32)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str], str]:
    """net.onnx (out = relu(x @ WEIGHT), hidden h), calib.npz with an odd sample, others.npz."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["h"], "mm"), node("Relu", ["h"], ["out"], "relu")]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["N", 2])],
        [value("out", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "net.onnx")
    rng = np.random.default_rng(3)
    calib = rng.normal(size=(40, 2)).astype(np.float32)
    calib[::4, 0] = 0
    calib[33] = 9.0
    np.savez(tmp_path / "calib.npz", x=calib)
    others = np.full((4, 2), 0.5, np.float32)
    others[2] = 18.0
    np.savez(tmp_path / "others.npz", x=others)
    return lambda name: str(tmp_path / name)


def calibration(files: Callable[[str], str]) -> dict[str, np.ndarray]:
    x = np.load(files("calib.npz"))["x"]
    return {"x": x, "h": x @ WEIGHT, "out": np.maximum(x @ WEIGHT, 0)}


def check(tensor: TensorDynamics, values: np.ndarray) -> None:
    """All statistics of one tensor against numpy's."""
    values = values.astype(np.float64)
    assert tensor.low == pytest.approx(values.min())
    assert tensor.high == pytest.approx(values.max())
    assert tensor.amax == pytest.approx(np.abs(values).max())
    assert tensor.mean == pytest.approx(values.mean())
    assert tensor.std == pytest.approx(values.std())
    assert tensor.rms == pytest.approx(np.sqrt(np.mean(values**2)))
    assert tensor.crest_factor == pytest.approx(np.abs(values).max() / tensor.rms)
    assert tensor.zero_share == np.mean(values == 0)
    assert tensor.histogram.count == values.size
    for percent in (50, 99, 99.9, 99.99):
        exact = np.percentile(np.abs(values), percent)
        assert tensor.percentile(percent) == pytest.approx(exact, rel=0.01), percent


def test_numbers_of_a_model(files: Callable[[str], str]) -> None:
    result = ranges(RangesSettings(files("net.onnx"), files("calib.npz"), sort="order"))
    expected = calibration(files)
    assert [t.name for t in result.tensors] == ["x", "h", "out"]  # in the order of execution
    assert [t.position for t in result.tensors] == [0, 1, 2]
    for tensor in result.tensors:
        check(tensor, expected[tensor.name])
        rows = np.abs(expected[tensor.name]).max(axis=1)
        np.testing.assert_allclose(tensor.sample_amax, rows, rtol=1e-6)
        assert tensor.growth == pytest.approx(rows.max() / rows[:20].max())
        assert tensor.calibrators is None
    assert {t.name: t.read_by for t in result.tensors} == {"x": ("mm",), "h": (), "out": ()}
    assert (result.source.kind, result.calibration.samples, result.holdout) == ("model", 40, None)


def test_coverage_is_of_what_int8_reads(files: Callable[[str], str]) -> None:
    settings = RangesSettings(files("net.onnx"), files("calib.npz"), files("others.npz"))
    result = ranges(settings)
    assert result.coverage.tensors == 1 and result.holdout and result.holdout.samples == 4
    (excess,) = result.coverage.coverage.held_out
    assert (excess.tensor, excess.ratio, excess.samples_beyond) == ("x", 2.0, 0.25)
    (stretch,) = result.coverage.coverage.stretched_by_one_sample
    assert (stretch.tensor, stretch.sample, stretch.amax) == ("x", 33, 9.0)
    assert result.coverage.coverage.growth.samples[-1] == 40


def test_the_second_time_the_model_is_not_run(files: Callable[[str], str]) -> None:
    settings = RangesSettings(files("net.onnx"), files("calib.npz"), samples=20)
    first, second = ranges(settings), ranges(settings)
    assert (first.calibration.from_cache, second.calibration.from_cache) == (False, True)
    assert first.calibration.samples == 20
    assert [t.name for t in first.tensors] == [t.name for t in second.tensors]
    assert not ranges(RangesSettings(**{**vars(settings), "cache": False})).calibration.from_cache


@pytest.mark.parametrize("sort", ORDERS)
def test_sorting(files: Callable[[str], str], sort: str) -> None:
    found = ranges(RangesSettings(files("net.onnx"), files("calib.npz"), sort=sort)).tensors
    keys = {
        "crest": [-t.crest_factor for t in found],
        "amax": [-t.amax for t in found],
        "name": [t.name for t in found],
        "order": [t.position for t in found],
        "growth": [-t.growth for t in found],
    }[sort]
    assert keys == sorted(keys)


def test_marks_of_one_tensor(files: Callable[[str], str]) -> None:
    result = ranges(RangesSettings(files("net.onnx"), files("calib.npz"), tensors=("h",)))
    (tensor,) = result.tensors
    values = np.abs(calibration(files)["h"])
    marks = {m.method: m for m in tensor.calibrators or ()}
    assert set(marks) == {c.name for c in default_calibrators()}
    assert marks["minmax"].amax == values.max() and marks["minmax"].clipped_fraction == 0
    for mark in marks.values():
        assert mark.clipped_fraction == pytest.approx(np.mean(values > mark.amax), abs=0.01)
        zeroed = np.mean((values < mark.scale / 2) & (values > 0))
        assert mark.zeroed_fraction == pytest.approx(zeroed, abs=0.01)


def test_a_run_file_holds_the_same(files: Callable[[str], str], tmp_path: Path) -> None:
    run = files("run.h5")
    compare(
        CompareSettings(
            model=files("net.onnx"),
            inputs=files("others.npz"),
            calib_data=files("calib.npz"),
            method="percentile:90",
            output=run,
        )
    )
    result = ranges(RangesSettings(run, sort="order"))
    expected = calibration(files)
    for tensor in result.tensors:
        check(tensor, expected[tensor.name])
    x = next(t for t in result.tensors if t.name == "x")
    assert x.read_by == ("mm",) and x.planned and x.planned.method == "percentile:90"
    assert x.planned.clipped_fraction == pytest.approx(0.1, abs=0.02)
    assert (result.source.kind, result.calibration.path) == ("run", files("calib.npz"))
    (detail,) = ranges(RangesSettings(run, tensors=("x",))).tensors
    assert detail.calibrators and detail.calibrators[-1].method == "plan"
    Path(files("net.onnx")).unlink()  # then nobody knows who reads what
    assert {t.read_by for t in ranges(RangesSettings(run)).tensors} == {None}
    with pytest.raises(UsageError, match=r"holdout: .*run file"):
        ranges(RangesSettings(run, holdout=files("others.npz")))
    with h5py.File(run, "r+") as file:
        table = next(iter(file["ranges"].values()))["table"]
        table[0, 0] += 1  # more values than were counted
    with refused("QD-STORE-VERSION", run):
        ranges(RangesSettings(run))


def test_refused(files: Callable[[str], str]) -> None:
    net, run = files("net.onnx"), files("fp32.h5")
    with refused("QD-USAGE-CALIB-DATA", "calib_data"):
        ranges(RangesSettings(net))
    with refused("QD-USAGE-TENSOR", "'hh'", "'h'"):
        ranges(RangesSettings(net, files("calib.npz"), tensors=("hh",)))
    compare(CompareSettings(model=net, inputs=files("others.npz"), precision="fp16", output=run))
    with refused("QD-STORE-NO-RANGES", run):
        ranges(RangesSettings(run))


def dynamics(values: np.ndarray) -> TensorDynamics:
    values = values.astype(np.float32)
    return TensorDynamics("t", 0, histogram_of(values), np.abs(values).reshape(len(values), -1)[:0])


def test_degenerate_tensors() -> None:
    nothing = dynamics(np.full(3, math.nan))
    assert math.isnan(nothing.low) and math.isnan(nothing.crest_factor) and nothing.amax == 0
    zero = dynamics(np.zeros(4))
    assert (zero.amax, zero.std, zero.zero_share, zero.calibrated()) == (0.0, 0.0, 1.0, ())
    constant = dynamics(np.full(1000, 0.1))
    assert (constant.std, constant.growth) == (0.0, 1.0)
    assert constant.crest_factor == pytest.approx(1)


def test_octaves_and_even_bins_count_every_value() -> None:
    values = np.random.default_rng(0).normal(size=5000) * 3
    values[:7] = [0, 0, 1, 2, 4, -8, 1e-40]
    values = values.astype(np.float32)
    found = octaves(histogram_of(values))
    assert sum(octave.negative + octave.positive for octave in found) == 4998
    for octave in found:
        if octave.low > 2.0**-126:
            low, high = octave.low, 2 * octave.low
            assert octave.positive == np.sum((values >= low) & (values < high))
            assert octave.negative == np.sum((values <= -low) & (values > -high))
    bins = even_bins(histogram_of(values), 41)
    exact, _ = np.histogram(values, bins.edges)
    assert bins.counts.sum() == 5000
    assert np.abs(bins.counts - exact).max() <= 10
