"""The inspector's JSON, written small by the documented fields of each version."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from refusals import refused

from qdebug.engine_info.files.layer_info import read_layer_info
from qdebug.engine_info.files.node_names import nodes_in_name, nodes_of_layer
from qdebug.engine_info.layers import EngineLayer, Role
from qdebug.engine_info.tensors import EngineTensor, canonical_dtype
from qdebug.plan.parsed_network import nodes_in_metadata

TEN: dict[str, Any] = {
    "Layers": [
        {
            "Name": "conv1 + relu1",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {"Name": "x", "Location": "Device", "Dimensions": [1, 3, 8, 8],
                 "Format/Datatype": "Row major Int8 format"}
            ],
            "Outputs": [
                {"Name": "y", "Location": "Device", "Dimensions": [1, 4, 8, 8],
                 "Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}
            ],
            "Weights": {"Type": "Int8", "Count": 108},
            "HasSparseWeights": 0,
            "TacticName": "sm80_xmma_fprop",
            "TacticValue": "0x7",
            "StreamId": 0,
            "Metadata": "[ONNX Layer: conv1]\x1e[ONNX Layer: relu1]",
        }
    ],
    "Bindings": ["x", "y"],
}  # fmt: skip
ELEVEN: dict[str, Any] = {
    "Layers": [
        {
            "Name": "fc_myl0_2",
            "LayerType": "gemm",
            "Inputs": [{"Name": "a", "Dimensions": [-1, 64], "Strides": [64, 1],
                        "Datatype": "Int8", "Format": "(Linear) Row major linear format"}],
            "Constants": [{"Name": "w", "Dimensions": [64, 10], "Datatype": "Int8",
                           "Format": "(Transposed) Transposed format"},
                          {"Name": "s", "Dimensions": [1], "Datatype": "Float", "Format": ""}],
            "Outputs": [{"Name": "b", "Dimensions": [-1, 10], "Datatype": "Float", "Format": ""}],
            "TacticName": "__myelin_CASK_STUB",
            "Metadata": "[ONNX Layer: fc]\x1f[ONNX Layer: fc dq, [x]]",
        }
    ],
    "I/O Tensors": [
        {"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [-1, 64],
         "Location": "Device", "IsShapeInferenceIO": "false"}
    ],
}  # fmt: skip
NAMES = {"Layers": ["Reformatting CopyNode for Input Tensor 0 to a", "a + b"], "Bindings": ["x"]}
EIGHT = copy.deepcopy(TEN)
del EIGHT["Layers"][0]["Metadata"]


def test_tensorrt_10_writes_format_and_type_in_one() -> None:
    info = read_layer_info(TEN, "layers.json")
    (layer,) = info.layers
    assert (layer.precision, layer.outputs[0].dtype, layer.sparse) == ("int8", "fp16", False)
    assert layer.onnx_nodes == ("conv1", "relu1")
    assert [t.name for t in info.io] == ["x", "y"]
    assert info.notes == () and info.detailed


def test_tensorrt_11_and_rtx_write_them_apart() -> None:
    info = read_layer_info(ELEVEN, "layers.json")
    (layer,) = info.layers
    assert (layer.precision, layer.role) == ("int8", Role.MATRIX)
    assert layer.onnx_nodes == ("fc", "fc dq, [x]")
    assert info.io == (EngineTensor("x", "fp32", "", (-1, 64)),)
    assert info.layer_of("fc") is layer


def test_tensorrt_8_has_no_metadata_and_the_result_says_so() -> None:
    info = read_layer_info(EIGHT, "layers.json")
    assert info.layers[0].onnx_nodes == ("conv1", "relu1")
    assert info.layers[0].named_only
    assert any("before 8.6" in note for note in info.notes)


def test_bare_names_are_read_and_the_missing_flag_is_named() -> None:
    info = read_layer_info(NAMES, "layers.json")
    assert [layer.onnx_nodes for layer in info.layers] == [(), ("a", "b")]
    assert not info.detailed
    assert any("--profilingVerbosity=detailed" in note for note in info.notes)


def test_one_layer_alone_is_an_engine_of_one_layer() -> None:
    assert len(read_layer_info(TEN["Layers"][0], "layer.json").layers) == 1


@pytest.mark.parametrize(
    ("document", "code", "named"),
    [
        ([], "QD-USAGE-ENGINE-FILE", ""),
        ({"Layers": 3}, "QD-USAGE-ENGINE-FILE", ""),
        ({"Layers": [{"LayerType": "x"}]}, "QD-USAGE-ENGINE-FILE", ""),
        ({"Layers": [{"Name": 3}]}, "QD-USAGE-ENGINE-FILE-DAMAGED", "layer 0: 'Name'"),
        (
            {"Layers": [{"Name": "a", "Inputs": "x"}]},
            "QD-USAGE-ENGINE-FILE-DAMAGED",
            "layer 0: 'Inputs'",
        ),
        (
            {"Layers": [{"Name": "a", "Inputs": [{"Dimensions": [1.5]}]}]},
            "QD-USAGE-ENGINE-FILE-DAMAGED",
            "[1.5]",
        ),
        ({"Layers": ["a"], "Bindings": [3]}, "QD-USAGE-ENGINE-FILE-DAMAGED", "int"),
    ],
)
def test_malformed_documents_are_refused_by_name(document: Any, code: str, named: str) -> None:
    with refused(code, "bad.json", named):
        read_layer_info(document, "bad.json")


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("Float", "fp32"), ("Half", "fp16"), ("BF16", "bf16"), ("Int8", "int8"),
        ("FP8", "fp8"), ("Int4", "int4"), ("kHALF", "fp16"), ("Int64", "int64"), ("Bool", "bool"),
        ("Row major linear FP32 format (kLINEAR)", "fp32"), ("N/A due to dynamic shapes", ""),
        ("Two wide channel vectorized row major FP16 format", "fp16"),
    ],
)  # fmt: skip
def test_types_have_one_name(text: str, dtype: str) -> None:
    assert canonical_dtype(text) == dtype


def _layer(kind: str, reads: str, weights: str = "", name: str = "n", tactic: str = "") -> str:
    inputs, constants = (
        tuple(EngineTensor(str(i), dtype) for i, dtype in enumerate(text.split()))
        for text in (reads, weights)
    )
    outputs = (EngineTensor("y", "fp32"),)
    return EngineLayer(name, kind, inputs, outputs, constants, tactic).precision


def test_a_product_runs_in_a_quantized_type_only_if_data_and_weights_come_in_it() -> None:
    assert _layer("gemm", "int8", "int8 fp32") == "int8"
    assert _layer("gemm", "int8 int8", "fp32 fp32") == "int8"  # two activations, and scales
    assert _layer("runtime_fusion", "int8 fp32", "int8", "__myl_CorrAdd_myl0_6") == "int8"
    assert _layer("gemm", "fp16", "int4 fp16") == "fp16"  # weights only
    assert _layer("deconv", "fp32 fp32", "int8") == "fp32"
    assert _layer("CaskConvolution", "fp32", tactic="sm80_xmma_tf32f32_tf32f32_f32") == "tf32"


def test_what_is_no_product_runs_in_the_widest_float_it_reads() -> None:
    assert _layer("kgen", "fp16 fp32", name="__myl_MulAdd_myl0_1") == "fp32"
    assert _layer("kgen", "int8", name="__myl_CastMul_myl0_1") == "fp32"  # dequantizes
    assert EngineLayer("p", "CaskPooling", (EngineTensor("a", "int8"),)).precision == "int8"


def test_names_tell_nodes_only_where_they_are_plain() -> None:
    assert nodes_in_name("Conv_0 + PWN(PWN(Sigmoid_1), Mul_2)") == ("Conv_0", "Sigmoid_1", "Mul_2")
    assert nodes_in_name("a || b") == ("a", "b")
    assert nodes_in_name("/x (y)/Conv") == ("/x (y)/Conv",)
    assert nodes_in_name("{ForeignNode[a...b]}") == ()
    assert nodes_in_metadata("") == ()
    assert nodes_in_metadata("[ONNX Layer: a b][ONNX Layer: c]") == ("a b", "c")


@pytest.mark.parametrize("mark", ["", "\x1f"])
def test_a_node_is_named_whatever_replaced_it(mark: str) -> None:
    replaced = f"[ONNX Layer: a]__gemm_from_conv1x1{mark}[ONNX Layer: b]__gemm_from_conv1x1"
    assert nodes_of_layer(replaced) == ("a", "b")
    assert nodes_of_layer(f"[ONNX Layer: a]__b]{mark}[ONNX Layer: c]") == ("a]__b", "c")
