"""FP16 as TensorRT's kernels compute it, and with exact sums."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime.transformers.float16 import convert_float_to_float16

BUNDLED = Path(__file__).parents[2] / "calib_data"
TERMS = 1536


@pytest.fixture
def long_sums(desk: Any, make: Any) -> list[str]:
    """A product of 1536 terms, then one of 8 without anything to add up wrongly."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "long"),
        helper.make_node("MatMul", ["h", "v"], ["y"], "short"),
    ]
    weights = {
        "w": rng.normal(size=(TERMS, 8)).astype(np.float32) / 40,
        "v": np.eye(8, dtype=np.float32),
    }
    desk.save(make(nodes, {"x": ("N", TERMS)}, {"y": ("N", 8)}, weights), "long.onnx")
    desk.data("long.npz", x=rng.normal(size=(64, TERMS)).astype(np.float32))
    return ["long.onnx", "--inputs", "long.npz", "--precision", "fp16"]


def test_sums_in_fp16_are_simulated_and_named(desk: Any, long_sums: list[str]) -> None:
    found = desk.run("compare", *long_sums, "--json", "-").json
    exact = desk.run("compare", *long_sums, "--fp16-kernels", "exact", "--json", "-").json
    assert (found["fp16_kernels"], exact["fp16_kernels"]) == ("tensorrt", "exact")
    worst = {name: r["layers"][0] for name, r in (("tensorrt", found), ("exact", exact))}
    assert worst["tensorrt"]["name"] == "long"
    # 96 roundings of a sum that grows, in place of one.
    assert 54 < worst["tensorrt"]["local_sqnr_db"] < 60
    layers = {layer["name"]: layer for layer in exact["layers"]}
    assert layers["long"]["local_sqnr_db"] > 68 and layers["long"]["causes"] == []
    cause = worst["tensorrt"]["causes"][0]
    assert cause["label"] == "fp16-sums" and cause["share"] > 0.9
    told = re.search(
        r"with exact sums its local SQNR would be ([\d.]+) dB", cause["evidence"]
    )  # on a few samples
    assert told and float(told[1]) == pytest.approx(layers["long"]["local_sqnr_db"], abs=1)
    assert "FP32" in cause["remedy"]


def test_what_was_simulated_is_said(desk: Any, long_sums: list[str]) -> None:
    assert "sums in FP16" in desk.run("compare", *long_sums, "-v").out
    exact = desk.run("compare", *long_sums, "--fp16-kernels", "exact", "-v").out
    assert "simulated with exact sums" in exact and "fp16-sums" not in exact
    desk.refused(
        "compare",
        *long_sums,
        "--fp16-kernels",
        "fast",
        says=["QD-USAGE-CHOICE", "--fp16-kernels", "fast"],
    )


def test_a_search_pins_the_long_sum_and_keeps_both_kinds_apart(
    desk: Any, long_sums: list[str]
) -> None:
    """One search does not take the other's values, which are kept."""
    flags = ["bisect", *long_sums, "--target", "output.sqnr_db>=62", "--pin-to", "fp32",
             "--json", "-"]  # fmt: skip
    found = desk.run(*flags).json
    assert found["pinned"] == ["long"] and found["achieved"] > 66 > 60 > found["baseline"]
    exact = desk.run(*flags, "--fp16-kernels", "exact").json
    assert exact["pinned"] == [] and exact["baseline"] > 66


def test_a_model_that_is_in_fp16_itself(desk: Any, make: Any) -> None:
    """Its layers are in FP16 whatever a plan says, and the reference rounds as they do."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], "to_half", to=TensorProto.FLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["p"], "product"),
        helper.make_node("Cast", ["p"], ["y"], "to_float", to=TensorProto.FLOAT),
    ]
    weights = {"w": (rng.normal(size=(TERMS, 8)) / 40).astype(np.float16)}
    desk.save(make(nodes, {"x": ("N", TERMS)}, {"y": ("N", 8)}, weights), "half.onnx")
    desk.data("half.npz", x=rng.normal(size=(8, TERMS)).astype(np.float32))
    flags = ("compare", "half.onnx", "--inputs", "half.npz", "--precision", "fp32", "--json", "-")
    found, exact = desk.run(*flags).json, desk.run(*flags, "--fp16-kernels", "exact").json
    assert (found["fp16_kernels"], exact["fp16_kernels"]) == ("tensorrt", "exact")
    layer = next(x for x in found["layers"] if x["name"] == "product")
    assert layer["precision"] == "fp16" and 54 < layer["local_sqnr_db"] < 60
    assert layer["causes"][0]["label"] == "fp16-sums"
    assert exact["outputs"][0]["max_abs_err"] == 0
    for result in (found, exact):
        assert any("2 nodes of the model are in FP16" in note for note in result["notes"])
    search = ("bisect", *flags[1:4], "--target", "output.cosine>=0.9", "--precision", "fp16")
    refused = desk.run(*search)
    assert refused.code == 2 and "[QD-PLAN-NOT-FP32]" in refused.err


def test_a_file_in_fp16_beside_its_fp32_model(desk: Any) -> None:
    """It costs what the FP16 model costs that is made here."""
    half = convert_float_to_float16(onnx.load(BUNDLED / "digits_cnn.onnx"), keep_io_types=True)
    desk.save(half, "half.onnx")
    rest = ("--inputs", BUNDLED / "digits_holdout.npz", "--samples", "16", "--json", "-")
    reference = ("--reference", BUNDLED / "digits_cnn.onnx")
    found = desk.run("compare", "half.onnx", *reference, *rest).json
    made = desk.run("compare", reference[1], "--precision", "fp16", *rest).json
    assert found["precision"] == "fp16" and not found["reference_in_fp16"]
    levels = [result["outputs"][0]["sqnr_db"] for result in (found, made)]
    assert levels[0] == pytest.approx(levels[1], abs=0.5) and 55 < levels[0] < 65
    products = [x for x in found["layers"] if x["op_type"] in ("Conv", "Gemm")]
    assert {x["precision"] for x in products} == {"fp16"} and len(products) == 14
    assert all(match["proven"] for match in found["correspondence"]["matches"])


def test_calibrators_are_judged_with_the_kernels_asked_for(desk: Any) -> None:
    """The normalizations of the encoder run in FP16 beside its INT8 layers."""
    flags = ["calibrate", BUNDLED / "digits_encoder.onnx", "--method", "minmax", "--no-cache",
             "--calib-data", BUNDLED / "digits_calib.npz", "--fallback-precision", "fp16",
             "--json", "-"]  # fmt: skip

    def sqnr_db(*more: str) -> float:
        found = desk.run(*flags, *more).json["methods"]["minmax"]["outputs"]["logits"]
        return float(found["sqnr_db"])

    assert sqnr_db() == sqnr_db("--fp16-kernels", "tensorrt") != sqnr_db("--fp16-kernels", "exact")
