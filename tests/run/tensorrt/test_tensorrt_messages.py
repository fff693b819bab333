"""What TensorRT refuses, said in the user's terms: real failing builds by TensorRT for RTX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.plan.lower import Lowered
from qdebug.run.tensorrt.build.build import build_engine
from qdebug.run.tensorrt.build.logger import LogCollector, LogMessage
from qdebug.run.tensorrt.build.messages import build_failure, nodes_in, parse_failure, warnings_of
from qdebug.run.tensorrt.build.settings import BuildSettings
from qdebug.run.tensorrt.library import Library, LibraryKind

Node = Callable[..., onnx.ModelProto]
PLAIN = BuildSettings(compute_capabilities=((8, 9),))


def failure(
    library: Library, proto: onnx.ModelProto, settings: BuildSettings = PLAIN
) -> QdebugError:
    with pytest.raises(QdebugError) as caught:
        build_engine(library, proto, settings)
    return caught.value


def test_an_operator_that_needs_a_plugin(rtx: Library, one_node: Node) -> None:
    error = failure(rtx, one_node("MyOp", domain="acme"))
    assert isinstance(error, ModelError)
    assert "no plugin for node 'suspect' (MyOp, domain 'acme')" in error.message
    assert "plugin='FILE'" in error.hint
    assert any("checkFallbackPluginImporter" in note for note in error.__notes__)


def test_a_plugin_is_looked_for_where_it_is_named(
    rtx: Library, one_node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plugin.so").write_bytes(b"no shared object" * 9)
    error = failure(rtx, one_node("Relu"), replace(PLAIN, plugins=(Path("plugin.so"),)))
    assert "plugin: plugin.so cannot be loaded" in error.message
    assert "invalid ELF header" in error.message  # found, and read


def test_an_operator_that_is_not_supported(rtx: Library, one_node: Node) -> None:
    error = failure(rtx, one_node("Det", opset=17))
    assert isinstance(error, ModelError)
    assert "cannot parse node 'suspect' (Det, opset 17): it does not support the operator" in str(
        error
    )


def test_a_node_without_a_name(rtx: Library, one_node: Node) -> None:
    proto = one_node("MyOp", domain="acme")
    for node in proto.graph.node:
        node.name = ""
    assert "node 'y' (MyOp, domain 'acme')" in failure(rtx, proto).message


def test_several_nodes_are_named(rtx: Library, one_node: Node) -> None:
    """The parser goes on after some errors, so that the user sees more than the first."""
    logged = [
        LogMessage(
            "ERROR", f'ModelImporter.cpp:1: While parsing node number {i} [Op{i} -> "t{i}"]:'
        )
        for i in range(8)
    ]
    error = parse_failure(rtx, logged, one_node("Relu"), RuntimeError())
    assert "nor 't1' (Op1), 't2' (Op2)" in error.message and "and others" in error.message


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
    assert "no plugin for node 'suspect' (Det, opset 13)" in error.message


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
    error = failure(rtx, quantized(zero_point=3))
    assert "node 'quantize' (QuantizeLinear, opset 13): its zero point is not 0" in error.message
    build_engine(rtx, quantized(zero_point=0), PLAIN)


def test_types_that_do_not_meet(rtx: Library) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], "cast", to=TensorProto.FLOAT16),
        helper.make_node("Add", ["half", "x"], ["y"], "meet"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 4)) for n in "xy"]
    graph = helper.make_graph(nodes, "types", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    error = failure(rtx, proto)
    assert "node 'meet' (Add, opset 13)" in error.message
    assert "must have same input types" in error.message and "cpp" not in error.message


def test_an_input_of_a_type_it_does_not_take(rtx: Library, one_node: Node) -> None:
    error = failure(rtx, one_node("Identity", dtype=TensorProto.STRING))
    assert isinstance(error, ModelError) and "element type" in error.message


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
    error = failure(rtx, proto)
    assert isinstance(error, BackendError) and "out of memory" in error.message
    assert "GiB" in error.message


def test_a_gpu_without_a_kernel(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    turing = replace(ada, compute_capabilities=((7, 5),))
    error = failure(rtx, lowered("digits_cnn", "fp32").graph.proto, turing)
    assert "cannot build layer '/classifier/Gemm' for Turing (SM75)" in error.message


def test_no_room_for_any_kernel(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    error = failure(rtx, lowered("digits_cnn", "fp32").graph.proto, replace(ada, workspace_bytes=1))
    assert error.code == "QD-BACKEND-WORKSPACE"


def test_version_compatible_needs_the_lean_runtime(
    rtx: Library, lowered: Callable[[str, str], Lowered], ada: BuildSettings
) -> None:
    error = failure(
        rtx, lowered("digits_cnn", "fp32").graph.proto, replace(ada, version_compatible=True)
    )
    assert "libnvinfer_lean" in error.message and "lean runtime" in error.hint


RTX_16 = Library(LibraryKind.RTX, None, (1, 6, 1, 120), LogCollector(), None)
RTX_17 = Library(LibraryKind.RTX, None, (1, 7, 1, 116), LogCollector(), None)
CLASSIC = Library(LibraryKind.CLASSIC, None, (10, 16, 1, 11), LogCollector(), None)


@pytest.mark.parametrize(
    ("library", "text", "says"),
    [
        (
            RTX_16,  # seen building an INT8 convolution with 1.6.1
            "IBuilder::buildSerializedNetwork: Error Code 1: Myelin ([myelin_graph.h:1259: "
            "attachExceptionMsgToGraph] MyelinCheckException: cudnn_impl.cpp:89: CHECK(dtype == "
            "myelinTypeFloat || dtype == myelinTypeHalf || dtype == myelinTypeBF16 || dtype == "
            "myelinTypeFP8E4M3) failed.  In compileGraph at /_src/codeGenerator.cpp:1962)",
            "cannot build INT8 convolutions\n  1.7 can",
        ),
        (
            RTX_17,  # seen on an H200
            "TensorRT-RTX does not support this compute capability",
            "compute capability of this GPU\n  TensorRT for RTX 1.7 does not run on 9.0",
        ),
        (
            RTX_17,  # seen without a driver
            "IBuilder::buildSerializedNetwork: Error Code 1: Cuda Runtime (In generateForCurrent "
            "at /_src/x.cpp:221 (cudaError 35: CUDA driver version is insufficient for CUDA "
            "runtime version))",
            "finds no GPU that it can use here\n  Name the GPU to build for",
        ),
        (
            CLASSIC,
            "CUDA initialization failure with error: 35",
            "[QD-BACKEND-NO-GPU]",
        ),
        (  # github.com/NVIDIA/TensorRT/issues/3640
            CLASSIC,
            "[optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
            "implementation for node /m.0/conv/Conv + PWN(PWN(/m.0/act/Sigmoid), /m.0/act/Mul).)",
            "has no kernel for '/m.0/conv/Conv + PWN(PWN(/m.0/act/Sigmoid), /m.0/act/Mul)' in",
        ),
        (
            CLASSIC,
            "10: Could not find any implementation for node conv1 due to insufficient workspace. "
            "See verbose log for requested sizes.",
            "[QD-BACKEND-WORKSPACE]",
        ),
        (RTX_17, "Error Code 9: Something (odd about relu. In f at x.cpp:1)", "odd about relu"),
        (RTX_17, "Error Code 9: Something (odd. In f at x.cpp:1) at relu", "at layer 'relu': odd"),
        (RTX_17, "", "cannot build the engine: the Python error"),
    ],
)
def test_known_and_unknown_failures(library: Library, text: str, says: str) -> None:
    logged = [LogMessage("ERROR", text)] if text else []
    error = build_failure(library, logged, RuntimeError("the Python error"), ["relu"])
    assert isinstance(error, BackendError) and says in str(error)
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
    failure(rtx, one_node("Det"))
    build_engine(rtx, one_node("Sigmoid"), PLAIN)
    assert capfd.readouterr() == ("", "")
