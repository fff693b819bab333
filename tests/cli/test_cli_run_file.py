"""The run file: what it keeps, read with plain h5py; and what a second run takes of the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from qdebug.commands.compare import keeping
from qdebug.run.runner import Part, _PartRunner


def rows(name: str) -> dict[str, dict[str, dict[int, Any]]]:
    """tensor -> role -> sample -> values, by the documented layout alone."""
    found: dict[str, dict[str, dict[int, Any]]] = {}
    with h5py.File(name) as file:
        assert file.attrs["schema"] == "qdebug.run/1" and file.attrs["complete"]
        samples = file["samples"][()].tolist()
        for group in file.get("tensors", {}).values():
            for role in ("reference", "candidate"):
                data = group[role]
                kept = {s: data[i] for i, s in enumerate(samples) if s >= 0}
                found.setdefault(group.attrs["name"], {})[role] = kept
    return found


def test_keep_all(desk: Any) -> None:
    result = desk.result("-o", "run.h5", "--keep", "all", "--calib-data", "calib.npz")
    stored = rows("run.h5")
    assert set(stored) == {t["name"] for t in result["tensors"]}
    assert all(set(kept) == set(range(12)) for t in stored.values() for kept in t.values())
    assert stored["c1"]["reference"][3].dtype == np.float32
    with h5py.File("run.h5") as file:
        manifest = json.loads(file.attrs["manifest"])
        assert manifest["model"]["sha256"] == result["model"]["sha256"]
        assert manifest["samples"]["count"] == 12 and manifest["settings"]["keep"] == "all"
        assert "schema: qdebug.plan/1" in file["plan"].asstr()[()]
        ranges = {g.attrs["name"]: g.attrs["amax"] for g in file["ranges"].values()}
    calibration = np.load("calib.npz")["x"]
    assert ranges["x"] == np.abs(calibration).max()


def test_keep_none(desk: Any) -> None:
    result = desk.result("-o", "run.h5", "--keep", "none")
    assert rows("run.h5") == {}
    with h5py.File("run.h5") as file:
        assert json.loads(file["results"][()])["layers"] == result["layers"]


def test_float16(desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = desk.result("-o", "whole.h5", "--keep", "worst:1")
    kept = (
        a for roles in rows("whole.h5").values() for run in roles.values() for a in run.values()
    )
    monkeypatch.setattr(keeping, "MOST_BYTES", 0.6 * sum(values.nbytes for values in kept))
    second = desk.result("-o", "half.h5")
    assert first["tensors"] == second["tensors"]
    whole, half = rows("whole.h5"), rows("half.h5")
    ((sample, value),) = half["c1"]["candidate"].items()
    assert value.dtype == np.float16
    np.testing.assert_array_equal(value, whole["c1"]["candidate"][sample].astype(np.float16))
    assert Path("half.h5").stat().st_size < Path("whole.h5").stat().st_size


@pytest.mark.parametrize("budget", ["2G", "1"])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_worst_keeps_the_samples_with_the_largest_output_error(
    desk: Any, count: int, budget: str
) -> None:
    desk.result("-o", "all.h5", "--keep", "all")
    flags = ("-o", "worst.h5", "--keep", f"worst:{count}", "--memory-budget", budget)
    desk.result(*flags)
    every, kept = rows("all.h5"), rows("worst.h5")
    out = every["out"]
    error = {
        s: float(np.square(out["reference"][s] - out["candidate"][s]).sum())
        / float(np.square(out["reference"][s]).sum())
        for s in range(12)
    }
    worst = set(sorted(error, key=error.__getitem__, reverse=True)[:count])
    assert set(kept) == set(every)
    for tensor, roles in kept.items():
        for role, found in roles.items():
            assert set(found) == worst
            for sample, value in found.items():
                # Where Conv and ReLU are not both captured, ONNX Runtime may fuse them.
                close = {"rtol": 0, "atol": 0 if budget == "2G" else 1e-5}
                np.testing.assert_allclose(value, every[tensor][role][sample], **close)


def numbers(result: Any) -> Any:
    return {k: v for k, v in result.items() if k not in ("timings_s", "notes")}


def test_a_second_run_takes_what_the_first_measured(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--effect", "none", "--metric", "top1")
    first = desk.result(*flags)

    run = _PartRunner.__call__

    def watched(parts: _PartRunner, part: Part) -> Any:
        assert "errors" not in part.job.reducers, "all tensors are compared once more"
        return run(parts, part)

    with monkeypatch.context() as patch:
        patch.setattr(_PartRunner, "__call__", watched)
        assert numbers(desk.result(*flags)) == numbers(first)
    other = desk.result(*flags, "--weights", "per-tensor")
    assert numbers(other)["layers"] != numbers(first)["layers"]


def test_a_run_file_is_no_reference(desk: Any) -> None:
    desk.result("-o", "run.h5")
    flags = ("compare", "net.onnx", "--inputs", "data.npz", "--reference", "run.h5")
    desk.refused(*flags, says=["QD-USAGE-REFERENCE", "run.h5", "FP32 model"])
