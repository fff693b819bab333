"""The shell script: run with a stand-in for trtexec, its flags read as trtexec reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdebug.plan.constraints import constraints_in, constraints_of
from qdebug.plan.parsed_network import constrain, nodes_of, ranges_in
from qdebug.plan.trtcache import read_cache

BUNDLED = Path(__file__).parents[3] / "calib_data"
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
        assert kind in ("fp32", "fp16", "int8")
        found[name] = kind
    return found


def told(network: Any, arguments: list[str]) -> Any:
    """`network` after trtexec's setLayerPrecisions and setLayerOutputTypes."""
    import tensorrt_rtx as trt

    types = {"fp32": trt.DataType.FLOAT, "fp16": trt.DataType.HALF, "int8": trt.DataType.INT8}
    precisions = read_spec(arguments, "--layerPrecisions")
    outputs = read_spec(arguments, "--layerOutputTypes")
    for layer in network.layers:
        if layer.name in precisions:
            layer.precision = types[precisions.pop(layer.name)]
        if layer.name in outputs:
            layer.types = dict.fromkeys(range(layer.num_outputs), types[outputs.pop(layer.name)])
    assert not precisions and not outputs  # every name is that of a layer
    return network


def test_names_that_trtexec_cannot_be_told(
    all_pinned: Any, write: Any, flags: Any, network: Any
) -> None:
    rendered = write(all_pinned, "trtexec")
    arguments = flags("implicit", "--saveEngine=a b.engine")
    assert arguments[0] == "trtexec" and arguments[-1] == "--saveEngine=a b.engine"
    assert {"--int8", "--fp16", "--precisionConstraints=obey"} <= set(arguments)
    folder = all_pinned.model.file.path.parent
    assert f"--onnx={folder}/precision.implicit.onnx" in arguments
    assert f"--calib={folder}/precision.implicit.cache" in arguments
    done = told(network(folder / "precision.implicit.onnx"), arguments)
    pinned = ["c1", "r1", "n2", "r2", "p", "f", "fc_output"]
    assert done.precisions == dict.fromkeys(pinned, "FLOAT")
    # What is left: a comma, a wildcard, quotes, and the name of a constant.
    (said,) = [note for note in rendered.notes if "cannot be told" in note]
    assert "4 layers" in said and "'a, b'" in said
    (gemm,) = [note for note in rendered.notes if "Gemm" in note]
    assert "'fc'" in gemm


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_what_it_is_told_is_what_builds_are(
    net: str, plan_for: Any, write: Any, flags: Any, network: Any, tmp_path: Path
) -> None:
    """trtexec on what the parser makes of the model, against `parsed_network`, which builds use."""
    import tensorrt_rtx as trt

    source = plan_for(BUNDLED / f"{net}.onnx", {"/classifier/Gemm": "fp16"})
    rendered = write(source, "trtexec")
    model = tmp_path / "precision.implicit.onnx"
    asked = constraints_of(source.bound)
    assert constraints_in(onnx.load(model)) == asked
    built, done = network(model), told(network(model), flags("implicit"))
    assert constrain(built, trt, asked) == []
    ranges = ranges_in(built, trt, asked)
    cache = read_cache(tmp_path / "precision.implicit.cache").amax
    assert {name: ranges[name] for name in cache} == pytest.approx(cache)
    graph, free = source.bound.layers.graph, []
    layers = [(nodes_of(x)[0], x, y) for x, y in zip(built.layers, done.layers, strict=True)]
    for node, one, other in (each for each in layers if each[0] == each[1].name):
        if node in asked.others and one.precision != other.precision:
            assert other.precision is None and other.types == {}
            free.append(node)
            continue
        assert one.precision == other.precision
        tensors = [t.name for t in (*one.inputs, *one.outputs)]
        assert other.precision != trt.DataType.INT8 or cache.keys() >= set(tensors)
        if node in graph.by_name and one.outputs[0].name in graph.by_name[node].outputs:
            assert one.types == other.types
        else:  # the first of several layers: what is between them is as precise
            assert other.types.items() - one.types.items() <= {(0, other.precision)}
    said = [note for note in rendered.notes if "cannot name the weights" in note]
    assert bool(said) == bool(free) == (net == "digits_encoder")
    assert all(f"{len(free)} MatMuls" in note and repr(free[0]) in note for note in said)


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
    assert [p.suffix for p in rendered.files] == [".sh", ".onnx", ".onnx"]
    arguments = flags("implicit")
    assert "--fp16" in arguments and "--int8" not in arguments
    precisions = read_spec(arguments, "--layerPrecisions")
    assert precisions.pop("/stem/conv/Conv") == precisions.pop("/stem/act/Clip") == "fp32"
    assert set(precisions.values()) == {"fp16"}
    assert any("dynamic axes" in note and "input:1x1x8x8" in note for note in rendered.notes)


@pytest.mark.parametrize("way", ["", "engine"])
def test_usage(cnn: Path, plan_for: Any, write: Any, tmp_path: Path, way: str) -> None:
    write(plan_for(cnn), "trtexec")
    command = ["bash", str(tmp_path / "precision_trtexec.sh"), *([way] if way else [])]
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode == 2 and "explicit|rtx|implicit" in done.stderr
