"""`qdebug export`: plans and calibrations, for every tool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from qdebug.network.load import read_model
from qdebug.plan.export import EXPORT_TARGETS


@pytest.fixture
def calibrated(desk: Any) -> Any:
    """scales.yaml and net.cache of net.onnx, and plan.yaml with the same ranges."""
    flags = ("--calib-data", "calib.npz", "--method", "minmax", "--no-progress")
    done = desk.run(
        "calibrate", "net.onnx", *flags, "-o", "scales.yaml", "--trt-cache", "net.cache"
    )
    assert done.code == 0, done.err
    scales = yaml.safe_load(Path("scales.yaml").read_text())
    plan = {"schema": "qdebug.plan/1", "model": scales["model"]}
    plan["tensors"] = {name: {"amax": t["amax"]} for name, t in scales["tensors"].items()}
    desk.write("plan.yaml", yaml.safe_dump(plan))
    return desk


def test_settings_from_a_file(calibrated: Any) -> None:
    """As `inspect` takes them, of the model that was written."""
    calibrated.write("export.yaml", "command: export\nplan: plan.yaml\noutput: out.onnx\n")
    done = calibrated.run("export", "--config", "export.yaml")
    assert (done.code, done.out) == (0, "Wrote out.onnx\n"), done.err
    calibrated.write("inspect.yaml", "file: out.onnx\nexpect: plan.yaml\n")
    done = calibrated.run("inspect", "--config", "inspect.yaml", "--json", "-")
    assert done.code == 0, done.err
    assert {layer["verdict"] for layer in done.json["audit"]["layers"]} == {"as-planned"}
    calibrated.refused(
        "inspect", "--config", "export.yaml", says=["QD-USAGE-CONFIG-FILE", "export.yaml:1"]
    )


@pytest.mark.parametrize("target", EXPORT_TARGETS)
def test_every_target_by_its_default_name(calibrated: Any, target: str) -> None:
    before = set(calibrated.files())
    done = calibrated.run("export", "plan.yaml", "--to", target)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    written = [line.removeprefix("Wrote ") for line in lines if line.startswith("Wrote ")]
    assert written[0] == f"plan{EXPORT_TARGETS[target].suffix}"
    assert set(calibrated.files()) - before == set(written)
    assert os.access("plan_trtexec.sh", os.X_OK) == (target == "trtexec")
    assert all(line.startswith("Note: ") for line in lines[len(written) :]) and not done.err


@pytest.mark.parametrize("source", ["scales.yaml", "net.cache"])
def test_a_calibration_becomes_the_same_model_as_a_plan(calibrated: Any, source: str) -> None:
    calibrated.run("export", "plan.yaml", "-o", "plan.onnx")
    done = calibrated.run("export", source, "--model", "net.onnx", "-o", "other.onnx")
    assert (done.code, done.out, done.err) == (0, "Wrote other.onnx\n", "")
    assert Path("other.onnx").read_bytes() == Path("plan.onnx").read_bytes()
    for target in ("trt-cache", "ort", "trtexec"):
        flags = ("--model", "net.onnx", "--to", target, "-o", f"out/{target}")
        Path("out").mkdir(exist_ok=True)
        assert calibrated.run("export", source, *flags).code == 0
    assert (
        Path("out/trt-cache").read_text().splitlines()[1:]
        == (Path("net.cache").read_text().splitlines()[1:])
    )


def test_scales_name_their_model_and_a_cache_does_not(calibrated: Any) -> None:
    assert calibrated.spawn("export", "scales.yaml").code == 0
    assert Path("scales.onnx").exists()
    says = ["QD-PLAN-NO-MODEL", "net.cache", "--model"]
    calibrated.refused("export", "net.cache", "-o", "o.onnx", says=says)


def test_missing_ranges_are_refused_or_stay_in_float(calibrated: Any) -> None:
    lines = Path("net.cache").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("x:", "r1:"))]
    calibrated.write("some.cache", "\n".join(kept) + "\n")
    command = ("export", "some.cache", "--model", "net.onnx", "-o", "some.onnx")
    says = ["QD-PLAN-RANGE-MISSING", "some.cache: 2", "'x', 'r1'", "fp32", "--missing"]
    calibrated.refused(*command, says=says)
    done = calibrated.run(*command, "--missing", "float")
    assert done.code == 0 and "2 layers" in done.out and "'conv1'" in done.out
    quantized = [n for n in onnx.load("some.onnx").graph.node if n.op_type == "QuantizeLinear"]
    assert [n.input[0] for n in quantized] == ["f"]
    calibrated.refused(
        *command[:-1], "z", "--missing", "int4", says=["QD-USAGE-CHOICE", "--missing", "'int4'"]
    )


def test_ranges_of_another_model(calibrated: Any, cnn: Any) -> None:
    calibrated.save(cnn(batch=3), "other.onnx")
    command = ("export", "scales.yaml", "--model", "other.onnx", "-o", "o.onnx")
    calibrated.refused(*command, says=["QD-PLAN-OTHER-MODEL", "scales.yaml"])
    calibrated.write("else.cache", "TRT-101100-EntropyCalibration2\nother: 3c010a14\n")
    command = ("export", "else.cache", "--model", "net.onnx", "-o", "o.onnx")
    calibrated.refused(*command, says=["QD-PLAN-TENSOR", "else.cache", "net.onnx", "'other'"])


def test_files_that_targets_share_are_no_conflict(calibrated: Any) -> None:
    assert calibrated.run("export", "plan.yaml", "--to", "polygraphy").code == 0
    assert calibrated.run("export", "plan.yaml", "--to", "trtexec").code == 0
    assert calibrated.run("export", "plan.yaml", "--to", "python").code == 0
    again = ("export", "plan.yaml", "--to", "python")
    calibrated.refused(*again, says=["QD-STORE-OUTPUT-EXISTS", "plan_build.py", "--force"])
    # Another companion than this plan's is not replaced unasked, and nothing else is written then.
    calibrated.write("plan.explicit.onnx", "mine")
    Path("plan_build.py").unlink()
    calibrated.refused(*again, says=["QD-STORE-OUTPUT-EXISTS", "plan.explicit.onnx", "--force"])
    assert calibrated.run(*again, "--force").code == 0
    onnx.checker.check_model(onnx.load("plan.explicit.onnx"))


def test_of_two_exports_at_once_one_is_refused(
    calibrated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both write the same: each says that the file is its own."""
    command = ("export", "plan.yaml", "--to", "onnx", "-o", "out.onnx")
    assert calibrated.run(*command).code == 0
    written = Path("out.onnx").read_bytes()
    Path("out.onnx").unlink()

    def read(path: str) -> Any:
        Path("out.onnx").write_bytes(written)  # as the other one does meanwhile
        return read_model(path)

    monkeypatch.setattr("qdebug.commands.export.read_model", read)
    done = calibrated.run(*command)
    assert done.code == 2 and "QD-STORE-OUTPUT-EXISTS" in done.err


def test_a_companion_never_replaces_the_model_or_the_plan(calibrated: Any) -> None:
    Path("net.onnx").rename("plan.explicit.onnx")
    command = ("export", "plan.yaml", "--model", "plan.explicit.onnx", "--to", "python")
    calibrated.refused(*command, "--force", says=["QD-USAGE-SAME-FILE", "plan.explicit.onnx"])


def test_what_a_target_cannot_express_is_said(calibrated: Any) -> None:
    text = Path("plan.yaml").read_text()
    calibrated.write("mixed.yaml", text + "layers: {conv1: fp16, fc: fp32}\nweights: per-tensor\n")
    said = {t: calibrated.run("export", "mixed.yaml", "--to", t).out for t in EXPORT_TARGETS}
    assert "Note: " not in said["onnx"]
    assert "1 layer" in said["ort"] and "'conv1'" in said["ort"]
    assert "1 layer" in said["modelopt"] and "'conv1'" in said["modelopt"]
    assert "2 layers" in said["trt-cache"]
    notes = {target: said[target].count("Note: ") for target in EXPORT_TARGETS}
    assert all(notes[target] >= 2 for target in ("trtexec", "polygraphy", "python")), notes


def test_a_model_in_another_folder(calibrated: Any, tmp_path: Path) -> None:
    Path("models").mkdir()
    Path("net.onnx").rename("models/net.onnx")
    command = ("export", "plan.yaml", "--model", "models/net.onnx", "--to", "ort")
    assert calibrated.run(*command, "-o", "q.py").code == 0
    assert '"model": "models/net.onnx"' in Path("q_ort.json").read_text()


def test_a_calibration_for_fp8_is_exported_in_fp8(calibrated: Any) -> None:
    flags = "--calib-data", "calib.npz", "--method", "mse", "--no-progress", "-o", "fp8.yaml"
    done = calibrated.run("calibrate", "net.onnx", *flags, "--precision", "fp8")
    assert done.code == 0, done.err
    assert calibrated.run("export", "fp8.yaml", "--to", "onnx", "-o", "out.onnx").code == 0
    kinds = {t.data_type for t in onnx.load("out.onnx").graph.initializer}
    assert onnx.TensorProto.FLOAT8E4M3FN in kinds and onnx.TensorProto.INT8 not in kinds


def test_a_plan_of_weights_alone_needs_no_ranges(desk: Any) -> None:
    done = desk.run(
        *("compare", "net.onnx", "--inputs", "data.npz", "--precision", "w4", "--effect", "none"),
        *("--save-plan", "w4.yaml", "--no-progress"),
    )
    assert done.code == 0, done.err
    done = desk.run("export", "w4.yaml", "-o", "out.onnx")
    assert (done.code, done.out) == (0, "Wrote out.onnx\n"), done.err
    kinds = [n.op_type for n in onnx.load("out.onnx").graph.node]
    assert kinds.count("DequantizeLinear") == 1 and "QuantizeLinear" not in kinds
