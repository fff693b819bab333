"""`qdebug diff`: where two runs of one model diverge."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import qdebug

Change = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


@pytest.fixture
def first(desk: Any) -> Any:
    """A run that keeps all samples."""
    kept = ["-o", "a.h5", "--keep", "all", "--effect", "none"]
    desk.run("compare", "net.onnx", "--inputs", "data.npz", *kept)
    return desk


def altered(source: Path, to: str, role: str, after: str, change: Change) -> None:
    """A copy of a run whose tensors of a role, from one on, are changed."""
    copy = source.with_name(to)
    shutil.copy(source, copy)
    order = list(qdebug.load_run(source).tensors)
    changed = order[order.index(after) :]
    with h5py.File(copy, "r+") as file:
        for group in file["tensors"].values():
            if group.attrs["name"] in changed:
                group[role][...] = change(group[role][...])


def noisy(db: float) -> Change:
    def change(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        noise = np.random.default_rng(0).normal(size=values.shape)
        scale = np.sqrt(np.mean(values.astype(float) ** 2)) * 10 ** (-db / 20)
        return (values + scale * noise).astype(values.dtype)

    return change


def test_equal_runs_are_equal_bit_for_bit(first: Any) -> None:
    done = first.run("diff", "a.h5", "a.h5", "--fail-on", "output.sqnr_db>=100")
    assert done.code == 0
    assert "equal bit for bit" in done.out and "diverge first" not in done.out


@pytest.mark.parametrize("role", ["reference", "candidate"])
def test_where_two_runs_diverge_is_found(first: Any, load_json: Any, role: str) -> None:
    result = qdebug.load_run(first.folder / "a.h5").result
    layer = next(x for x in result.layers if x.name == "conv2")
    altered(first.folder / "a.h5", "b.h5", role, layer.tensor, noisy(30))
    done = first.run("diff", "a.h5", "b.h5", "--fail-on", "output.sqnr_db>=40", "--json", "d.json")
    assert done.code == 1
    found = load_json((first.folder / "d.json").read_text())
    (divergent,) = [r for r in found["roles"] if r["first"]]
    assert (divergent["role"], divergent["first"]) == (role, layer.tensor)
    of = {t["tensor"]: t for t in divergent["tensors"]}
    assert of[layer.tensor]["sqnr_db"] == pytest.approx(30, abs=1)
    assert of[layer.tensor]["layer"] == layer.name
    assert (of[layer.tensor]["quantization_sqnr_db"] is None) == (role == "reference")
    assert f"diverge first at {layer.name}" in done.out and "what it reads is equal" in done.out
    assert found["verdict"]["conditions"][0]["value"] == pytest.approx(30, abs=1.5)


def test_rounding_is_no_divergence(first: Any) -> None:
    tensor = next(iter(qdebug.load_run(first.folder / "a.h5").tensors))
    for role, db in (("reference", 110), ("candidate", 85)):
        altered(first.folder / "a.h5", "b.h5", role, tensor, noisy(db))
        done = first.run("diff", "a.h5", "b.h5")
        assert "equal up to rounding" in done.out and "diverge first" not in done.out


def test_nan_on_one_side_diverges(first: Any) -> None:
    outputs = qdebug.load_run(first.folder / "a.h5").result.outputs
    altered(first.folder / "a.h5", "b.h5", "candidate", outputs[0].name, lambda x: x * np.nan)
    found = qdebug.diff(first.folder / "a.h5", other=first.folder / "b.h5")
    assert found.roles[-1].first == outputs[0].name
    assert "NaN" in found._repr_html_()
    assert "NaN" in first.run("diff", "a.h5", "b.h5").out


def test_what_cannot_be_compared_is_refused(first: Any, pictures: Any) -> None:
    first.data("others.npz", x=pictures(12, seed=7))
    common = ["--effect", "none", "--keep", "all"]
    first.run("compare", "net.onnx", "--inputs", "others.npz", "-o", "samples.h5", *common)
    first.refused("diff", "a.h5", "samples.h5", says=["QD-USAGE-RUNS-DIFFER", "different samples"])
    first.run("compare", "net.onnx", "--inputs", "data.npz", "-o", "none.h5", "--keep", "none")
    first.refused("diff", "a.h5", "none.h5", says=["QD-STORE-NOT-KEPT", "--keep all"])
    first.refused("diff", "a.h5", "net.onnx", says=["QD-STORE-NOT-A-RUN"])
    first.refused("diff", "a.h5", says=["QD-USAGE-REQUIRED", "OTHER is missing"])
    first.refused(
        "compare", "a.h5", "none.h5", says=["QD-USAGE-COMMAND-LINE", "qdebug diff FIRST SECOND"]
    )
    first.refused(
        "diff", "a.h5", "a.h5", "--fail-on", "layer.sqnr_db>=3", says=["QD-METRIC-CONDITION-NAME"]
    )


def test_plans_that_differ_are_told(first: Any) -> None:
    first.run(
        *("compare", "net.onnx", "--inputs", "data.npz", "-o", "b.h5", "--keep", "worst:3"),
        *("--weights", "per-tensor", "--effect", "none"),
        *("--backend", "onnxruntime"),
    )
    done = first.run("diff", "a.h5", "b.h5")
    assert "other plans" in done.out and "3 samples" in done.out
    assert "Only b.h5 holds an engine's tensors" in done.out


def test_an_engine_is_compared_with_the_other_runs_simulation(first: Any, load_json: Any) -> None:
    kept = ["--keep", "all", "--effect", "none", "--backend", "onnxruntime"]
    first.run("compare", "net.onnx", "--inputs", "data.npz", "-o", "b.h5", *kept)
    for runs, roles in (
        (("a.h5", "b.h5"), ("candidate", "engine")),
        (("b.h5", "a.h5"), ("engine", "candidate")),
    ):
        *_, last = load_json(first.run("diff", *runs, "--json", "-").out)["roles"]
        assert (last["role"], last["second_role"]) == roles
        own = qdebug.load_run(first.folder / "b.h5").result.engine.execution
        output = next(t for t in last["tensors"] if t["tensor"] == last["outputs"][0])
        assert output["sqnr_db"] == pytest.approx(own.worst_kernel_db, abs=0.5)
