"""Real builds by TensorRT for RTX on whatever machine this is: no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import onnx
import pytest
from refusals import refused

from qdebug.backends.engine import BuiltEngine
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.backends.tensorrt.library import Library
from qdebug.backends.tensorrt.process import open_rtx
from qdebug.errors import BackendError
from qdebug.plan.lower import Lowered
from qdebug.types import Progress

Built = Callable[[str, str], BuiltEngine]
Net = Callable[[str, str], Lowered]
Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))
"""For models without dynamic axes."""


def layer_lines(built: BuiltEngine) -> list[str]:
    """What the log says of each layer of the engine."""
    start = built.log.index("[TRT] [V] Layers:")
    section = built.log[start : built.log.index("I/O Tensors", start)]
    return [line for line in section.splitlines() if line.startswith("Name: ")]


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8", "mixed"])
@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_bundled_networks_build(built: Built, net: str, kind: str) -> None:
    engine = built(net, kind)
    lines = layer_lines(engine)
    assert engine.size_bytes > 100_000 and not engine.cached and engine.seconds > 0
    assert engine.skipped == ()
    assert any("Datatype: Int8" in line for line in lines) == (kind in ("int8", "mixed"))
    assert any("Datatype: Half" in line for line in lines) == (kind in ("fp16", "mixed"))
    # TF32 is not a type but a way to compute FP32: it shows in the names of kernels.
    assert "tf32" not in "".join(lines).lower()


def test_progress_rises_to_the_end(rtx: Library, one_node: Node) -> None:
    steps: list[Progress] = []
    build_engine(rtx, one_node("Sigmoid"), PLAIN, progress=steps.append)
    shares = [step.done for step in steps]
    assert shares == sorted(set(shares)) and shares[-1] == steps[-1].total == 100
    assert len(shares) > 5 and {step.stage for step in steps} == {"build"}


def test_tensors_are_observed_by_exact_name(rtx: Library, lowered: Net, ada: BuildSettings) -> None:
    graph = lowered("digits_cnn", "int8").graph
    wanted = "/stem/act/Clip_output_0"
    built = build_engine(
        rtx, graph.proto, ada, outputs=[wanted, "stem*", wanted], debug=["/stem/conv/Conv_output_0"]
    )
    assert [s.tensor for s in built.skipped] == ["stem*"]
    ends = built.log[built.log.index("I/O Tensors") :]
    assert wanted in ends and graph.outputs[0] in ends


def test_names_of_any_kind(rtx: Library) -> None:
    helper = onnx.helper
    names = ["a[0]", "b;c", "日本/語", "n" * 300, "x y:z"]
    chain = ["in", *names, "out"]
    nodes = [
        helper.make_node("Sigmoid" if i % 2 else "Relu", [a], [b], f"node {b}")
        for i, (a, b) in enumerate(pairwise(chain))
    ]
    ends = [helper.make_tensor_value_info(n, 1, (2, 8)) for n in ("in", "out")]
    graph = helper.make_graph(nodes, "names", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    built = build_engine(rtx, proto, PLAIN, outputs=names)
    assert built.skipped == ()
    ends_text = built.log[built.log.index("I/O Tensors") :]
    assert all(name in ends_text for name in names)


def test_several_compute_capabilities_at_once(
    rtx: Library, lowered: Net, ada: BuildSettings, built: Built
) -> None:
    several = replace(ada, compute_capabilities=((8, 0), (8, 6), (8, 9), (12, 0)))
    engine = build_engine(rtx, lowered("digits_cnn", "int8").graph.proto, several)
    assert layer_lines(engine) and engine.key != built("digits_cnn", "int8").key


@pytest.mark.parametrize("net", ["digits_cnn", "digits_encoder"])
def test_repeated_builds_agree(
    rtx: Library, lowered: Net, ada: BuildSettings, built: Built, net: str
) -> None:
    """The layers do; the serialized bytes do not, so only a cache gives the same engine."""
    first, again = built(net, "int8"), build_engine(rtx, lowered(net, "int8").graph.proto, ada)
    assert [_plain(x) for x in layer_lines(first)] == [_plain(x) for x in layer_lines(again)]
    assert first.key == again.key and not again.cached


def _plain(line: str) -> str:
    """Without the numbers that TensorRT gives its own tensors."""
    return re.sub(r"__my\w*?\d+|0x[0-9a-f]+", "", line)


def test_a_profile_is_needed_for_dynamic_axes(rtx: Library, lowered: Net) -> None:
    with refused("QD-USAGE-NO-SHAPES", "'input'"):
        build_engine(rtx, lowered("digits_cnn", "fp32").graph.proto, PLAIN)


def test_a_profile_for_another_model(rtx: Library, one_node: Node, ada: BuildSettings) -> None:
    with refused("QD-USAGE-SHAPES-DIFFER", "'input'"):
        build_engine(rtx, one_node("Relu"), ada)
    flat = ShapeRange((2,), (2,), (2,))
    with refused("QD-USAGE-SHAPES-DIFFER", "'x'", " 4 "):
        build_engine(rtx, one_node("Relu"), replace(PLAIN, profile={"x": flat}))


def test_a_profile_for_an_input_of_any_name(rtx: Library, one_node: Node) -> None:
    """Polygraphy takes the names in a profile as patterns."""
    proto = one_node("Relu", shape=("N", 4))
    proto.graph.input[0].name = proto.graph.node[0].input[0] = "images[0]"
    shapes = ShapeRange((1, 4), (3, 4), (7, 4))
    built = build_engine(rtx, proto, replace(PLAIN, profile={"images[0]": shapes}))
    assert "MinShape: [1,4], OptShape: [3,4], MaxShape: [7,4]" in built.log


def test_a_failed_build_does_not_change_the_next_engine(
    rtx: Library, lowered: Net, ada: BuildSettings, built: Built
) -> None:
    """It would have convolutions in FP32. Turing has no FP32 GEMM in TensorRT for RTX."""
    expected = layer_lines(built("digits_cnn", "int8"))
    turing = replace(ada, compute_capabilities=((7, 5),))
    with pytest.raises(BackendError):
        build_engine(rtx, lowered("digits_encoder", "fp32").graph.proto, turing)
    after = build_engine(rtx, lowered("digits_cnn", "int8").graph.proto, ada)
    assert [_plain(x) for x in layer_lines(after)] == [_plain(x) for x in expected]


def test_builds_from_several_threads(one_node: Node) -> None:
    """They take turns in their process: each gets its own log."""
    runtime = open_rtx(compute_capability=("8.9",))
    ops = ["Sigmoid", "Tanh", "Exp", "Neg"]
    with ThreadPoolExecutor(4) as pool:
        builds = list(pool.map(lambda op: runtime.build(one_node(op)), ops))
    for op, built in zip(ops, builds, strict=True):
        assert f"suspect [{op}]" in built.log
        assert not any(f"suspect [{other}]" in built.log for other in ops if other != op)


def test_what_is_refused_is_told_across_the_process(one_node: Node) -> None:
    runtime = open_rtx(compute_capability=("8.9",))
    for use in (runtime.check, runtime.build):
        with refused("QD-MODEL-REFUSED", "'suspect'"):
            use(one_node("NoSuchOperator"))
    assert runtime.build(one_node("Relu")).info
