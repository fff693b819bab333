"""The shell script: run with a stand-in for trtexec, its flags read as trtexec reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

LONG = "long" * 75
STAND_IN = """#!/usr/bin/env bash
if [ "${1:-}" = --help ]; then echo "$TRTEXEC_HELP"; exit 0; fi
printf '%s\\0' "$(basename "$0")" "$@"
"""


@pytest.fixture
def flags(tmp_path: Path) -> Any:
    """Run the script as another folder's user; the arguments that reach the tool."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("trtexec", "tensorrt_rtx"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)

    def run(way: str, *extra: str, script: str = "precision_trtexec.sh", **env: str) -> list[str]:
        found = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "TRTEXEC_HELP": "", **env}
        command = ["bash", str(tmp_path / script), way, *extra]
        done = subprocess.run(command, env=found, cwd="/", capture_output=True, check=True)
        return done.stdout.decode("utf-8").split("\0")[:-1]

    return run


def read_spec(arguments: list[str], flag: str) -> dict[str, str]:
    """As trtexec's sampleOptions.cpp reads --layerPrecisions: split at commas, then at the last
    colon; single quotes go."""
    given = [a.split("=", 1)[1] for a in arguments if a.startswith(f"{flag}=")]
    if not given:
        return {}
    (spec,) = given
    found = {}
    for entry in spec.split(","):
        assert entry.count("'") == 0
        name, _, kind = entry.rpartition(":")
        assert kind in ("fp32", "fp16")
        found[name] = kind
    return found


def test_constraints_are_those_of_the_layers_that_the_parser_makes(
    all_pinned: Any, write: Any, flags: Any, network: Any
) -> None:
    rendered = write(all_pinned, "trtexec")
    arguments = flags("implicit", "--saveEngine=a b.engine")
    assert arguments[0] == "trtexec" and arguments[-1] == "--saveEngine=a b.engine"
    assert {"--int8", "--fp16", "--precisionConstraints=obey"} <= set(arguments)
    folder = all_pinned.model.file.path.parent
    assert f"--onnx={folder}/odd net.onnx" in arguments
    assert f"--calib={folder}/precision.calibration.cache" in arguments
    precisions = read_spec(arguments, "--layerPrecisions")
    names = ["node_of_c1", "dup", "a/b:c; é", LONG, "pool", "flatten", "fc"]
    assert precisions == dict.fromkeys(names, "fp32")
    layers = {layer.name: layer for layer in network(all_pinned.model.file.path).layers}
    assert precisions.keys() <= layers.keys()
    outputs = {layers[name].outputs[0].name for name in precisions}
    assert outputs == {"c1", "r1", "n2", "r2", "p", "f", "fc_output"}
    # What is left: a comma, a wildcard, quotes, and a name that another node took first.
    (said,) = [note for note in rendered.notes if "cannot be told" in note]
    assert "4 of 11 constraints" in said and "'dup'" in said
    (gemm,) = [note for note in rendered.notes if "Gemm" in note]
    assert "'fc'" in gemm
    # c4 is read by the pool: float, whatever TensorRT likes; o only by an INT8 layer.
    types = read_spec(arguments, "--layerOutputTypes")
    assert types.keys() == precisions.keys() - {"fc"}


def test_the_explicit_way(all_pinned: Any, write: Any, flags: Any) -> None:
    write(all_pinned, "trtexec")
    model = f"--onnx={all_pinned.model.file.path.parent}/precision.explicit.onnx"
    help_10 = "  --stronglyTyped  Create a strongly typed network"
    assert flags("explicit", TRTEXEC_HELP=help_10) == ["trtexec", model, "--stronglyTyped"]
    assert flags("explicit", "--noTF32") == ["trtexec", model, "--noTF32"]  # 11
    assert flags("rtx") == ["tensorrt_rtx", model]


def test_an_fp16_plan_needs_neither_ranges_nor_a_cache(
    cnn: Path, plan_for: Any, write: Any, flags: Any
) -> None:
    rendered = write(plan_for(cnn, {"/stem/conv/Conv": "fp32"}, precision="fp16"), "trtexec")
    assert [p.suffix for p in rendered.files] == [".sh", ".onnx"]
    arguments = flags("implicit")
    assert "--fp16" in arguments and "--int8" not in arguments
    pinned = {"/stem/conv/Conv": "fp32", "/stem/act/Clip": "fp32"}
    assert read_spec(arguments, "--layerPrecisions") == pinned
    assert read_spec(arguments, "--layerOutputTypes") == pinned


def test_a_plan_without_pins_has_no_constraints(
    cnn: Path, plan_for: Any, write: Any, flags: Any
) -> None:
    rendered = write(plan_for(cnn), "trtexec")
    assert [a.partition("=")[0] for a in flags("implicit")[2:]] == ["--int8", "--calib"]
    assert any("dynamic axes" in note and "input:1x1x8x8" in note for note in rendered.notes)


@pytest.mark.parametrize("way", ["", "engine"])
def test_usage(cnn: Path, plan_for: Any, write: Any, tmp_path: Path, way: str) -> None:
    write(plan_for(cnn), "trtexec")
    command = ["bash", str(tmp_path / "precision_trtexec.sh"), *([way] if way else [])]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and "explicit|rtx|implicit" in done.stderr
