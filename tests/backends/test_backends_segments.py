"""Models in segments: no bit depends on them, and memory is that of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from control_flow import INT64, loop_net, scan_net, value, voice_net, voice_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from refusals import refused
from results import without_times
from varying import CASES

import qdebug
from qdebug.backends import simulation
from qdebug.backends.options import SessionSettings
from qdebug.backends.segmentation import Segmentation
from qdebug.backends.segments import SegmentedSession, places_for
from qdebug.backends.simulation import SimulationBackend, SimulationSession
from qdebug.network.graph import Graph
from qdebug.network.weights import executed_bytes, tensor_of
from qdebug.types import Feeds, Tensors

DATA = Path(__file__).parents[2] / "calib_data"
Network = tuple[onnx.ModelProto, Feeds]


def quantized(name: str) -> Network:
    """A bundled network, with Q/DQ as exported."""
    path = str(DATA / name)
    plan = qdebug.calibrate(
        path, calib_data=str(DATA / "digits_calib.npz"), samples=16, cache=False
    )
    folder = Path(os.environ["QDEBUG_CACHE_DIR"])
    scales, out = folder / f"{name}.yaml", folder / f"{name}.int8.onnx"
    scales.write_text(plan.scales_yaml(), encoding="utf-8")
    qdebug.export(scales, to="onnx", model=path, output=out, force=True)
    return onnx.load(out), digits(name)


def digits(name: str) -> Feeds:
    inputs = Graph(onnx.load(DATA / name)).inputs
    with np.load(DATA / "digits_holdout.npz") as file:
        return {spec.name: file[spec.name][:2].astype(spec.dtype) for spec in inputs}


def varying(name: str) -> Network:
    case = CASES[name]()
    return case.proto, case.feeds(case.sizes, 0)[0]


def loops() -> Network:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    return loop_net(None), {"x": x, "n": np.array(2, np.int64)}


def scans() -> Network:
    return scan_net(), {"x": np.random.default_rng(0).normal(size=(1, 4, 5)).astype(np.float32)}


def passed_on() -> Network:
    """Outputs that are an input, a constant, and what numpy holds of a sequence."""
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("SequenceConstruct", ["n", "x"], ["s"], "list"),
        helper.make_node("Abs", ["n"], ["a"], "abs"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], "join", axis=0),
        helper.make_node("TopK", ["a", "k"], ["top", "at"], "top"),
    ]
    held = [onnx.numpy_helper.from_array(np.array([2], np.int64), "k")]
    outputs = [value("y", [None]), value("x", [4]), value("top", [2]), value("at", [2], INT64)]
    graph = helper.make_graph(nodes, "g", [value("x", [4])], outputs, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"x": np.array([1, -3, 2, 0], np.float32)}


NETWORKS: dict[str, Callable[[], Network]] = {
    **{name: partial(varying, name) for name in CASES},
    "voice": lambda: (voice_net(), voice_samples(1)[0]),
    "loops": loops,
    "scans": scans,
    "passed_on": passed_on,
    "cnn": lambda: (onnx.load(DATA / "digits_cnn.onnx"), digits("digits_cnn.onnx")),
    "encoder": lambda: (onnx.load(DATA / "digits_encoder.onnx"), digits("digits_encoder.onnx")),
    "cnn int8": lambda: quantized("digits_cnn.onnx"),
    "encoder int8": lambda: quantized("digits_encoder.onnx"),
}


@cache
def network(name: str) -> Network:
    return NETWORKS[name]()


def opened(proto: onnx.ModelProto, capture: Sequence[str], places: Sequence[int] | None) -> Any:
    """A session that is cut at these places of what is executed; None does not cut."""
    count = "off" if places is None else "2"
    sessions = SessionSettings.of((), count)
    with patch.object(simulation, "places_for", lambda *_: places):
        return SimulationBackend(1, sessions=sessions).open(proto, capture)


def same(expected: Tensors, found: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (array.dtype, array.shape) == (found[name].dtype, found[name].shape), name
        assert array.tobytes() == found[name].tobytes(), name


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_is_cut_everywhere(name: str) -> None:
    proto, feeds = network(name)
    whole, cut = opened(proto, [], None), opened(proto, [], range(1, 1000))
    assert len(cut.segments) > 1
    same(whole.run(feeds), cut.run(feeds))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(NETWORKS)), st.booleans(), st.sets(st.integers(1, 120), max_size=8))
def test_no_bit_depends_on_where_a_model_is_cut(
    name: str, all_tensors: bool, places: set[int]
) -> None:
    proto, feeds = network(name)
    capture = [t for node in proto.graph.node for t in node.output if t] if all_tensors else []
    whole = opened(proto, capture, None)
    cut = opened(proto, capture, sorted(places))
    assert isinstance(cut, SegmentedSession)
    assert (cut.dtypes, cut.skipped) == (whole.dtypes, whole.skipped)
    same(whole.run(feeds), cut.run(feeds))
    same(whole.run(feeds), cut.run({**feeds, "unknown": np.zeros(1)}))


def test_segments_have_equal_weights() -> None:
    proto, _ = chain(12, 64)
    assert places_for(proto, {}, Segmentation(count=4)) == [6, 12, 18]
    assert places_for(proto, {}, Segmentation(14 * 64 * 64 * 4)) == [6, 12, 18]
    assert places_for(proto, {}, Segmentation(28 * 64 * 64 * 4), 2) == [6, 12, 18]
    assert places_for(proto, {}, Segmentation(4)) == list(range(1, 24))


def test_cuts_are_where_little_crosses() -> None:
    proto, _ = chain(12, 64)
    sizes = {t: 1000 for node in proto.graph.node for t in node.output} | {"m4": 1}
    assert places_for(proto, sizes, Segmentation(count=2)) == [9]


def test_a_closed_session_and_a_feed_that_is_missing() -> None:
    proto, feeds = network("attention")
    session = opened(proto, [], [1])
    with refused("QD-BACKEND-EXECUTE"):
        session.run({})
    session.close()
    session.close()
    with refused("QD-BACKEND-CLOSED"):
        session.run(feeds)


def test_automatic_cuts_follow_the_budget() -> None:
    assert not Segmentation.of("off", 1).cuts(2**40)
    assert not Segmentation.of("auto", 4000).cuts(4000)
    assert Segmentation.of("auto", 4000).cuts(4001)
    assert Segmentation.of("2").cuts(0)


def test_codes_count_as_what_they_are_dequantized_to() -> None:
    codes = np.ones((512, 600), np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 512]), ("y", None))
    )
    scale = numpy_helper.from_array(np.float32(0.5), "scale")
    graph = helper.make_graph(nodes, "g", [x], [y], [tensor_of(codes, "codes"), scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert executed_bytes(model) == 4 * codes.nbytes
    fitting = executed_bytes(model)
    for budget, kind in ((fitting, SimulationSession), (fitting - 1, SegmentedSession)):
        sessions = SessionSettings(segmentation=Segmentation(budget))
        with closing(SimulationBackend(1, sessions=sessions).open(model, ())) as one:
            assert isinstance(one, kind)


def results(network: str, segments: str) -> list[Any]:
    """Of every command that executes a whole network."""
    model, inputs = str(DATA / network), str(DATA / "digits_holdout.npz")
    data: dict[str, Any] = {"calib_data": str(DATA / "digits_calib.npz"), "cache": False}
    how: dict[str, Any] = {"samples": 8, "segments": segments}
    given: dict[str, Any] = {"inputs": inputs, **data, "calib_samples": 8, **how}
    found = [
        qdebug.compare(model, **given),
        qdebug.compare(model, **given, precision="fp16", effect="none"),
        qdebug.bisect(model, **given, target="output.sqnr_db>=30", max_evaluations=3),
        qdebug.calibrate(model, **data, **how, method="minmax"),
        qdebug.ranges(model, **data, **how),
    ]
    return [without_times(result.to_dict()) for result in found]


def test_results_of_commands_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    for segments in ("off", "3"):
        monkeypatch.setenv("QDEBUG_CACHE_DIR", str(tmp_path / segments))
        found.append(results("digits_cnn.onnx", segments))
    for one, other in zip(*found, strict=True):
        assert one == other


PEAK = """
import sys
from qdebug.cli.app import main
code = main(sys.argv[1:])
lines = open("/proc/self/status").read().splitlines()
print(code, *(line.split()[1] for line in lines if line.startswith("VmHWM")), file=sys.stderr)
"""


def chain(layers: int, width: int, rows: int = 1) -> Network:
    """Matrix products with weights of their own, `width` × `width`, and a step between them;
    samples of `rows` × `width`."""
    rng = np.random.default_rng(0)
    nodes, held, last = [], [], "x"
    for k in range(layers):
        weight = rng.standard_normal((width, width), np.float32) / np.sqrt(width / 2)
        held.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{k}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"], f"product{k}"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"], f"relu{k}"))
        last = f"r{k}"
    shape = [1, rows, width] if rows > 1 else [1, width]
    values = [helper.make_tensor_value_info(t, TensorProto.FLOAT, shape) for t in ("x", last)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"x": rng.standard_normal(shape, np.float32)}


COMPARE = "compare", "--effect", "none"
SEARCH = "bisect", "--target", "output.sqnr_db>=200", "--max-evaluations", "4"


def peak(model: Path, data: Path, *arguments: str, command: Sequence[str] = COMPARE) -> float:
    """The most memory that a command takes by the kernel, pages of mapped files too, in bytes."""
    given = [str(model), "--inputs", str(data), "--no-cache", "--no-progress"]
    run = subprocess.run(
        [sys.executable, "-c", PEAK, *command, *given, *arguments],
        capture_output=True,
        text=True,
        check=True,
        # How much the arenas of threads keep is chance: 0.1 GB between two runs of one command.
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )
    code, kilobytes = run.stderr.split()[-2:]
    assert code == "0", run.stderr
    return 1024.0 * float(kilobytes)


def test_what_nobody_reads_is_no_segment() -> None:
    """A comparison does not ask for all that its cut layers compute."""
    data = str(DATA / "digits_calib.npz")
    one, other = (
        qdebug.compare(
            str(DATA / "digits_cnn.onnx"), inputs=data, calib_data=data, samples=2, calib_samples=8,
            effect="none", cache=False, segments=segments,
        )
        for segments in ("off", "60")
    )  # fmt: skip
    assert without_times(one.to_dict()) == without_times(other.to_dict())


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is Linux's")


@LINUX
def test_the_memory_budget_holds(tmp_path: Path) -> None:
    """By the kernel's peak: 150 MB of weights with a budget of 64 MB. Python, the libraries and
    calibration take 160 MB."""
    model, data = tmp_path / "model.onnx", tmp_path / "x.npz"
    proto, feeds = chain(36, 1024)
    np.savez(data, **{n: np.repeat(a, 4, axis=0) for n, a in feeds.items()})
    onnx.save(proto, model, save_as_external_data=True, location="model.data")
    bound = (64 << 20) + 0.2e9
    assert peak(model, data, "--memory-budget", "64M") < bound
    assert peak(model, data, "--memory-budget", "64M", "--segments", "off") > 1.4 * bound
    weights = (tmp_path / "model.data").stat().st_size
    bound = 1.3 * weights + (64 << 20) + 0.5e9
    within = "--memory-budget", "64M", "--precision", "fp16"
    assert peak(model, data, *within, "--samples", "1") < bound
    assert peak(model, data, *within, "--samples", "1", "--fp16-kernels", "exact") < bound
    assert peak(model, data, *within, command=SEARCH) < bound


def convolutions(layers: int, width: int) -> Network:
    """3 × 3 convolutions with weights of their own, of `width` channels, on 6 × 6 images."""
    rng = np.random.default_rng(0)
    nodes, held, last = [], [], "x"
    for k in range(layers):
        weight = rng.standard_normal((width, width, 3, 3), np.float32) / np.sqrt(4.5 * width)
        held.append(onnx.numpy_helper.from_array(weight.astype(np.float32), f"w{k}"))
        conv = helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], f"conv{k}", pads=[1] * 4)
        nodes += [conv, helper.make_node("Relu", [f"c{k}"], [f"r{k}"], f"relu{k}")]
        last = f"r{k}"
    shape = [1, width, 6, 6]
    values = [helper.make_tensor_value_info(t, TensorProto.FLOAT, shape) for t in ("x", last)]
    graph = helper.make_graph(nodes, "convolutions", values[:1], values[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"x": rng.standard_normal(shape, np.float32)}


@LINUX
@pytest.mark.parametrize("command", [COMPARE, SEARCH])
def test_the_memory_budget_holds_for_convolutions(command: Sequence[str], tmp_path: Path) -> None:
    """ONNX Runtime reorders their weights, in a copy of each session, where that is allowed."""
    model, data = tmp_path / "model.onnx", tmp_path / "x.npz"
    proto, feeds = convolutions(20, 256)
    np.savez(data, **{n: np.repeat(a, 4, axis=0) for n, a in feeds.items()})
    onnx.save(proto, model)
    bound = 1.3 * model.stat().st_size + (64 << 20) + 0.2e9
    assert peak(model, data, "--memory-budget", "64M", command=command) < bound


@LINUX
def test_the_memory_budget_holds_for_activations(tmp_path: Path) -> None:
    """Of a search, too, which rates the layers first. The tensors of one sample, 84 MB, exist three
    times: as of FP32, of the candidate, and of cut layers."""
    model, data = tmp_path / "model.onnx", tmp_path / "x.npz"
    proto, feeds = chain(20, 64, rows=8192)
    np.savez(data, **{n: np.repeat(a, 4, axis=0) for n, a in feeds.items()})
    onnx.save(proto, model)
    bound = 3 * 40 * feeds["x"].nbytes + 0.2e9
    assert peak(model, data, "--memory-budget", "64M", command=SEARCH) < bound
