"""One pass over the samples: whichever worker takes which batch, the result is the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.quantization.calibrate import (
    CalibrationDataReader,
    CalibrationMethod,
    create_calibrator,
)

from qdebug.backends.budget import DEFAULT_BUDGET, Budget
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism
from qdebug.calibrators.registry import parse_method
from qdebug.execute.context import Context
from qdebug.execute.gather import Gathered, gather_ranges
from qdebug.network.load import read_model
from qdebug.network.prepare import prepare_model
from qdebug.network.samples import open_samples
from qdebug.network.samples.subset import whole
from qdebug.types import ignore_progress


def _gathered(workers: int, budget: int = DEFAULT_BUDGET) -> Gathered:
    graph = prepare_model(read_model("calib_data/digits_cnn.onnx")).graph
    samples = open_samples("calib_data/digits_calib.npz", graph.inputs, limit=24, batch_size=2)
    context = Context(
        SimulationBackend(1),
        SimulationBackend(1),
        Parallelism(workers, 1),
        ignore_progress,
        2,
        budget=Budget(budget),
    )
    return gather_ranges(context, graph, whole(samples))


@pytest.mark.parametrize("workers", [2, 5])
def test_the_number_of_workers_does_not_change_a_digit(workers: int) -> None:
    _assert_same(_gathered(1), _gathered(workers))


@pytest.mark.parametrize(("budget", "most"), [(1, 1), (DEFAULT_BUDGET, 100)])
def test_what_is_observed_at_once_fits_the_budget(
    budget: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = []

    def noted(backend: SimulationBackend, proto: Any, capture: Any) -> Any:
        observed.append(len(capture))
        return opened(backend, proto, capture)

    opened = SimulationBackend.open
    monkeypatch.setattr(SimulationBackend, "open", noted)
    found = _gathered(5, budget)
    assert 0 < max(observed[1:]) <= most  # the first is a look at one sample
    for name, histogram in _gathered(1).histograms.items():
        # Observing a tensor keeps ONNX Runtime from fusing what computes it.
        assert found.histograms[name].amax == pytest.approx(histogram.amax, rel=1e-5)
        assert found.histograms[name].count == histogram.count


def _assert_same(one: Gathered, several: Gathered) -> None:
    assert list(one.histograms) == list(several.histograms)
    for name, histogram in one.histograms.items():
        expected, found = asdict(histogram), asdict(several.histograms[name])
        np.testing.assert_array_equal(found.pop("table"), expected.pop("table"))
        assert found == expected
        np.testing.assert_array_equal(several.sample_amax[name], one.sample_amax[name])


class _Reader(CalibrationDataReader):
    def __init__(self, samples: Any) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Any:
        sample = next(self._samples, None)
        return None if sample is None else {"x": sample}


def test_minmax_is_exactly_onnx_runtimes(tmp_path: Path) -> None:
    """In every tensor; where the kernels are the same ones, as they are for a batch of one size."""
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=(2, 6)).astype(np.float32) for _ in range(5)]
    weight = rng.normal(size=(6, 4)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], "fc"),
            helper.make_node("Tanh", ["y"], ["z"], "tanh"),
            helper.make_node("MatMul", ["z", "v"], ["out"], "last"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 6])],
        [
            onnx.numpy_helper.from_array(weight, "w"),
            onnx.numpy_helper.from_array(weight.T.copy(), "v"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    calibrator = create_calibrator(
        path,
        op_types_to_calibrate=["MatMul", "Tanh"],
        augmented_model_path=str(tmp_path / "a.onnx"),
        calibrate_method=CalibrationMethod.MinMax,
    )
    calibrator.collect_data(_Reader(samples))
    expected = calibrator.compute_data().data

    np.savez(tmp_path / "data.npz", x=np.concatenate(samples))
    prepared = prepare_model(read_model(path)).graph
    subset = whole(open_samples(str(tmp_path / "data.npz"), prepared.inputs))
    context = Context(
        SimulationBackend(1), SimulationBackend(1), Parallelism(1, 1), ignore_progress
    )
    found = gather_ranges(context, prepared, subset).histograms
    assert set(found) == set(expected) == {"x", "y", "z", "out"}
    for name, histogram in found.items():
        low, high = (np.asarray(value).item() for value in expected[name].range_value)
        assert (histogram.low, histogram.high) == (low, high), name
        assert parse_method("minmax").amax(histogram) == max(abs(low), abs(high))
