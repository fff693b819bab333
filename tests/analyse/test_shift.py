"""Errors that have a sign: their size, and no alarm where there is none."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import detectors
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qdebug
from qdebug.analyse.shift import ShiftSink
from qdebug.display.summary import shift_text
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ExecutedBatch
from qdebug.network.samples import Batch
from qdebug.results.compare import OutputResult, Shift, ShiftedValues

SAMPLES = 24


class _Pair:
    """A pair of models with one output."""

    def __init__(self, axis: str | int) -> None:
        self.reference = self.candidate = self
        self.outputs, self.parts = ("y",), {}
        value = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", axis])
        self.proto = helper.make_model(helper.make_graph([], "g", [], [value]))

    def is_float(self, _: str) -> bool:
        return True


def shift(
    reference: np.ndarray, error: np.ndarray, *, batch: int = 5, axis: str | int = 10
) -> Shift | None:
    """Of an output that is of one piece; batches come last first."""
    sink = ShiftSink(_Pair(axis))  # type: ignore[arg-type]
    for start in reversed(range(0, len(reference), batch)):
        rows = slice(start, min(start + batch, len(reference)))
        runs = {REFERENCE: {"y": reference[rows]}, CANDIDATE: {"y": (reference + error)[rows]}}
        sink(ExecutedBatch(Batch(start // batch, start, rows.stop - start), {}, runs), {})
    (output,) = sink.on([OutputResult("y", None)])  # type: ignore[arg-type]
    return output.shift


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(SAMPLES, *shape)).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (10,), (30, 8), (128, 3, 3), (500,)])
def test_noise_has_no_sign(shape: tuple[int, ...]) -> None:
    """Nor has an offset that differs from sample to sample, however much the values of one have in
    common."""
    for seed in range(20):
        own = noise(seed + 100).reshape(-1, *[1] * len(shape))
        assert shift(noise(seed, *shape), 0.1 * noise(seed + 50, *shape)) is None
        assert shift(noise(seed, *shape), 0.1 * own + 0 * noise(seed, *shape)) is None


@pytest.mark.parametrize("shape", [(), (30, 8), (500,)])
def test_values_that_are_all_lower(shape: tuple[int, ...]) -> None:
    error = 0.1 * noise(1, *shape) - 0.2
    found = shift(noise(0, *shape), error)
    assert found is not None and found.values is ShiftedValues.ALL and found.channel is None
    assert found.mean == pytest.approx(error.mean(), rel=1e-6)
    assert found.share == pytest.approx(error.mean() ** 2 / np.square(error).mean(), abs=0.02)


def test_the_channel_that_is_higher() -> None:
    error = 0.1 * noise(1, 10, 4, 4)
    error[:, 7] += 0.5
    reference = noise(0, 10, 4, 4) + 3
    found = shift(reference, error)
    assert found is not None and found.channel == 7
    assert found.mean == pytest.approx(error[:, 7].mean(), rel=1e-6)
    assert found.reference == pytest.approx(reference[:, 7].mean(), rel=1e-6)
    assert found.share == pytest.approx(0.25 / (0.25 + 10 * 0.01), abs=0.02)
    assert found == shift(reference, error, batch=SAMPLES)


def test_a_place_along_an_axis_of_open_size_is_no_channel() -> None:
    """Such as the last frame of each recording."""
    error = 0.1 * noise(1, 62)
    error[:, 61] += 1.5
    found = shift(noise(0, 62), error, axis="frames")
    assert found is not None and (found.channel, found.axis) == (61, "frames")
    assert "positions along 'frames' have mean errors" in shift_text(found)
    assert "position 61 is 1.5 higher" in shift_text(found)
    fixed = shift(noise(0, 62), error, axis=62)
    assert fixed is not None and not fixed.axis and "channel 61 is" in shift_text(fixed)


def test_scores_of_a_few_places_that_are_lower() -> None:
    """Noise of all the others hides it from the mean of all values, and from the SQNR."""
    reference = np.full((SAMPLES, 900, 6), 0.02, np.float32)
    reference[:, :5, 2] = 0.7
    error = 0.01 * noise(1, 900, 6)
    error[:, :5, 2] -= 0.16
    found = shift(reference, error)
    assert found is not None and found.values is ShiftedValues.SCORES
    assert (found.mean, found.reference) == pytest.approx((-0.16, 0.7), abs=0.005)
    assert found.share > 0.9


@pytest.mark.parametrize("samples", [1, 7])
def test_few_samples_tell_no_sign(samples: int) -> None:
    assert shift(noise(0, 3)[:samples], noise(1, 3)[:samples] * 0 + 1) is None


def test_values_that_are_not_finite_have_no_sign() -> None:
    error = np.ones((SAMPLES, 3), np.float32)
    error[4, 1] = np.nan
    assert shift(noise(0, 3), error) is None


def _joined(net: detectors.Builder, bias: float) -> str:
    """Boxes and scores, as of detectors.joined, with another bias of the scores."""
    output = detectors.joined(net)
    next(x for x in net.constants if x.name == "scores.conv.b").CopyFrom(
        onnx.numpy_helper.from_array(np.full(5, bias, np.float32), "scores.conv.b")
    )
    return output


def test_a_head_that_is_shifted_is_said(tmp_path: Path) -> None:
    """Of a model that others have quantized, in the part of the scores, and in the sentence."""
    net = detectors.Builder()
    fp32 = net.save(tmp_path / "reference.onnx", _joined(net, -1.0))
    lower = partial(_joined, bias=-1.6)
    _, int8, samples = detectors.quantized(lower, tmp_path, nodes_to_exclude=["join"])
    how = {"reference": str(fp32), "inputs": str(samples), "effect": "none"}
    boxes, scores = qdebug.compare(str(int8), **how).outputs[0].parts
    assert boxes.shift is None and scores.shift is not None
    images = {"image": detectors.images()}
    values = [
        onnxruntime.InferenceSession(m, providers=["CPUExecutionProvider"]).run(None, images)[0]
        for m in (fp32, int8)
    ]
    found = values[0][:, 4:] >= 0.1
    error = (values[1] - values[0])[:, 4:][found]
    assert scores.shift.values is ShiftedValues.SCORES
    assert scores.shift.mean == pytest.approx(error.mean(), abs=1e-3)
    assert scores.shift.std == pytest.approx(error.std(), abs=1e-3)
