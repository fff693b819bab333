"""Build logs: real ones of TensorRT for RTX, and the documented forms of TensorRT 8 and 10."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from qdebug.engine_info.files.build_log import read_build_log
from qdebug.engine_info.layers import EventKind, Role

Builds = Callable[[str, str], Any]

EIGHT = """\
[11/01/2024-10:32:52] [V] [TRT] Running: ConvReluFusion on conv1
[11/01/2024-10:32:52] [V] [TRT] ConvReluFusion: Fusing conv1 with relu1
[11/01/2024-10:32:52] [W] [TRT] Missing scale and zero-point for tensor mid, expect fall back to \
non-int8 implementation for any layer consuming or producing given tensor
\x1b[33m[11/01/2024-10:32:53] [W] [TRT] A warning in colour\x1b[0m
[11/01/2024-10:32:55] [V] [TRT] conv1 + relu1 Set Tactic Name: sm80_xmma_fprop_i8i8 Tactic: 0x7
[11/01/2024-10:32:57] [V] [TRT] Layers:
Name: Reformatting CopyNode for Input Tensor 0 to conv1 + relu1, LayerType: Reformat, Inputs: \
[ { Name: data, Location: Device, Dimensions: [1,3,8,8], Format/Datatype: Row major linear FP32 }],\
 Outputs: [ { Name: Reformatted Input Tensor 0 to conv1 + relu1, Location: Device, Dimensions: \
[1,3,8,8], Format/Datatype: Row major Int8 format }], ParameterType: Reformat, Origin: REFORMAT, \
TacticValue: 0x00000000000003e8, StreamId: 0, Metadata:
Name: conv1 + relu1, LayerType: CaskConvolution, Inputs: [ { Name: Reformatted Input Tensor 0 to \
conv1 + relu1, Location: Device, Dimensions: [1,3,8,8], Format/Datatype: Row major Int8 format }], \
Outputs: [ { Name: mid, Location: Device, Dimensions: [1,4,8,8], Format/Datatype: Thirty-two wide \
channel vectorized row major Int8 format }], ParameterType: Convolution, Kernel: [3,3], Groups: 1, \
Weights: {"Type": "Int8", "Count": 108}, Bias: {"Type": "Float", "Count": 4}, HasBias: 1, \
HasReLU: 1, HasSparseWeights: 1, Activation: RELU, TacticName: sm80_xmma_fprop_i8i8_sparse, \
TacticValue: 0xd3f592fae61c7986, StreamId: 0, Metadata: [ONNX Layer: conv1][ONNX Layer: relu1]
Name: fc, LayerType: CaskGemmMatrixMultiply, Inputs: [ { Name: mid, Location: Device, Dimensions: \
[1,256], Format/Datatype: Half }], Outputs: [ { Name: out, Location: Device, Dimensions: [1,10], \
Format/Datatype: Half }], TacticName: sm80_xmma_gemm_f16f16, StreamId: 0, Metadata: [ONNX Layer: fc]

Bindings:
data
out
[11/01/2024-10:32:58] [I] Engine built in 5.1 sec.
"""

BRIEF = """\
[TensorRT] VERBOSE: Engine Layer Information:
[TensorRT] VERBOSE: Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to Conv_0, Tactic: 0,\
 input[Float(1,3,8,8)] -> Reformatted Input Tensor 0 to Conv_0[Int8(1,3,8,8)]
[TensorRT] VERBOSE: Layer(CaskConvolution): Conv_0 + PWN(PWN(Sigmoid_1), Mul_2), Tactic: -18, \
Reformatted Input Tensor 0 to Conv_0[Int8(1,3,8,8)], skip[Int8(1,3,8,8)] -> 191[Int8(1,9,8,8)]
[TensorRT] VERBOSE: Layer(Constant): w + (Unnamed Layer* 1) [Shuffle], Tactic: 0,  -> \
(Unnamed Layer* 1) [Shuffle]_output[Float(1,1,256)]
[TensorRT] VERBOSE: Layer(Myelin): {ForeignNode[318...Flatten_9]}, Tactic: 0, 191[Half(1,9)] -> \
out[Half(1,9)]
"""


@pytest.mark.parametrize("network", ["digits_cnn", "digits_encoder"])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "mixed"])
def test_every_node_of_a_real_build_is_mapped_or_only_moves_data(
    inspected: Builds, network: str, precision: str
) -> None:
    build = inspected(network, precision)
    info = build.info
    graph = build.graph
    assert {n.name for n in info.nodes} == {n.name for n in graph.nodes}
    by_name = {n.name: n for n in info.nodes}
    for node in graph.nodes:
        told = by_name[node.name]
        assert (told.op_type, told.outputs) == (node.op_type, node.outputs)
    unmapped = {by_name[n].op_type for n in by_name.keys() - info.of_node.keys()}
    # "Mul" scales the queries by a constant: it is merged into the product that follows.
    assert unmapped <= {"Constant", "Flatten", "Reshape", "Transpose", "Mul"}
    assert info.of_node.keys() <= by_name.keys()
    for layer in info.layers:
        if layer.role is not Role.CONTROL:
            assert layer.outputs and all(t.dtype and t.dims for t in layer.outputs)


@pytest.mark.parametrize("network", ["digits_cnn", "digits_encoder"])
@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8"), ("mixed", "int8")],
)
def test_products_of_a_real_build_run_as_planned(
    inspected: Builds, network: str, precision: str, expected: str
) -> None:
    info = inspected(network, precision).info
    products = [layer for layer in info.layers if layer.role is Role.MATRIX]
    assert len(products) >= 14
    assert {layer.precision for layer in products} == {expected}
    assert [t.name for t in info.io] == ["input", "logits"]
    assert info.io[0].dims == (-1, 1, 8, 8)
    assert info.notes == ()


def test_a_real_build_says_what_was_fused_and_where_fp16_was_not_used(inspected: Builds) -> None:
    events = inspected("digits_encoder", "int8").info.events
    fused = [e.text for e in events if e.kind is EventKind.FUSION]
    assert any("attention/Softmax to be part of self-attention" in text for text in fused)
    fallback = [e for e in inspected("digits_cnn", "mixed").info.events if e.kind == "precision"]
    assert any("Converting conv weight scales to fp32" in e.text for e in fallback)


@pytest.mark.parametrize("style", ["trt.Logger", "polygraphy", "logging", "bare"])
def test_the_log_of_every_logger_reads_the_same(
    inspected: Builds, style: str, tmp_path: Path
) -> None:
    log = inspected("digits_cnn", "int8").log
    expected = read_build_log(log, "a")
    if style == "polygraphy":
        log = _polygraphy_log(inspected("digits_cnn", "int8"), tmp_path)
    else:
        prefix = {
            "trt.Logger": "[11/21/2026-14:23:05] [TRT] [V] ",
            "logging": "2026-11-21 14:23:05,123 DEBUG: ",
            "bare": "",
        }[style]
        log = log.replace("[TRT] [V] ", prefix).replace("[TRT] [I] ", prefix.replace("[V]", "[I]"))
    info = read_build_log(log, "b")
    assert info.layers == expected.layers
    assert info.nodes == expected.nodes
    assert info.io == expected.io
    if style == "polygraphy":
        assert info.library.count(".") == 3


POLYGRAPHY = """
import os, sys
os.environ["POLYGRAPHY_USE_TENSORRT_RTX"] = "1"
from polygraphy.logger import G_LOGGER
G_LOGGER.module_severity = G_LOGGER.EXTRA_VERBOSE
import tensorrt_rtx as trt
from polygraphy.backend.trt import EngineBytesFromNetwork, NetworkFromOnnxPath, Profile
from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
shapes = (1, 1, 8, 8), (8, 1, 8, 8), (16, 1, 8, 8)
config = CreateConfigRTX(compute_capabilities=[(8, 9)], profiles=[Profile().add("input", *shapes)],
                         profiling_verbosity=trt.ProfilingVerbosity.DETAILED)
EngineBytesFromNetwork(NetworkFromOnnxPath(sys.argv[1]), config)()
"""


def _polygraphy_log(build: Any, folder: Path) -> str:
    path = folder / "lowered.onnx"
    path.write_bytes(build.graph.proto.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", POLYGRAPHY, str(path)],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_detailed_log_of_tensorrt_8_and_10() -> None:
    info = read_build_log(EIGHT, "trtexec.log")
    copy, conv, fc = info.layers
    assert (copy.role, copy.origin, copy.onnx_nodes) == (Role.REFORMAT, "REFORMAT", ())
    assert (conv.role, conv.precision, conv.sparse) == (Role.MATRIX, "int8", True)
    assert conv.onnx_nodes == ("conv1", "relu1")
    assert conv.tactic == "sm80_xmma_fprop_i8i8_sparse"
    assert conv.outputs[0].dims == (1, 4, 8, 8)
    assert conv.outputs[0].format.startswith("Thirty-two wide")
    assert (fc.role, fc.precision, fc.sparse) == (Role.MATRIX, "fp16", None)
    kinds = [(e.kind.value, e.text.split()[0]) for e in info.events]
    assert kinds == [
        ("fusion", "ConvReluFusion:"), ("precision", "Missing"), ("warning", "A"),
        ("tactic", "conv1"),
    ]  # fmt: skip
    assert info.layer_of("relu1") is conv


def test_names_are_no_events() -> None:
    words = "fusing overflow"
    log = f"[V] [TRT] Parsing node: {words} [Relu]\n{EIGHT.replace('relu1', words)}"
    found, plain = (read_build_log(text, "a").events for text in (log, EIGHT))
    assert [(e.kind, e.text.replace(words, "relu1")) for e in found] == [
        (e.kind, e.text) for e in plain
    ]


def test_lines_that_are_no_layers_are_told_of() -> None:
    log = EIGHT.replace("Name: fc,", "Name: f\nc,")  # a node's name may hold a line break
    info = read_build_log(log, "trtexec.log")
    assert len(info.layers) == 2
    assert any("2 lines" in note for note in info.notes)


def test_a_brief_log_names_types_but_nodes_only_by_the_layers_names() -> None:
    info = read_build_log(BRIEF, "old.log")
    copy, conv, constant, myelin = info.layers
    assert [layer.precision for layer in info.layers] == ["fp32", "int8", "fp32", ""]
    assert conv.onnx_nodes == ("Conv_0", "Sigmoid_1", "Mul_2")
    assert (copy.onnx_nodes, constant.onnx_nodes, myelin.onnx_nodes) == ((), (), ())
    assert [t.name for t in conv.inputs] == ["Reformatted Input Tensor 0 to Conv_0", "skip"]
    assert any("layers' names" in note for note in info.notes)


def test_the_last_of_several_engines_is_read() -> None:
    info = read_build_log(BRIEF + EIGHT, "two.log")
    assert [layer.name for layer in info.layers][-1] == "fc"
    assert any("2 engines" in note for note in info.notes)


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "[V] [TRT] Parsing node: a [Conv]\n"])
def test_a_log_without_layers_says_which_flags_give_them(text: str) -> None:
    with refused("QD-USAGE-ENGINE-FILE", "build.log", "--verbose", "detailed"):
        read_build_log(text, "build.log")


def test_a_log_that_breaks_off_at_its_layers_is_refused() -> None:
    with refused("QD-USAGE-ENGINE-FILE-DAMAGED", "build.log", "line 1"):
        read_build_log("[V] [TRT] Layers:\n", "build.log")
