"""What TensorRT refuses, said in the user's terms: real failing builds by TensorRT for RTX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.logger import LogCollector, LogMessage
from qdebug.backends.tensorrt.build.messages import (
    build_failure,
    nodes_in,
    parse_failure,
    warnings_of,
)
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.library import Library, LibraryKind
from qdebug.errors import ModelError, QdebugError
from qdebug.plan.lower import Lowered

Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))


def fails(
    code: str,
    library: Library,
    proto: onnx.ModelProto,
    *says: str,
    settings: BuildSettings = PLAIN,
) -> QdebugError:
    """Building raises this code, and the message names each of `says`."""
    with refused(code, *says) as caught:
        build_engine(library, proto, settings)
    return caught.value


def test_an_operator_that_needs_a_plugin(rtx: Library, one_node: Node) -> None:
    says = ("'suspect'", "MyOp", "'acme'", "plugin='FILE'")
    error = fails("QD-MODEL-REFUSED", rtx, one_node("MyOp", domain="acme"), *says)
    assert isinstance(error, ModelError)
    assert any("checkFallbackPluginImporter" in note for note in error.__notes__)


def test_a_plugin_is_looked_for_where_it_is_named(
    rtx: Library, one_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plugin.so").write_bytes(b"no shared object" * 9)
    says = ("plugin.so", "invalid ELF header")  # found, and read
    settings = replace(PLAIN, plugins=(Path("plugin.so"),))
    fails("QD-USAGE-PLUGIN", rtx, one_node("Relu"), *says, settings=settings)


def test_an_operator_that_is_not_supported(rtx: Library, one_node: Node) -> None:
    fails("QD-MODEL-REFUSED", rtx, one_node("Det", opset=17), "'suspect'", "Det", "opset 17")


def test_a_node_without_a_name(rtx: Library, one_node: Node) -> None:
    proto = one_node("MyOp", domain="acme")
    for node in proto.graph.node:
        node.name = ""
    fails("QD-MODEL-REFUSED", rtx, proto, "'y'", "MyOp", "'acme'")


def test_several_nodes_are_named(rtx: Library, one_node: Node) -> None:
    """The parser goes on after some errors, so that the user sees more than the first."""
    logged = [
        LogMessage(
            "ERROR", f'ModelImporter.cpp:1: While parsing node number {i} [Op{i} -> "t{i}"]:'
        )
        for i in range(8)
    ]
    error = parse_failure(rtx, logged, one_node("Relu"), RuntimeError())
    assert error.code == "QD-MODEL-REFUSED"
    assert all(f"'t{i}' (Op{i}" in error.message for i in range(3)), error
    assert "'t7'" not in error.message


def test_the_node_as_older_parsers_print_it(rtx: Library, one_node: Node) -> None:
    """TensorRT 10.0 logs the node as protobuf text."""
    logged = [
        LogMessage("ERROR", 'ModelImporter.cpp:836: While parsing node number 1 [Det -> "y"]:'),
        LogMessage("ERROR", 'input: "r"\noutput: "y"\nname: "suspect"\nop_type: "Det"\n'),
        LogMessage(
            "ERROR",
            "ERROR: onnxOpCheckers.cpp:781 In function checkFallbackPluginImporter:\n"
            '[6] creator && "Plugin not found, are the plugin name, version, and namespace?"',
        ),
    ]
    error = parse_failure(rtx, logged, one_node("Det"), RuntimeError())
    assert error.code == "QD-MODEL-REFUSED"
    assert "'suspect' (Det, opset 13)" in error.message


def quantized(zero_point: int) -> onnx.ModelProto:
    pair = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantize"),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.int8(zero_point), "z"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in "xy"]
    graph = helper.make_graph(pair, "pair", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_asymmetric_quantization(rtx: Library) -> None:
    says = ("'quantize' (QuantizeLinear, opset 13)", "zero point")
    fails("QD-MODEL-REFUSED", rtx, quantized(zero_point=3), *says)
    build_engine(rtx, quantized(zero_point=0), PLAIN)


def test_types_that_do_not_meet(rtx: Library) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], "cast", to=TensorProto.FLOAT16),
        helper.make_node("Add", ["half", "x"], ["y"], "meet"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in "xy"]
    graph = helper.make_graph(nodes, "types", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    error = fails("QD-MODEL-REFUSED", rtx, proto, "'meet' (Add, opset 13)", "input types")
    assert "cpp" not in error.message


def test_an_input_of_a_type_it_does_not_take(rtx: Library, one_node: Node) -> None:
    fails("QD-MODEL-ELEMENT-TYPE", rtx, one_node("Identity", dtype=TensorProto.STRING))


def test_out_of_memory(rtx: Library) -> None:
    weight = numpy_helper.from_array(np.zeros((4, 4, 3, 3), np.float32), "w")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 200_000, 200_000)),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "huge")], "huge", ends[:1], ends[1:], [weight]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    fails("QD-BACKEND-MEMORY", rtx, proto, " GiB")


def test_a_gpu_without_a_kernel(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    turing = replace(ada, compute_capabilities=((7, 5),))
    proto = lowered("digits_cnn", "fp32").graph.proto
    fails("QD-BACKEND-NO-KERNEL", rtx, proto, "'/classifier/Gemm'", "SM75", settings=turing)


def test_no_room_for_any_kernel(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    proto = lowered("digits_cnn", "fp32").graph.proto
    fails("QD-BACKEND-WORKSPACE", rtx, proto, settings=replace(ada, workspace_bytes=1))


def test_version_compatible_needs_the_lean_runtime(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    proto = lowered("digits_cnn", "fp32").graph.proto
    settings = replace(ada, version_compatible=True)
    fails("QD-BACKEND-NOT-LOADABLE", rtx, proto, "libnvinfer_lean", settings=settings)


RTX_16 = Library(LibraryKind.RTX, None, (1, 6, 1, 120), LogCollector(), None)
RTX_17 = Library(LibraryKind.RTX, None, (1, 7, 1, 116), LogCollector(), None)
UNKNOWN = "QD-BACKEND-BUILD"
CLASSIC = Library(LibraryKind.CLASSIC, None, (10, 16, 1, 11), LogCollector(), None)


@pytest.mark.parametrize(
    ("library", "text", "code", "says"),
    [
        (
            RTX_16,  # seen building an INT8 convolution with 1.6.1
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([myelin_graph.h:1259: "
            "attachExceptionMsgToGraph] MyelinCheckException: cudnn_impl.cpp:89: CHECK(dtype == "
            "myelinTypeFloat || dtype == myelinTypeHalf || dtype == myelinTypeBF16 || dtype == "
            "myelinTypeFP8E4M3) failed.  In compileGraph at /_src/codeGenerator.cpp:1962)",
            "QD-BACKEND-NO-KERNEL",
            "1.7",
        ),
        (
            RTX_17,  # seen on an H200
            "TensorRT-RTX does not support this compute capability",
            "QD-BACKEND-GPU-UNSUPPORTED",
            "9.0",
        ),
        (
            RTX_17,  # seen without a driver
            "IBuilder::buildSerializedNetwork: Error Code 1: Cuda Runtime (In generateForCurrent "
            "at /_src/x.cpp:221 (cudaError 35: CUDA driver version is insufficient for CUDA "
            "runtime version))",
            "QD-BACKEND-NO-GPU",
            "compute_capability",
        ),
        (
            CLASSIC,
            "CUDA initialization failure with error: 35",
            "QD-BACKEND-NO-GPU",
            "",
        ),
        (  # github.com/NVIDIA/TensorRT/issues/3640
            CLASSIC,
            "[optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
            "implementation for node /m.0/conv/Conv + PWN(PWN(/m.0/act/Sigmoid), /m.0/act/Mul).)",
            "QD-BACKEND-NO-KERNEL",
            "'/m.0/conv/Conv + PWN(PWN(/m.0/act/Sigmoid), /m.0/act/Mul)'",
        ),
        (
            CLASSIC,
            "10: Could not find any implementation for node conv1 due to insufficient workspace. "
            "See verbose log for requested sizes.",
            "QD-BACKEND-WORKSPACE",
            "",
        ),
        (RTX_17, "Error Code 9: Something (odd about relu. In f at x.cpp:1)", UNKNOWN, "relu"),
        (RTX_17, "Error Code 9: Something (odd. In f at x.cpp:1) at relu", UNKNOWN, "'relu'"),
        (RTX_17, "", UNKNOWN, "the Python error"),
    ],
)
def test_known_and_unknown_failures(library: Library, text: str, code: str, says: str) -> None:
    logged = [LogMessage("ERROR", text)] if text else []
    error = build_failure(library, logged, RuntimeError("the Python error"), ["relu"])
    assert error.code == code and says in str(error)
    assert "_src" not in str(error)


def test_warnings_name_nodes_and_are_counted(rtx: Library, one_node: Node) -> None:
    logged = [
        LogMessage("WARNING", "x.cpp:12: Missing scale for tensor of suspect"),
        LogMessage("WARNING", "x.cpp:99: Missing scale for tensor of suspect"),
        LogMessage("VERBOSE", "relu"),
        LogMessage("WARNING", " another"),
        LogMessage("WARNING", "Make sure input ids has Int64 binding."),
    ]
    found = warnings_of(logged, one_node("Sigmoid"))
    assert [(w.text, w.nodes, w.count) for w in found] == [
        ("Missing scale for tensor of suspect", ("suspect",), 2),
        ("another", (), 1),
    ]


def test_warnings_of_a_real_build(rtx: Library, one_node: Node) -> None:
    built = build_engine(rtx, one_node("Sigmoid", opset=6), PLAIN)
    assert any("opset" in warning.text for warning in built.warnings)


def test_names_are_matched_whole() -> None:
    names = ["conv1", "conv10", "/a/conv1", "a.b", "ü;x"]
    assert nodes_in("layer 'conv10': bad", names) == ("conv10",)
    assert nodes_in("[/a/conv1] and (conv1)", names) == ("conv1", "/a/conv1")
    assert nodes_in("at ü;x, a.b.c", names) == ("ü;x",)


def test_nothing_is_printed(
    rtx: Library, one_node: Node, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Polygraphy prints by default; TensorRT's own messages go to the log alone."""
    fails("QD-MODEL-REFUSED", rtx, one_node("Det"))
    build_engine(rtx, one_node("Sigmoid"), PLAIN)
    assert capfd.readouterr() == ("", "")
