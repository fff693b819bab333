"""`load_run`: a run file as Python callers read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qdebug

DATA = Path(__file__).parents[2] / "calib_data"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, object]]:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDEBUG_CACHE_DIR", str(folder / "cache"))
        result = qdebug.compare(
            DATA / "digits_cnn.onnx",
            inputs=DATA / "digits_holdout.npz",
            weights="per-tensor",
            samples=24,
            keep="worst:3",
            output=folder / "run.h5",
        )
        yield folder / "run.h5", result


def test_result_plan_and_manifest(compared: tuple[Path, qdebug.CompareResult]) -> None:
    path, result = compared
    with qdebug.load_run(path) as run:
        assert run.result == replace(result, run_file=path)
        assert run.plan is not None
        assert run.plan.tensors
        assert run.manifest["settings"]["weights"] == "per-tensor"
        assert repr(run) == (f"<Run {path}: digits_cnn.onnx in int8, 24 samples, activations of 3>")
        plan = run.plan
    again = qdebug.compare(
        DATA / "digits_cnn.onnx", inputs=DATA / "digits_holdout.npz", plan=plan, samples=24
    )
    assert [x.metrics for x in again.layers] == [x.metrics for x in result.layers]


def test_a_run_is_shown_as_its_result_and_taken_as_its_file(
    compared: tuple[Path, qdebug.CompareResult], tmp_path: Path
) -> None:
    path, result = compared
    data = {"model": DATA / "digits_cnn.onnx", "inputs": DATA / "digits_holdout.npz", "samples": 24}
    with qdebug.load_run(path) as run:
        assert run.to_dict() == result.to_dict()
        table, expected = run.to_pandas(), result.to_pandas()
        assert list(table.columns) == list(expected.columns)
        assert list(table["sqnr_db"]) == list(expected["sqnr_db"])  # infinities too
        assert result.layers[0].name in run._repr_html_()
        assert qdebug.ranges(run).to_dict() == qdebug.ranges(path).to_dict()
        again = qdebug.compare(**data, weights="per-tensor", plan=run)
    assert [x.metrics for x in again.layers] == [x.metrics for x in result.layers]


def test_activations_are_read_when_asked_for(
    compared: tuple[Path, qdebug.CompareResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, result = compared
    with qdebug.load_run(path) as run:
        assert len(run.samples) == 3
        assert next(iter(run.tensors)) == "/stem/conv/Conv_output_0"
        logits = run.tensors["logits"]
        assert tuple(logits.candidate) == run.samples
        assert list(logits.engine) == []
        assert repr(logits) == "<RunTensor logits: reference, candidate>"
        worst = result.outputs[0].metrics.worst_sample
        assert worst in logits.reference
        error = logits.candidate[worst] - logits.reference[worst]
        assert float(np.abs(error).max()) == pytest.approx(result.outputs[0].metrics.max_abs_err)
        with pytest.raises(qdebug.StoreError) as caught:
            logits.reference[next(s for s in range(24) if s not in run.samples)]
        assert caught.value.code == "QD-STORE-NOT-KEPT"
        with pytest.raises(qdebug.StoreError) as caught:
            logits.engine[worst]
        assert caught.value.code == "QD-STORE-NO-TENSOR"


def test_results_that_are_damaged(compared: tuple[Path, object]) -> None:
    path, _ = compared
    run = qdebug.load_run(path)
    run._reader.__dict__["results"] = {**run._reader.results, "layers": 3}
    with pytest.raises(qdebug.StoreError) as caught:
        _ = run.result
    assert caught.value.code == "QD-STORE-DAMAGED" and str(path) in caught.value.message


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(qdebug.StoreError) as caught:
        qdebug.load_run(tmp_path / "none.h5")
    assert caught.value.code == "QD-STORE-NOT-FOUND"
