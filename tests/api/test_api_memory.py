"""Objects in memory in place of files: the same results, the same keys."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdebug
from qdebug.config.commands import COMMANDS
from qdebug.config.flag import settings_of
from qdebug.network.samples import open_samples, samples_in_memory
from qdebug.types import Array, TensorSpec

DATA = Path(__file__).parents[2] / "calib_data"
CNN, HOLDOUT, CALIB = (
    str(DATA / n) for n in ("digits_cnn.onnx", "digits_holdout.npz", "digits_calib.npz")
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(CNN)


@pytest.fixture(scope="module")
def arrays() -> dict[str, Array]:
    with np.load(HOLDOUT) as file:
        return {name: file[name][:64] for name in file.files}


def test_all_in_memory_is_as_from_files(
    model: onnx.ModelProto, arrays: dict[str, Array], tmp_path: Path
) -> None:
    seen: list[qdebug.Progress] = []
    np.savez(tmp_path / "inputs.npz", **arrays)
    given = copy.deepcopy(model)
    memory = qdebug.compare(given, inputs=arrays, weights="per-tensor", progress=seen.append)
    files = qdebug.compare(CNN, inputs=tmp_path / "inputs.npz", weights="per-tensor")
    assert [(x.name, x.metrics) for x in memory.layers] == [
        (x.name, x.metrics) for x in files.layers
    ]
    assert given == model  # it was not changed
    assert seen
    assert {p.stage for p in seen} >= {"calibrate", "compare"}


def _feeds(arrays: dict[str, Array], size: int) -> Iterator[dict[str, Array]]:
    for start in range(0, 64, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


def test_a_generator_is_read_once_and_kept(
    model: onnx.ModelProto, arrays: dict[str, Array]
) -> None:
    once = qdebug.open_samples(_feeds(arrays, 1), model)
    stacked = qdebug.open_samples(arrays, model)
    assert once.digest == stacked.digest
    assert once.count == 64
    np.testing.assert_array_equal(once.extras["labels"], arrays["labels"])
    for start in (60, 0, 30):  # in any order
        np.testing.assert_array_equal(
            once.feeds(start, 4)["input"], arrays["input"][start : start + 4]
        )
    # The samples compared are read again to calibrate on some of them.
    result = qdebug.compare(
        model, inputs=_feeds(arrays, 1), metric="top1", samples=40, calib_samples=20
    )
    assert result.samples == 40


def test_a_reused_buffer_is_kept_as_it_was_yielded(model: onnx.ModelProto) -> None:
    def feeds() -> Iterator[dict[str, Array]]:
        buffer = np.empty((1, 1, 8, 8), np.float32)
        for value in range(5):
            buffer[:] = value
            yield {"input": buffer}

    samples = qdebug.open_samples(feeds(), model)
    assert [samples.feeds(i, 1)["input"][0, 0, 0, 0] for i in range(5)] == [0, 1, 2, 3, 4]


def test_lists_functions_and_samples_are_data_too(
    model: onnx.ModelProto, arrays: dict[str, Array]
) -> None:
    digest = qdebug.open_samples(arrays, model).digest
    assert qdebug.open_samples(list(_feeds(arrays, 1)), model).digest == digest
    assert qdebug.open_samples(lambda: _feeds(arrays, 1), model).digest == digest
    opened = qdebug.open_samples(arrays, model)
    assert qdebug.open_samples(opened, model, samples=8).count == 8
    lone = qdebug.open_samples(arrays["input"], model)
    np.testing.assert_array_equal(lone.feeds(0, 3)["input"], arrays["input"][:3])


def test_samples_of_another_model_are_refused(arrays: dict[str, Array]) -> None:
    opened = qdebug.open_samples(arrays, CNN)
    with pytest.raises(qdebug.SampleError):
        open_samples(samples_in_memory(opened), [TensorSpec("x", (1,), np.dtype(np.float32))])


def test_a_generator_that_fails_says_where() -> None:
    def feeds() -> Iterator[dict[str, Array]]:
        yield {"input": np.zeros((1, 1, 8, 8), np.float32)}
        raise RuntimeError("no more")

    given = samples_in_memory(feeds())
    inputs = [TensorSpec("input", (None, 1, 8, 8), np.dtype(np.float32))]
    for _ in range(2):  # not shorter the second time
        with pytest.raises(qdebug.SampleError, match="RuntimeError: no more") as caught:
            open_samples(given, inputs)
        assert "raise RuntimeError" in caught.value.hint


@pytest.mark.parametrize(
    "metric",
    [
        lambda outputs, labels: float(np.mean(outputs["logits"].argmax(-1) == labels["labels"])),
        lambda y_true, y_pred: float(np.mean(y_true == y_pred)),
    ],
)
def test_a_metric_in_memory(model: onnx.ModelProto, arrays: dict[str, Array], metric: Any) -> None:
    own = qdebug.compare(model, inputs=arrays, weights="per-tensor", metric=metric)
    built_in = qdebug.compare(
        model, inputs=arrays, weights="per-tensor", metric="top1", effect="none"
    )
    assert own.metric is not None
    assert built_in.metric is not None
    assert own.metric.name == "lambda"
    assert (own.metric.reference, own.metric.candidate) == (
        built_in.metric.reference,
        built_in.metric.candidate,
    )


def test_calibrate_then_compare(
    model: onnx.ModelProto, arrays: dict[str, Array], tmp_path: Path
) -> None:
    def half(histogram: Any) -> float:
        return histogram.amax / 2

    found = qdebug.calibrate(model, calib_data=CALIB, method="minmax", calibrator=half)
    assert list(found.methods) == ["minmax", "half"]
    how: dict[str, Any] = {"inputs": arrays, "effect": "none"}
    result = qdebug.compare(model, **how, calibration=found)
    assert not any("flatters" in note for note in result.notes)
    found.save_scales(tmp_path / "scales.yaml")
    found.save_trt_cache(tmp_path / "trt.cache")
    from_file = qdebug.compare(model, **how, calibration=tmp_path / "scales.yaml")
    assert from_file.outputs[0].metrics == result.outputs[0].metrics
    assert "EntropyCalibration2" in (tmp_path / "trt.cache").read_text()
    with pytest.raises(qdebug.StoreError):
        found.save_scales(tmp_path / "scales.yaml")
    found.save_scales(tmp_path / "scales.yaml", force=True)
    clipped = qdebug.compare(model, **how, calibration=dict.fromkeys(found.chosen.tensors, 0.05))
    assert clipped.outputs[0].metrics.sqnr_db < result.outputs[0].metrics.sqnr_db


def test_bisect_and_its_plan(
    model: onnx.ModelProto, arrays: dict[str, Array], tmp_path: Path
) -> None:
    found = qdebug.bisect(
        model, inputs=arrays, weights="per-tensor", target="output.sqnr_db>=15", calib_data=CALIB
    )
    assert found.passed
    assert found.pinned
    found.save_plan(tmp_path / "plan.yaml")
    how: dict[str, Any] = {"inputs": arrays, "effect": "none"}
    saved = qdebug.compare(model, **how, plan=tmp_path / "plan.yaml")
    again = qdebug.compare(model, **how, plan=found.plan, fail_on=["output.sqnr_db>=15"])
    assert again.passed
    assert saved.outputs[0].metrics == again.outputs[0].metrics


def test_what_was_found_is_exported(
    model: onnx.ModelProto, arrays: dict[str, Array], tmp_path: Path
) -> None:
    found = qdebug.bisect(
        model, inputs=arrays, weights="per-tensor", target="output.sqnr_db>=15", calib_data=CALIB
    )
    calibrated = qdebug.calibrate(model, calib_data=CALIB, method="minmax")
    found.save_plan(tmp_path / "plan.yaml")

    def exported(plan: Any, target: str, **more: Any) -> bytes:
        output = tmp_path / "out"
        result = qdebug.export(plan, to=target, output=output, force=True, **more)
        assert output in result.files
        return output.read_bytes()

    for target in ("onnx", "trt-cache", "python"):
        searched = exported(found, target)  # it knows its model, as the calibration does
        assert searched == exported(found.plan, target, model=model)
        ranges_only = exported(calibrated, target)
        assert (searched == ranges_only) == (target == "trt-cache")
    saved = exported(tmp_path / "plan.yaml", "onnx", model=model)
    assert saved == exported(found, "onnx")


def test_an_export_from_memory_needs_an_output() -> None:
    plan = qdebug.PrecisionPlan(qdebug.Precision.FP16)
    with pytest.raises(qdebug.UsageError) as caught:
        qdebug.export(plan, model=CNN)
    assert caught.value.code == "QD-USAGE-REQUIRED"


def test_a_model_in_memory_is_inspected(model: onnx.ModelProto) -> None:
    given, read = qdebug.inspect(model), qdebug.inspect(CNN)
    assert given.info.layers
    assert given.info.layers == read.info.layers


@pytest.mark.parametrize("name", ["samples", "weights"])
def test_an_object_is_not_quoted_in_messages(model: onnx.ModelProto, name: str) -> None:
    for value in (model, [model], "x" * 10_000):
        with pytest.raises(qdebug.UsageError) as caught:
            qdebug.compare(CNN, inputs=HOLDOUT, **{name: value})
        assert len(str(caught.value)) < 600


TEXTS = [
    (command.name, setting.name)
    for command in COMMANDS.values()
    for setting in settings_of(command.settings)
    if not setting.is_switch and not setting.written and setting.name not in ("pin", "tensors")
]


@pytest.mark.parametrize(("command", "setting"), TEXTS)
def test_a_value_of_any_length_is_refused_or_taken(
    command: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In few words, and never by an error of another kind."""
    monkeypatch.chdir(tmp_path)
    declared = {s.name: s for s in settings_of(COMMANDS[command].settings)}
    given: dict[str, Any] = {name: CNN for name, s in declared.items() if s.required}
    given |= {n: HOLDOUT for n in ("inputs", "calib_data") if n in given}
    beside: dict[str, dict[str, Any]] = {
        "bisect": {"target": "output.sqnr_db>=0"},
        "check": {"inputs": HOLDOUT},
        "init": {"inputs": HOLDOUT},
        "ranges": {"calib_data": HOLDOUT},
    }
    given |= beside.get(command, {})
    given["plan" if "plan" in declared else setting] = "no such plan"  # nothing is run
    for value in ("x" * 10_000, "9" * 5_000, "worst:" + "9" * 5_000):
        with pytest.raises(qdebug.QdebugError) as caught:
            getattr(qdebug, command)(**{**given, setting: value})
        assert len(str(caught.value)) < 1000


def test_a_quantized_model_with_its_reference(
    model: onnx.ModelProto, arrays: dict[str, Array], tmp_path: Path
) -> None:
    found = qdebug.calibrate(model, calib_data=CALIB, method="minmax", output=tmp_path / "s.yaml")
    assert "given in memory" not in (tmp_path / "s.yaml").read_text()  # no path that could be read
    qdebug.export(tmp_path / "s.yaml", model=model, output=tmp_path / "quantized.onnx")
    quantized = onnx.load(tmp_path / "quantized.onnx")
    how: dict[str, Any] = {"inputs": arrays, "effect": "none"}
    explicit = qdebug.compare(quantized, reference=model, **how)
    planned = qdebug.compare(model, calibration=found, **how)
    assert explicit.outputs[0].metrics == planned.outputs[0].metrics


def test_ranges_in_memory(model: onnx.ModelProto, arrays: dict[str, Array]) -> None:
    found = qdebug.ranges(model, calib_data=arrays, holdout=CALIB)
    peak = float(np.abs(arrays["input"]).max())
    assert next(t.amax for t in found.tensors if t.name == "input") == pytest.approx(peak)


@pytest.mark.parametrize(
    ("keywords", "code", "says"),
    [
        ({"imputs": "x"}, "QD-USAGE-KEYWORD", "'inputs'"),
        ({"inputs": 3}, "QD-SAMPLES-TYPE", "inputs: "),
        ({"inputs": "x", "metric": 3}, "QD-USAGE-TYPE", "metric: "),
        ({"inputs": "x", "plan": 3}, "QD-USAGE-TYPE", "plan: "),
        ({"inputs": "x", "calibration": 3}, "QD-USAGE-TYPE", "calibration: "),
    ],
)
def test_keywords_that_cannot_be(keywords: dict[str, Any], code: str, says: str) -> None:
    with pytest.raises(qdebug.QdebugError) as caught:
        qdebug.compare(CNN, **keywords)
    assert caught.value.code == code
    assert says in str(caught.value)
    assert "--" not in str(caught.value)


def test_settings_in_place_of_keywords(arrays: dict[str, Array]) -> None:
    settings = qdebug.CompareSettings(model=CNN, inputs=arrays, samples=8)
    assert qdebug.compare(settings).samples == 8
    with pytest.raises(qdebug.UsageError) as caught:
        qdebug.compare(settings, samples=4)
    assert caught.value.code == "QD-USAGE-KEYWORD"


def test_samples_are_prepared_as_the_model_says(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    images.new("RGB", (40, 20), (255, 0, 0)).save(tmp_path / "a.png")
    samples = qdebug.open_samples(tmp_path, DATA / "digits_detector.onnx")
    assert (
        "letterboxed" in samples.origin.told
        and "metadata_props of digits_detector.onnx" in samples.origin.told
    )
