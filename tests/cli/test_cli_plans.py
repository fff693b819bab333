"""Plans: saved, pinned, reproduced, exported; and models that carry Q/DQ already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml


def numbers(result: Any, *, but: tuple[str, ...] = ()) -> Any:
    """Of a comparison all that it measured of the plan itself: what else can be tried, and advised,
    depends on what its ranges were made from."""
    others = ("timings_s", "notes", "cures", "headline", *but)
    kept = {k: v for k, v in result.items() if k not in others}
    if "layers" in kept:
        causes = [[{**cause, "remedy": ""} for cause in x["causes"]] for x in kept["layers"]]
        kept["layers"] = [{**x, "causes": c} for x, c in zip(kept["layers"], causes, strict=True)]
    return kept


@pytest.mark.parametrize(
    "flags",
    [
        ["--calib-data", "calib.npz"],
        ["--weights", "per-tensor", "--method", "percentile:99"],
        ["--fallback-precision", "fp16"],
        ["--precision", "fp16"],
    ],
    ids=" ".join,
)
def test_a_saved_plan_reproduces_the_run(desk: Any, flags: list[str]) -> None:
    first = desk.result(*flags, "--save-plan", "plan.yaml")
    again = desk.result("--plan", "plan.yaml", "--save-plan", "again.yaml")
    assert numbers(again) == numbers(first)
    assert Path("again.yaml").read_text() == Path("plan.yaml").read_text()
    plan = yaml.safe_load(Path("plan.yaml").read_text())
    assert plan["model"] == {"path": "net.onnx", "sha256": first["model"]["sha256"]}


def test_pinning_every_layer_to_fp32_gives_the_reference_bit_for_bit(desk: Any) -> None:
    layers = [x["name"] for x in desk.result()["layers"]]
    pins = "".join(f"  {name}: fp32\n" for name in layers)
    desk.write("pins.yaml", f"schema: qdebug.plan/1\nprecision: int8\nlayers:\n{pins}")
    result = desk.result("--plan", "pins.yaml", "--allow-unquantized")
    assert {x["precision"] for x in result["layers"]} == {"fp32"}
    for tensor in result["tensors"]:
        assert tensor["max_abs_err"] == 0 and tensor["non_finite"]["sqnr_db"] == "inf"
    assert all(x["local_sqnr_db"] is None for x in result["layers"])


def test_pins_and_flags_on_top_of_a_plan(desk: Any) -> None:
    desk.write("pin.yaml", "schema: qdebug.plan/1\nprecision: int8\nlayers: {conv2: fp32}\n")
    pinned = {x["name"]: x["precision"] for x in desk.result("--plan", "pin.yaml")["layers"]}
    assert (pinned["conv1"], pinned["conv2"], pinned["fc"]) == ("int8", "fp32", "int8")
    over = desk.result("--plan", "pin.yaml", "--precision", "fp16")
    half = {x["name"]: x["precision"] for x in over["layers"]}
    assert (over["precision"], half["conv1"], half["conv2"]) == ("fp16", "fp16", "fp32")


def test_ranges_from_a_calibration_file(desk: Any) -> None:
    first = desk.result("--calib-data", "calib.npz", "--save-plan", "ranges.yaml")
    again = desk.result("--calibration", "ranges.yaml")
    assert numbers(again) == numbers(first)
    assert not any("No --calib-data" in note for note in again["notes"])


def test_calibration_data_that_were_not_needed_are_named(desk: Any) -> None:
    notes = desk.result("--precision", "fp16", "--calib-data", "calib.npz")["notes"]
    assert notes == ["--calib-data calib.npz was not read: nothing had to be calibrated."]


def test_calib_samples_without_calib_data_limit_the_compared_ones(desk: Any) -> None:
    desk.result("--calib-samples", "3", "--save-plan", "plan.yaml")
    assert "3 samples of data.npz" in yaml.safe_load(Path("plan.yaml").read_text())["calibration"]


# ---- export, and models that carry Q/DQ


@pytest.fixture
def exported(desk: Any) -> Any:
    """int8.onnx, made of net.onnx by plan.yaml; the result of the plan's own run."""
    result = desk.result("--calib-data", "calib.npz", "--save-plan", "plan.yaml")
    done = desk.run("export", "plan.yaml", "--to", "onnx", "-o", "int8.onnx")
    assert (done.code, done.out, done.err) == (0, "Wrote int8.onnx\n", "")
    onnx.checker.check_model(onnx.load("int8.onnx"), full_check=True)
    return result


def test_a_quantized_model_is_compared_as_it_is(desk: Any, exported: Any) -> None:
    done = desk.run("compare", "int8.onnx", "--inputs", "data.npz", "--json", "-")
    result = done.json
    assert any("is quantized (Q/DQ)" in note for note in result["notes"])
    precisions = {x["name"]: x["precision"] for x in result["layers"]}
    assert {n for n, p in precisions.items() if p == "int8"} == {"conv1", "conv2", "fc"}
    own = {x["name"]: x["local_sqnr_db"] for x in exported["layers"]}
    for layer in result["layers"]:  # the exported weights are FP32 values behind their own Q/DQ
        if layer["precision"] == "int8":
            assert layer["local_sqnr_db"] == pytest.approx(own[layer["name"]], abs=6)


def test_a_quantized_model_against_its_fp32_model_equals_the_plans_own_run(
    desk: Any, exported: Any
) -> None:
    args = ("int8.onnx", "--inputs", "data.npz", "--reference", "net.onnx", "--json", "-")
    done = desk.run("compare", *args)
    result = done.json
    exact = "int8.onnx was imported exactly: on 1 sample it gives the bits of the file."
    assert result["notes"] == [exact]
    found = result["correspondence"]
    assert not found["unmatched"] and all(m["proven"] for m in found["matches"])
    skip = ("model", "layers", "correspondence", "effect")  # no effects in one by another tool
    # Only a plan knows what it was calibrated on, and so the cause.
    causes = [one["summary"].pop("cause") for one in (result, exported)]
    assert causes == ["clipping", "unrepresentative-calibration"]
    assert numbers(result, but=skip) == numbers(exported, but=skip)
    mine = {x["name"]: x for x in result["layers"]}
    for layer in exported["layers"]:
        for key in ("precision", "sqnr_db", "local_sqnr_db", "input_clipped_fraction", "rank"):
            assert mine[layer["name"]][key] == layer[key], (layer["name"], key)


@pytest.mark.parametrize(
    "flags",
    [
        ["--plan", "plan.yaml"],
        ["--calibration", "plan.yaml"],
        ["--calib-data", "calib.npz"],
        ["--calib-samples", "3"],
        ["--weights", "per-tensor"],
        ["--fallback-precision", "fp16"],
        ["--precision", "fp16"],
        ["--save-plan", "new.yaml"],
    ],
    ids=lambda flags: flags[0],
)
def test_flags_that_would_change_a_quantized_model(
    desk: Any, exported: Any, flags: list[str]
) -> None:
    says = ["QD-USAGE-QUANTIZED-MODEL", flags[0], "int8.onnx"]
    desk.refused("compare", "int8.onnx", "--inputs", "data.npz", "-o", "r.h5", *flags, says=says)


def test_reference_that_does_not_belong_to_the_quantized_model(
    desk: Any, exported: Any, make: Any
) -> None:
    node = onnx.helper.make_node("Relu", ["image"], ["z"], "relu")
    desk.save(make([node], {"image": (1, 4)}, {"z": (1, 4)}), "other.onnx")
    command = ("compare", "int8.onnx", "--inputs", "data.npz", "--reference")
    desk.refused(
        *command,
        "other.onnx",
        says=["QD-USAGE-REFERENCE-INPUTS", "other.onnx", "'image'", "int8.onnx"],
    )
    node = onnx.helper.make_node("Relu", ["x"], ["z"], "relu")
    desk.save(make([node], {"x": ("N", 3, 8, 8)}, {"z": ("N", 3, 8, 8)}), "other.onnx")
    desk.refused(*command, "other.onnx", says=["QD-PLAN-NO-COMMON-TENSOR", "other.onnx"])
    desk.refused(*command, "none.onnx", says=["QD-MODEL-NOT-FOUND", "none.onnx"])


def test_export_is_careful(desk: Any, exported: Any, cnn: Any) -> None:
    desk.refused(
        "export",
        "plan.yaml",
        "-o",
        "int8.onnx",
        says=["QD-STORE-OUTPUT-EXISTS", "int8.onnx", "--force"],
    )
    assert desk.run("export", "plan.yaml", "-o", "int8.onnx", "--force").code == 0
    desk.refused(
        "export", "plan.yaml", "--to", "tvm", says=["QD-USAGE-CHOICE", "--to", "'tvm'", "onnx"]
    )
    desk.refused("export", "no.yaml", says=["QD-PLAN-FILE", "no.yaml"])
    desk.refused(
        "export",
        "plan.yaml",
        "-o",
        "no/x.onnx",
        says=["QD-STORE-OUTPUT-PATH", "no/x.onnx", "mkdir -p"],
    )
    desk.refused("export", says=["QD-USAGE-REQUIRED", "PLAN"])
    desk.refused(
        "export", "plan.yaml", "--model", "no.onnx", says=["QD-MODEL-NOT-FOUND", "no.onnx"]
    )
    desk.refused(
        "export",
        "plan.yaml",
        "--model",
        "int8.onnx",
        says=["QD-USAGE-QUANTIZED-MODEL", "int8.onnx"],
    )
    desk.save(cnn(batch=3), "other.onnx")
    desk.refused("export", "plan.yaml", "--model", "other.onnx", says=["QD-PLAN-OTHER-MODEL"])


def test_export_never_replaces_the_model(desk: Any, exported: Any) -> None:
    Path("plan.yaml").rename("net.yaml")
    desk.refused("export", "net.yaml", "--force", says=["QD-USAGE-SAME-FILE", "net.onnx"])


def test_export_of_a_plan_whose_model_is_elsewhere(desk: Any) -> None:
    desk.write("lost.yaml", "schema: qdebug.plan/1\nprecision: fp16\nmodel: {path: gone.onnx}\n")
    desk.refused(
        "export", "lost.yaml", says=["QD-PLAN-NO-MODEL", "lost.yaml", "gone.onnx", "--model"]
    )


@pytest.mark.parametrize("named", ["net.onnx", "models/net.onnx", "../elsewhere/net.onnx"])
def test_a_model_that_moved_with_its_plan(desk: Any, named: str) -> None:
    """It is looked for from the working directory, then beside the plan, by every command."""
    plan = f"schema: qdebug.plan/1\nprecision: fp16\nmodel: {{path: {named}}}\n"
    (desk.folder / "moved" / "models").mkdir(parents=True)
    desk.write("moved/plan.yaml", plan)
    kept = "moved/models/net.onnx" if named.startswith("models") else "moved/net.onnx"
    Path("net.onnx").rename(kept)
    run = ["--plan", "moved/plan.yaml", "--inputs", "data.npz", "--json", "-"]
    assert Path(desk.run("compare", *run).json["model"]["path"]) == Path(kept)
    assert desk.run("bisect", *run, "--target", "output.cosine>=0.9").code == 0
    config = desk.write("c.yaml", "command: compare\nplan: moved/plan.yaml\ninputs: data.npz\n")
    assert desk.run("compare", "--config", config).code == 0
    assert desk.run("export", "moved/plan.yaml", "-o", "half.onnx").code == 0
    assert desk.run("inspect", "half.onnx", "--expect", "moved/plan.yaml").code == 0
    Path(kept).rename("net.onnx")
    if not named.startswith("net"):
        says = ["QD-PLAN-NO-MODEL", "moved/plan.yaml", named]
        desk.refused("compare", *run[:-2], says=[*says, "MODEL"])
        desk.refused("inspect", "half.onnx", "--expect", "moved/plan.yaml", says=[*says, "--model"])


def test_a_model_that_is_given_needs_no_plan_to_name_it(desk: Any) -> None:
    desk.write("lost.yaml", "schema: qdebug.plan/1\nprecision: fp16\nmodel: {path: gone.onnx}\n")
    run = ["--plan", "lost.yaml", "--inputs", "data.npz"]
    assert desk.run("compare", "net.onnx", *run).code == 0
    assert desk.run("export", "lost.yaml", "--model", "net.onnx").code == 0
    config = desk.write("c.yaml", "command: compare\nmodel: net.onnx\n")
    assert desk.run("compare", *run, "--config", config).code == 0


def test_export_of_a_plan_that_names_no_model(desk: Any) -> None:
    desk.write("bare.yaml", "schema: qdebug.plan/1\nprecision: fp16\n")
    desk.refused("export", "bare.yaml", says=["QD-PLAN-NO-MODEL", "bare.yaml", "--model"])
    assert desk.run("export", "bare.yaml", "--model", "net.onnx").code == 0
    assert Path("bare.onnx").exists()


def test_export_of_a_plan_without_ranges(desk: Any) -> None:
    desk.write("bare.yaml", "schema: qdebug.plan/1\nprecision: int8\n")
    desk.refused(
        "export", "bare.yaml", "--model", "net.onnx", says=["QD-PLAN-RANGE-MISSING", "'x'"]
    )
