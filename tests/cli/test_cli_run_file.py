"""The run file: what it keeps, read with plain h5py, and the reuse of its reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest


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


def test_float16(desk: Any) -> None:
    first = desk.result("-o", "whole.h5", "--keep", "all")
    second = desk.result("-o", "half.h5", "--keep", "all", "--keep-dtype", "float16")
    assert first["tensors"] == second["tensors"]
    whole, half = rows("whole.h5"), rows("half.h5")
    value = half["c1"]["candidate"][5]
    assert value.dtype == np.float16
    np.testing.assert_array_equal(value, whole["c1"]["candidate"][5].astype(np.float16))
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


def reused(result: Any) -> bool:
    return any("was read from" in note for note in result["notes"])


def test_a_second_run_reuses_the_reference(desk: Any) -> None:
    keep = ("-o", "run.h5", "--keep", "all")
    first = desk.result(*keep)
    assert not reused(first)
    again = desk.result(*keep, "--force")
    assert reused(again) and numbers(again) == numbers(first)
    once_more = desk.result(*keep, "--force")
    assert reused(once_more) and numbers(once_more) == numbers(first)
    named = desk.result("--reference", "run.h5")
    assert "The reference was read from run.h5." in named["notes"]
    assert numbers(named) == numbers(first)
    half = desk.result("--reference", "run.h5", "--precision", "fp16")
    assert reused(half) and numbers(half) == numbers(desk.result("--precision", "fp16"))


def test_the_reference_model_is_not_executed_when_it_is_reused(
    desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the file says is what counts: a value changed in it shows in the metrics."""
    desk.result("-o", "run.h5", "--keep", "all")
    with h5py.File("run.h5", "r+") as file:
        group = next(g for g in file["tensors"].values() if g.attrs["name"] == "out")
        group["reference"][0, 0] = 1000.0
    result = desk.result("--reference", "run.h5")
    assert result["outputs"][0]["ref_amax"] == 1000.0


def why_not(result: Any) -> str:
    (note,) = [n for n in result["notes"] if n.startswith("--reference run.h5 was not used")]
    return str(note)


def test_another_model_other_samples_or_another_batch_is_not_reused(
    desk: Any, cnn: Any, pictures: Any
) -> None:
    desk.result("-o", "run.h5", "--keep", "all")
    ref = ("--reference", "run.h5")
    assert "other samples" in why_not(desk.result(*ref, "--samples", "11"))
    assert "batch" in why_not(desk.result(*ref, "--batch-size", "4"))
    desk.data("data.npz", x=pictures(12, seed=5), labels=np.arange(12) % 5)
    changed = desk.result(*ref)
    assert "other samples" in why_not(changed)
    assert numbers(changed) == numbers(desk.result())
    desk.data("data.npz", x=pictures(12), labels=np.arange(12) % 5)
    assert reused(desk.result(*ref))
    other = cnn()
    other.graph.initializer[1].raw_data = np.ones(4, np.float32).tobytes()
    desk.save(other)
    assert "another model" in why_not(desk.result(*ref))
    silently = desk.result("-o", "run.h5", "--keep", "all", "--force")
    assert not reused(silently) and numbers(silently) == numbers(desk.result())


def test_rounded_or_missing_activations_are_not_reused(desk: Any) -> None:
    plain = desk.result()
    desk.result("-o", "run.h5", "--keep", "all", "--keep-dtype", "float16")
    rounded = desk.result("--reference", "run.h5")
    assert "float16" in why_not(rounded) and numbers(rounded) == numbers(plain)
    for keep in ("worst:2", "none"):
        desk.result("-o", "run.h5", "--keep", keep, "--force")
        partly = desk.result("--reference", "run.h5")
        assert "--keep all" in why_not(partly) and numbers(partly) == numbers(plain)


def test_what_a_fixed_batch_shares_is_reused_once(desk: Any, make: Any) -> None:
    """In a batch of 4, a tensor [6, …] belongs to no sample: each row holds it whole."""
    from onnx import helper

    node = helper.make_node
    nodes = [
        node("Transpose", ["x"], ["t"], "turn", perm=[1, 0]),
        node("MatMul", ["w", "t"], ["m"], "mix"),
        node("ReduceMax", ["m"], ["top"], "top", keepdims=0),
        node("Transpose", ["m"], ["b"], "back", perm=[1, 0]),
        node("Add", ["b", "top"], ["y"], "add"),
    ]
    w = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    desk.save(make(nodes, {"x": (4, 6)}, {"y": (4, 6)}, {"w": w}), "four.onnx")
    desk.data("rows.npz", x=np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32))
    run = ("compare", "four.onnx", "--inputs", "rows.npz", "--json", "-")
    first = desk.run(*run, "-o", "run.h5", "--keep", "all").json
    again = desk.run(*run, "--reference", "run.h5").json
    assert {t["name"] for t in first["tensors"]} >= {"m", "top", "y"}
    assert reused(again) and numbers(again) == numbers(first)
