"""`compare`, `bisect` and `sweep` with TensorRT 10 and 11: NVIDIA's bindings over a builder that
does what it is told, and engines that compute it (see obedient)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

COMMANDS = """
import contextlib, io, json, os, sys
from obedient import obedient_library
from qdebug.cli.app import main
library, recorder = obedient_library()

def run(command):
    out, err = io.StringIO(), io.StringIO()
    start = len(recorder.calls)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    calls = recorder.calls[start:]
    return dict(
        code=code, out=out.getvalue(), err=err.getvalue(),
        flags=sorted({a[0].name for _, what, a in calls if what == "set_flag"}),
        weak=sum(what == "create_network" and a == (0,) for _, what, a in calls),
        ranges=sum(what == "set_dynamic_range" for _, what, _ in calls),
        calibrators=sum(what == "int8_calibrator" for _, what, _ in calls),
        memory=[[pool.name, size] for _, what, (pool, size) in
                (c for c in calls if c[1] == "set_memory_pool_limit")],
        set={what: a for _, what, a in calls if what in
             ("set_tactic_sources", "builder_optimization_level", "set_shape")},
    )

for line in sys.stdin:
    folder, cache, commands = json.loads(line)
    os.chdir(folder)
    os.environ["QDEBUG_CACHE_DIR"] = cache
    print(json.dumps([run(command) for command in commands]), flush=True)
"""


@pytest.fixture(scope="module")
def processes(environment: Callable[..., dict[str, str]]) -> Iterator[Callable[[str], Any]]:
    """`processes(version)`: one for all tests, which runs the commands of every line it is sent."""
    with ExitStack() as stack:

        @cache
        def start(version: str) -> Any:
            command, pipe = [sys.executable, "-c", COMMANDS], subprocess.PIPE
            return stack.enter_context(
                subprocess.Popen(
                    command, env=environment(version), stdin=pipe, stdout=pipe, text=True
                )
            )

        yield start


@pytest.fixture
def desk(processes: Callable[[str], Any], tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """`desk(version, *commands)`: what each ends with, in a folder with net.onnx and data.npz."""
    folder = tmp_path / "desk"
    folder.mkdir()
    onnx.save(network(), folder / "net.onnx")
    data = np.random.default_rng(1).normal(size=(6, 3, 6, 6)).astype(np.float32)
    np.savez(folder / "data.npz", x=data)

    def run(version: str, *commands: Sequence[str]) -> list[dict[str, Any]]:
        process = processes(version)
        process.stdin.write(json.dumps([str(folder), str(tmp_path / "cache"), commands]) + "\n")
        process.stdin.flush()
        told: list[dict[str, Any]] = json.loads(process.stdout.readline())
        return told

    return run


def network() -> onnx.ModelProto:
    """Conv first → Relu → Conv second (weights of very unequal channels) → pool → Gemm head."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    weights = {
        "w1": rng.normal(size=(4, 3, 3, 3)),
        "w2": rng.normal(size=(4, 4, 3, 3)) * np.logspace(0, 2, 4).reshape(4, 1, 1, 1),
        "w3": rng.normal(size=(5, 4)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "second", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3"], ["out"], "head", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [value("x", 1, ["N", 3, 6, 6])],
        [value("out", 1, ["N", 5])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


DATA = ["net.onnx", "--inputs", "data.npz", "--backend", "tensorrt"]
COMPARE = ["compare", *DATA, "--batch-size", "3"]
JSON = ["--json", "-"]


def test_both_lowerings_compute_the_same(desk: Any) -> None:
    """What the builder is told is what is simulated: an engine that obeys has no error of its own,
    however it is told, and is built as planned."""
    ways = ("strong", "implicit", "implicit-cache")
    done = desk("10.16.1.11", *([*COMPARE, "--typing", way, *JSON] for way in ways))
    assert [d["code"] for d in done] == [0, 0, 0], done
    strong, implicit, cached = done
    results = [json.loads(d["out"]) for d in done]
    for way, result in zip(ways, results, strict=True):
        engine = result["engine"]
        assert engine["library"] == "TensorRT 10.16.1.11" + ("" if way == "strong" else f", {way}")
        assert engine["executed"] and engine["audit"]["passed"]
        asked = {row["name"]: row["built"] for row in engine["audit"]["layers"]}
        assert (asked["first"], asked["second"], asked["head"]) == ("int8", "int8", "int8")
        # Equal but for ties: the reference evaluator adds up in another order than ONNX Runtime.
        assert all(
            t["kernel_db"] is None or t["kernel_db"] > 50 for t in engine["execution"]["tensors"]
        )
        assert 20 < result["outputs"][0]["sqnr_db"] < 60
    assert results[0]["outputs"] == results[1]["outputs"]
    assert strong["flags"] == [] and strong["weak"] == strong["ranges"] == 0
    for told in (implicit, cached):
        assert told["flags"] == ["INT8", "OBEY_PRECISION_CONSTRAINTS"]
        assert told["weak"] > 0
    assert implicit["ranges"] > 0 and implicit["calibrators"] == 0
    assert cached["ranges"] == 0 and cached["calibrators"] > 0


def test_a_plan_with_fp16_and_pins(desk: Any, tmp_path: Path) -> None:
    plan = (
        "schema: qdebug.plan/1\nfallback_precision: fp16\nlayers:\n  second: fp32\n  head: fp16\n"
    )
    (tmp_path / "desk" / "plan.yaml").write_text(plan)
    flags = [*COMPARE, "--plan", "plan.yaml", "--weights", "per-tensor", "--typing", "implicit"]
    (done,) = desk("10.16.1.11", [*flags, *JSON])
    assert done["code"] == 0, done
    assert done["flags"] == ["FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"]
    result = json.loads(done["out"])
    built = {row["name"]: row["built"] for row in result["engine"]["audit"]["layers"]}
    assert built["first"] == "int8" and built["second"] == "fp32" and built["head"] == "fp16"
    assert any("per output channel, never per tensor" in note for note in result["notes"])


@pytest.mark.parametrize("version", ["10.16.1.11", "11.4.0.106"])
def test_every_flag_reaches_the_builder(
    desk: Any, stubs: Callable[[str], Path], tmp_path: Path, version: str
) -> None:
    plugin = next(stubs(version).glob("libnvinfer_plugin*"))
    timing = tmp_path / "timing.bin"
    flags = [
        "--workspace", "1G", "--optimization-level", "4", "--tactic-source", "JIT_CONVOLUTIONS",
        "--tactic-source", "EDGE_MASK_CONVOLUTIONS", "--timing-cache", str(timing), "--sparsity",
        "--tf32", "--refit", "--version-compatible", "--plugin", str(plugin),
    ]  # fmt: skip
    told, refused = desk(version, [*COMPARE, *flags], [*COMPARE, "--timing-cache", str(tmp_path)])
    assert told["code"] == 0, told
    assert told["flags"] == ["REFIT", "SPARSE_WEIGHTS", "TF32", "VERSION_COMPATIBLE"]
    assert ["WORKSPACE", 2**30] in told["memory"]
    first = 0 if version.startswith("11") else 3  # of the two, in their TacticSource
    assert told["set"]["set_tactic_sources"] == [(1 << first) + (1 << first + 1)]
    assert told["set"]["builder_optimization_level"] == [4]
    assert told["set"]["set_shape"] == ["x", *[[3, 3, 6, 6]] * 3]  # batches of 3
    assert timing.read_bytes() == b"timings"
    assert refused["code"] == 2 and f"--timing-cache: {tmp_path}" in refused["err"]
    assert "[QD-STORE-OUTPUT-PATH]" in refused["err"]


def test_a_search_on_engines(desk: Any) -> None:
    search = [
        "bisect",
        *DATA,
        "--typing",
        "implicit",
        "--pin-to",
        "fp32",
        "--holdout-share",
        "0.34",
    ]
    (done,) = desk("10.16.1.11", [*search, "--target", "output.sqnr_db>=46", *JSON])
    assert done["code"] == 0, done
    result = json.loads(done["out"])
    assert result["pinned"] and result["engine"]["audit"]["passed"]
    assert any("on the engine" in check["on"] for check in result["checks"]), result["checks"]
    assert done["weak"] > 1 and "OBEY_PRECISION_CONSTRAINTS" in done["flags"]


def test_a_sweep_over_the_lowerings(desk: Any) -> None:
    axes = ["--typing", "strong,implicit", "--precision", "int8,fp16"]
    (done,) = desk("10.16.1.11", ["sweep", *DATA, *axes, *JSON])
    assert done["code"] == 0, done
    rows = json.loads(done["out"])["combinations"]
    assert [(r["precision"], r["typing"]) for r in rows] == [
        ("int8", "strong"), ("int8", "implicit"), ("fp16", "strong"), ("fp16", "implicit"),
    ]  # fmt: skip
    assert all(row["engine"]["values"]["mismatch_count"] == 0 for row in rows)
    assert rows[0]["execution"]["sqnr_db"] == rows[1]["execution"]["sqnr_db"]


def test_tensorrt_11_has_no_implicit_way(desk: Any) -> None:
    refused, strong = desk("11.4.0.106", [*COMPARE, "--typing", "implicit"], [*COMPARE, *JSON])
    assert refused["code"] == 2 and "TensorRT 11.4.0.106" in refused["err"], refused
    assert "[QD-USAGE-IMPLICIT]" in refused["err"] and "--typing strong" in refused["err"]
    assert strong["code"] == 0 and json.loads(strong["out"])["engine"]["audit"]["passed"], strong


def test_a_model_with_qdq_says_its_precisions(desk: Any) -> None:
    made = desk(
        "10.16.1.11",
        [*COMPARE, "--save-plan", "plan.yaml"],
        ["export", "plan.yaml", "--to", "onnx", "-o", "qdq.onnx"],
        ["compare", "qdq.onnx", *DATA[1:], "--typing", "implicit"],
        ["compare", "qdq.onnx", *DATA[1:], *JSON],
    )
    assert [done["code"] for done in made] == [0, 0, 2, 0], made
    assert "--typing implicit: qdq.onnx" in made[2]["err"]
    assert "[QD-USAGE-TYPING-QUANTIZED]" in made[2]["err"]
