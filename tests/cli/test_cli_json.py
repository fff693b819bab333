"""The machine contract qdebug.compare/1, key by key, and its numbers against plain arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from onnx import TensorProto, helper

Number = (int, float)
METRICS: dict[str, Any] = {
    "max_abs_err": Number,
    "mean_abs_err": Number,
    "rmse": Number,
    "sqnr_db": Number,
    "cosine": Number,
    "ref_amax": Number,
    "cand_amax": Number,
    "clipped_fraction": (int, float, type(None)),
    "nan_count": int,
    "inf_count": int,
    "worst_sample": int,
    "worst_sample_sqnr_db": Number,
    "worst_channel": (int, type(None)),
    "worst_channel_sqnr_db": (int, float, type(None)),
    "worst_part_sqnr_db": Number,
}


def typed(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Exactly these keys, with these types; null only where a flag says so."""
    flags = found.get("non_finite", {})
    assert set(found) - {"non_finite"} == set(expected)
    for key, kind in expected.items():
        if key in flags:
            assert found[key] is None and flags[key] in ("nan", "inf", "-inf")
        else:
            assert isinstance(found[key], kind), (key, found[key])
            assert not isinstance(found[key], bool) or kind is bool


def test_keys_and_types(desk: Any) -> None:
    result = desk.result(
        *["--calib-data", "calib.npz", "--metric", "top1", "--fail-on", "output.cosine>=0.5"]
    )
    typed(
        result,
        {
            "schema": str,
            "headline": str,
            "model": dict,
            "backend": str,
            "precision": str,
            "fp16_kernels": type(None),
            "samples": int,
            "local_samples": int,
            "verdict": dict,
            "metric": dict,
            "outputs": list,
            "layers": list,
            "tensors": list,
            "first_divergence": (dict, type(None)),
            "reference_in_fp16": bool,
            "skipped": list,
            "effect": dict,
            "summary": dict,
            "curve": (dict, type(None)),
            "cures": list,
            "remedy_samples": int,
            "remedy_metric": type(None),
            "correspondence": type(None),
            "groups": type(None),
            "framework": type(None),
            "stages": list,
            "notes": list,
            "data": list,
            "timings_s": dict,
            "engine": type(None),
            "failed": list,
        },
    )
    assert result["schema"] == "qdebug.compare/1"
    assert (result["backend"], result["precision"], result["samples"]) == ("simulation", "int8", 12)
    typed(result["model"], {"path": str, "sha256": str})
    assert result["model"]["path"] == "net.onnx" and len(result["model"]["sha256"]) == 64
    typed(result["verdict"], {"passed": bool, "conditions": list})
    text = str, type(None)
    condition = {"expression": str, "value": Number, "passed": bool, "reason": text, "at": text}
    typed(result["verdict"]["conditions"][0], condition)
    typed(
        result["metric"],
        {
            "name": str,
            "reference": Number,
            "candidate": Number,
            "chance": (float, type(None)),
            "reference_classes": (int, type(None)),
            "higher_is_better": bool,
            "is_share": bool,
            "by_sample": bool,
            "uncertainty": dict,
            "lost": int,
            "won": int,
            "boxes": type(None),
            "reference_boxes": type(None),
            "worst": list,
            "described": type(None),
        },
    )
    for output in result["outputs"]:
        known = {"parts": list, "worst_file": str}
        typed(output, {"name": str, **METRICS, **known})
    for tensor in result["tensors"]:
        typed(tensor, {"name": str, **METRICS})
    layer = {
        "name": str,
        "op_type": str,
        "precision": str,
        "tensor": str,
        "nodes": list,
        **METRICS,
        "local_sqnr_db": (int, float, type(None)),
        "input_clipped_fraction": (int, float, type(None)),
        "rank": int,
        "causes": list,
        "readers_sqnr_db": (int, float, type(None)),
        "effect": (dict, type(None)),
        "error_parts": (dict, type(None)),
        "remedies": list,
        "harmless": bool,
        "gain_db": (int, float, type(None)),
    }
    for found in result["layers"]:
        typed(found, layer)
    assert [x["rank"] for x in result["layers"]] == list(range(1, len(result["layers"]) + 1))
    assert [x["name"] for x in result["outputs"]] == ["out"]
    assert {x["name"] for x in result["layers"] if x["precision"] == "int8"} == {
        *("conv1", "conv2", "fc")
    }
    assert all(isinstance(note, str) for note in result["notes"])
    assert all(isinstance(v, float) for v in result["timings_s"].values())


def test_json_to_a_file_and_the_table_too(desk: Any, load_json: Callable[[str], Any]) -> None:
    done = desk.compare("--json", "out.json")
    assert done.code == 0 and "conv1" in done.out
    text = Path("out.json").read_text(encoding="utf-8")
    assert load_json(text)["schema"] == "qdebug.compare/1" and text.endswith("}\n")
    before = Path("out.json").read_bytes()
    done = desk.compare("--json", "out.json")
    assert done.code == 2 and "QD-STORE-OUTPUT-EXISTS" in done.err
    assert Path("out.json").read_bytes() == before
    assert desk.compare("--json", "out.json", "--force").code == 0


def test_only_json_on_standard_output(desk: Any, load_json: Callable[[str], Any]) -> None:
    done = desk.spawn("compare", "net.onnx", "--inputs", "data.npz", "--json", "-", "-o", "run.h5")
    assert (done.code, done.err) == (0, "")
    printed = load_json(done.out)
    with h5py.File("run.h5") as file:
        assert load_json(file["results"][()].decode()) == printed


def expected_metrics(ref: Any, cand: Any) -> dict[str, float]:
    """The metrics by their definitions, in float64."""
    r, c = ref.astype(np.float64), cand.astype(np.float64)
    error = np.abs(r - c)
    noise, signal = float((error**2).sum()), float((r**2).sum())
    norms = math.sqrt(signal * float((c**2).sum()))
    return {
        "max_abs_err": float(error.max()),
        "mean_abs_err": float(error.mean()),
        "rmse": math.sqrt(float((error**2).mean())),
        "sqnr_db": 10 * math.log10(signal / noise) if noise else math.inf,
        "cosine": float((r * c).sum()) / norms if norms else 0.0,
        "ref_amax": float(np.abs(r).max()),
        "cand_amax": float(np.abs(c).max()),
    }


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_metrics_equal_plain_arithmetic_on_the_stored_activations(
    desk: Any, precision: str
) -> None:
    flags = ["--precision", precision, "-o", "run.h5", "--keep", "all"]
    result = desk.result("--calib-data", "calib.npz", *flags)
    tensors = {t["name"]: t for t in result["tensors"]}
    with h5py.File("run.h5") as file:
        assert file["samples"][()].tolist() == list(range(12))
        groups = {g.attrs["name"]: g for g in file["tensors"].values()}
        assert set(groups) == set(tensors)
        for name, group in groups.items():
            ref, cand = group["reference"][()], group["candidate"][()]
            for key, value in expected_metrics(ref, cand).items():
                found = tensors[name][key]
                if math.isinf(value):
                    assert found is None and tensors[name]["non_finite"][key] == "inf"
                else:
                    assert found == pytest.approx(value, rel=1e-5, abs=1e-12), (name, key)
            rows = [expected_metrics(r, c)["sqnr_db"] for r, c in zip(ref, cand, strict=True)]
            assert rows[tensors[name]["worst_sample"]] == min(rows)
    worst = {x["tensor"]: x for x in result["layers"]}
    for name, layer in worst.items():
        assert {k: layer[k] for k in METRICS} == {k: tensors[name][k] for k in METRICS}


def test_nan_and_inf_are_null_with_a_flag(desk: Any, make: Any) -> None:
    """Activations of 1e5: Inf in FP16, and Inf - Inf = NaN behind it."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "big"], ["h"], "big"),
        node("Sub", ["h", "h"], ["z"], "minus"),
        node("MatMul", ["z", "one"], ["y"], "last"),
    ]
    weights = {"big": np.full((4, 4), 3e4, np.float32), "one": np.eye(4, dtype=np.float32)}
    desk.save(make(nodes, {"x": ("N", 4)}, {"y": ("N", 4)}, weights), "hot.onnx")
    desk.data("hot.npz", x=np.ones((3, 4), np.float32))
    done = desk.run(
        "compare", "hot.onnx", "--inputs", "hot.npz", "--precision", "fp16", "--json", "-"
    )
    result = done.json
    tensors = {t["name"]: t for t in result["tensors"]}
    assert (tensors["h"]["inf_count"], tensors["h"]["nan_count"]) == (12, 0)
    assert (tensors["y"]["inf_count"], tensors["y"]["nan_count"]) == (0, 12)
    for name in ("h", "y"):
        for key in ("max_abs_err", "mean_abs_err", "rmse", "sqnr_db", "cosine"):
            assert tensors[name][key] is None
            assert tensors[name]["non_finite"][key] == "nan"
    first = result["layers"][0]
    assert (first["name"], first["rank"]) == ("big", 1)
    assert first["local_sqnr_db"] is None and first["non_finite"]["local_sqnr_db"] == "nan"
    assert result["first_divergence"]["tensor"] == "h"
    assert result["first_divergence"]["non_finite"] == {"sqnr_db": "nan"}


def test_exact_tensors_are_flagged_inf(desk: Any) -> None:
    result = desk.result("--precision", "fp32")
    for tensor in result["tensors"]:
        assert tensor["sqnr_db"] is None and tensor["non_finite"]["sqnr_db"] == "inf"
        assert tensor["max_abs_err"] == 0 and tensor["cosine"] == 1
    assert result["first_divergence"] is None


def test_tensors_without_an_error_are_listed_as_skipped(desk: Any, make: Any) -> None:
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "fc"),
        node("ArgMax", ["h"], ["i"], "best", axis=1),
        node("Cast", ["i"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    proto = make(nodes, {"x": ("N", 4)}, {"y": ("N", 1)}, {"w": np.eye(4, dtype=np.float32)})
    desk.save(proto, "pick.onnx")
    desk.data("pick.npz", x=np.random.default_rng(0).normal(size=(3, 4)).astype("f4"))
    result = desk.run("compare", "pick.onnx", "--inputs", "pick.npz", "--json", "-").json
    assert {"tensor": "i", "reason": "not floating point"} in result["skipped"]
    for skipped in result["skipped"]:
        typed(skipped, {"tensor": str, "reason": str})


def test_two_runs_give_the_same_json(desk: Any) -> None:
    args = ("compare", "net.onnx", "--inputs", "data.npz", "--metric", "top1", "--json", "-")
    # Started anew: in another order of what Python hashes.
    first, second = (desk.spawn(*args, fresh=True).json for _ in range(2))
    assert first.pop("timings_s") and second.pop("timings_s")
    assert first == second
