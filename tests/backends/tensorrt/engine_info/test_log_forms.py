"""The forms that TensorRT 6 to 11, and what embeds it, give the lines of a log: written small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import refused

from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.library import Library
from qdebug.engine_info.files.build_log import is_build_log, read_build_log
from qdebug.engine_info.files.layer_info import read_layer_info
from qdebug.engine_info.files.layer_text import read_polygraphy_text
from qdebug.engine_info.files.node_names import nodes_in_name
from qdebug.engine_info.files.opening import open_engine_file
from qdebug.engine_info.files.timing import read_measured
from qdebug.engine_info.flow import unread_dequantizers
from qdebug.engine_info.layers import EngineInfo, EventKind, InfoSource, Role
from qdebug.engine_info.measurements import ExecutionTimes
from qdebug.engine_info.summary import gate_values, summarize

LATER = """\
Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to c1 + r1, Tactic: 0x3e8, \
x (Float[1,64,56,56]) -> Reformatted Input Tensor 0 to c1 + r1 (Int8[1,64:32,56,56])
Layer(CaskConvolution): c1 + r1, Tactic: 0x1234, \
Reformatted Input Tensor 0 to c1 + r1 (Int8[1,64:32,56,56]), \
s (Half[1,64:8,56,56]) -> y (Half[1,64:8,56,56])
Layer(MatrixMultiply): m, Tactic: 0x5, y (Half[1,64:8,56,56]), w (Int8[64,64]) -> z (Half[1,64])
Layer(Reformat): out, Tactic: 0x0, z (Half[1,64]) ->
"""
EARLIER = """\
Layer(CaskConvolution): c1 + r1, Tactic: -5, a[Int8(1,3,512,768)], s[Half(1,32,256,384)] -> \
b[Int8(1,32,256,384)]
"""
PREFIXES = [
    "",
    "[07/07/2026-02:11:24] [V] [TRT] ",
    "[TRT] [V] ",
    "DEBUG: [TRTorch Conversion Context] - ",
    "DEBUG: [Torch-TensorRT] - ",
    "[2025-01-01 10:00:00 VERBOSE] ",
    "2024-01-01 10:00:00.123456789 [V:onnxruntime:Default, tensorrt_execution_provider.h:88 log] "
    "[2024-01-01 10:00:00 VERBOSE] ",
    "DEBUG:trt:",
    "2026-11-21 14:23:05,123 - tensorrt - DEBUG - ",
    "INFO: [TRT]: ",
    "INFO: ../nvdsinfer/nvdsinfer_model_builder.cpp:610 ",
]


@pytest.mark.parametrize("heading", [True, False])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_brief_lines_are_read_behind_every_prefix(prefix: str, heading: bool) -> None:
    lines = ["Engine Layer Information:"] * heading + LATER.splitlines()
    log = "\n".join(prefix + line for line in lines)
    assert is_build_log(log)
    copy, conv, product, last = read_build_log(log, "a.log").layers
    assert (copy.role, copy.changes_type) == (Role.REFORMAT, True)
    # A residual in another type does not change what is multiplied.
    assert (conv.precision, conv.onnx_nodes) == ("int8", ("c1", "r1"))
    assert conv.inputs[0].dims == (1, 64, 56, 56) and "32" in conv.inputs[0].format
    assert [t.dtype for t in conv.inputs] == ["int8", "fp16"]
    assert product.precision == ""  # weights in INT8 may be unpacked, or be multiplied
    assert (len(last.inputs), last.outputs) == (1, ())


def test_brief_lines_until_8_4() -> None:
    (layer,) = read_build_log(EARLIER, "a.log").layers
    assert (layer.precision, layer.inputs[0].dims) == ("int8", (1, 3, 512, 768))
    assert [t.dtype for t in (*layer.inputs, *layer.outputs)] == ["int8", "fp16", "int8"]


def test_axes_that_are_dynamic_have_any_negative_number_in_8() -> None:
    (layer,) = read_build_log(EARLIER.replace("(1,3,", "(-8,3,"), "a.log").layers
    assert layer.inputs[0].dims == (-1, 3, 512, 768)


def test_empty_lines_between_layers_end_no_list() -> None:
    """As in logs that people publish."""
    log = (
        "[V] [TRT] Engine Layer Information:\n\n" + LATER.replace("\n", "\n\n") + "\nBindings:\nx\n"
    )
    info = read_build_log(log, "a.log")
    assert (len(info.layers), [t.name for t in info.io]) == (4, ["x"])
    assert not any("engines" in note for note in info.notes)


DETAILED = (
    "Name: c1 + r1, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, "
    "Dimensions: [-1,64,8,8], Format/Datatype: %s }], Outputs: [ { Name: y, Location: Device, "
    "Dimensions: [-1,64,8,8], Format/Datatype: %s }], Kernel: [3,3], Groups: 1, "
    'Weights: {"Type": "Int8", "Count": 36864}, TacticName: %s, TacticValue: 0x7, StreamId: 0, '
    "Metadata: [ONNX Layer: c1]\x1e[ONNX Layer: r1]"
)


@pytest.mark.parametrize("mark", ["\x1e", "\x1f"])
def test_marks_in_metadata_end_no_line(mark: str) -> None:
    line = (DETAILED % ("Int8", "Int8", "k")).replace("\x1e", mark)
    (layer,) = read_build_log(f"[V] [TRT] Layers:\n{line}\n", "a.log").layers
    assert layer.onnx_nodes == ("c1", "r1")


@pytest.mark.parametrize("tactic", ["0x7", "turing_fp16_i8816cudnn_int8_128x128_relu_nt_v1"])
def test_dynamic_shapes_are_no_type(tactic: str) -> None:
    dynamic = "N/A due to dynamic shapes"
    info = read_build_log(f"Layers:\n{DETAILED % (dynamic, dynamic, tactic)}\n", "a.log")
    (layer,) = info.layers
    assert {t.dtype for t in (*layer.inputs, *layer.outputs)} == {""}
    assert layer.precision == "int8"  # by its weights, which a convolution multiplies as they are
    assert layer.macs is None


BUILD = """\
[V] [TRT] ConvReluFusion: Fusing c1 with r1
[W] [TRT] Calibrator is not being used. Users must provide dynamic range for all tensors that are \
not Int32 or Bool.
[V] [TRT] c1 [Conv] inputs: [x -> (1, 64, 56, 56)[FLOAT]], [w -> (64, 64, 1, 1)[FLOAT]]
[V] [TRT] c1 [Conv] outputs: [y -> (1, 64, 56, 56)[FLOAT]]
[V] [TRT] c1 + r1 Set Tactic Name: sm80_i8i8_i8i32_f32 Tactic: 0x1234
[I] [TRT] Engine generation completed in 7 seconds.
[V] [TRT] Engine Layer Information:
"""


def test_one_engine_printed_twice_is_one_and_keeps_its_whole_build() -> None:
    again = f"[I] Layers:\n{LATER}\nBindings:\nx\ny\n[I] done\n"
    info = read_build_log(f"{BUILD}{LATER}[I] [TRT] Loaded engine\n{again}", "a.log")
    assert len(info.layers) == 4
    assert not any("engines" in note for note in info.notes)
    assert [e.kind for e in info.events] == [
        EventKind.FUSION, EventKind.PRECISION, EventKind.TACTIC
    ]  # fmt: skip
    assert [n.macs for n in info.nodes] == [64 * 64 * 56 * 56]
    assert info.layers[1].tactic == "sm80_i8i8_i8i32_f32"
    assert [t.name for t in info.io] == ["x", "y"]


def test_a_second_build_is_another_engine() -> None:
    other = BUILD.replace("ConvReluFusion", "Other fusion")
    info = read_build_log(BUILD + LATER + other + LATER, "a.log")
    assert any("2 engines" in note for note in info.notes)
    assert [e.text for e in info.events if e.kind is EventKind.FUSION] == [
        "Other fusion: Fusing c1 with r1"
    ]


def test_another_profile_of_an_engine_is_told_apart() -> None:
    second = LATER.replace("c1 + r1,", "c1 + r1 [profile 1],").replace(" (", " [profile 1] (")
    info = read_build_log(LATER + second, "a.log")
    assert len(info.layers) == 4
    assert any("2 optimization profiles" in note and "alike" in note for note in info.notes)
    info = read_build_log(LATER + second.replace("Half", "Float"), "a.log")
    assert any("1 of the others differ" in note for note in info.notes)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("conv1.weight + QuantizeLinear_7 + Conv_9 + Relu_10", ("Conv_9", "Relu_10")),
        ("k/ReadVariableOp:0 + QuantLinearNode__6 + block/Conv2D", ("block/Conv2D",)),
        ("onnx::Conv_12 + QuantizeLinear_7 + Conv_9", ("Conv_9",)),
        ("strange + QuantizeLinear_7 + Conv_9", ("Conv_9",)),
        ("w + QuantizeLinear_7 + Conv_9 || v + QuantizeLinear_8 + Conv_8", ("Conv_9", "Conv_8")),
        ("QuantizeLinear_2", ()),
        ("fc.weight + Q/DequantizeLinear + Gemm_4 + fc.bias + (Unnamed Layer* 8) [Shuffle]",
         ("Gemm_4",)),
        ("transpose_before_MatMul", ()),
        ("conv1/bias", ("conv1/bias",)),  # a layer of its own is work
        ("conv1 + conv1/scale", ("conv1", "conv1/scale")),
    ],
)  # fmt: skip
def test_weights_and_quantizers_are_no_nodes(name: str, nodes: tuple[str, ...]) -> None:
    assert nodes_in_name(name) == nodes


def _quantizer(readers: list[dict[str, object]]) -> EngineInfo:
    quantize = {
        "Name": "QuantizeLinear_1", "LayerType": "Reformat", "Origin": "QDQ",
        "Inputs": [{"Name": "x", "Format/Datatype": "Half"}],
        "Outputs": [{"Name": "q", "Format/Datatype": "Int8"}],
    }  # fmt: skip
    return read_layer_info({"Layers": [quantize, *readers]}, "a")


def _reader(kind: str, writes: str, dtype: str) -> dict[str, object]:
    return {
        "Name": writes, "LayerType": kind,
        "Inputs": [{"Name": "q", "Format/Datatype": "Int8"}],
        "Outputs": [{"Name": writes, "Format/Datatype": dtype}],
    }  # fmt: skip


def test_a_pair_is_unread_only_where_that_is_proven() -> None:
    dequantize, conv = _reader("Reformat", "d", "Half"), _reader("CaskConvolution", "y", "Int8")
    assert unread_dequantizers(_quantizer([dequantize])).keys() == {"QuantizeLinear_1"}
    assert not unread_dequantizers(_quantizer([dequantize, conv]))
    assert not unread_dequantizers(_quantizer([]))  # the file may not name who reads it
    assert not unread_dequantizers(_quantizer([_reader("PluginV2", "y", "Half")]))


def test_no_share_is_told_while_a_layer_may_hide_products() -> None:
    opaque = "Layer(Myelin): {ForeignNode[a...b]}, Tactic: 0x0, y (Half[1,64]) -> z (Half[1,64])\n"
    info = read_build_log(LATER.replace("Layer(MatrixMultiply)", "Layer(Other)") + opaque, "a.log")
    summary = summarize(info)
    assert [(s.precision, s.products) for s in summary.shares] == [("int8", 1)]
    assert len(summary.hidden) == 1
    values = gate_values(summary)
    assert (values["int8_share"], values["fp16_share"]) == (None, None)
    assert values["fused_share"] is not None


def test_views_are_no_reformats() -> None:
    def layer(name: str, kind: str, writes: str) -> dict[str, object]:
        x = {"Name": "x", "Dimensions": [1, 8], "Format/Datatype": "Half"}
        y = {"Name": name, "Dimensions": [1, 8], "Format/Datatype": writes}
        return {"Name": name, "LayerType": kind, "Inputs": [x], "Outputs": [y]}

    name = "Reformatting CopyNode for Input Tensor 0 to "
    layers = [layer(f"{name}a", "NoOp", "Half"), layer(f"{name}b", "Reformat", "Int8")]
    summary = summarize(read_layer_info({"Layers": layers}, "a"))
    assert (len(summary.reformats), summary.views, summary.reformat_bytes) == (1, 1, 16 + 8)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("Error Code 10: Internal Error (Could not find any implementation for node c1 + r1.)",
         "workspace"),
        ("4: [network.cpp::validate::2965] Error Code 4: Internal Error (Network has dynamic or "
         "shape inputs, but no optimization profile has been defined.)", "--optShapes"),
        ("Error Code 2: OutOfMemory (no further information)", "memory"),
    ],
)  # fmt: skip
def test_a_failed_build_tells_the_builder_s_own_error(error: str, says: str) -> None:
    log = f"[V] [TRT] Fusing a with b\n[E] Something else\n[E] [TRT] {error}\n[E] Engine set up\n"
    with refused("QD-USAGE-ENGINE-NOT-BUILT", "a.log", error, says):
        read_build_log(log, "a.log")


TABLES = [
    """\
[I] === Profile (100 iterations ) ===
[I]                                         Layer   Time (ms)   Avg. Time (ms)   Time %
[I]  Reformatting CopyNode for Input Tensor 0 to c1 + r1        4.0       0.04      10.0
[I]                                       c1 + r1       30.0       0.3      75.0
[I]                                             m        2.0       0.02       5.0
[I]                                           out        4.0       0.04      10.0
[I]                                         Total       40.0       0.4     100.0
""",
    """\
[I] === Profile (100 iterations ) ===
[I]    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer
[I]        4.00         0.04       0.0400      10.0   Reformatting CopyNode for Input Tensor 0 to \
c1 + r1
[I]       30.00          0.3       0.3000      75.0   c1 + r1
[I]        2.00         0.02       0.0200       5.0   m
[I]        4.00         0.04       0.0400      10.0   out
[I]       40.00          0.4       0.4000     100.0   Total
""",
]


@pytest.mark.parametrize("table", TABLES)
def test_times_are_those_of_the_table_in_the_log(table: str) -> None:
    info = read_build_log(f"[I] Layers:\n{LATER}[I] x\n{table}[I] y\n", "a.log")
    assert [layer.time_ms for layer in info.layers] == [0.04, 0.3, 0.02, 0.04]


def test_a_table_of_other_layers_does_not_hide_those_of_the_log() -> None:
    table = TABLES[1].replace("c1 + r1", "another").replace("  m\n", "  n\n")
    info = read_build_log(f"[I] Layers:\n{LATER}[I] x\n{table}", "a.log")
    assert (len(info.layers), info.measured) == (4, False)
    assert any("other layers" in note for note in info.notes)


def test_a_log_of_times_alone_is_a_profile() -> None:
    info = read_build_log(TABLES[1], "a.log")
    assert (info.source, info.detailed, info.layers[1].time_ms) == (InfoSource.PROFILE, False, 0.3)


POLYGRAPHY = """\
[I] ==== TensorRT Engine ====
    Name: Unnamed Network 0 | Explicit Batch Engine

    ---- 1 Engine Input(s) ----
    {x [dtype=float32, shape=(1, 3, -1, -1)]}

    ---- 1 Engine Output(s) ----
    {y [dtype=float32, shape=(1, 8, -1, -1)]}

    ---- Memory ----
    Device Memory: 0 bytes

    ---- 2 Layer(s) Per Profile ----
    - Profile: 0
        Layer 0    | c1 + r1 [Op: CaskConvolution]
            {q [shape=(1, 3, -1, -1), Row major Int8 format],
             s [shape=(1, 8, -1, -1), Row major linear FP16 format]}
             -> {m [shape=(1, 8, -1, -1), Row major linear FP16 format]}
            ---- Attributes ----
            Origin = CONV
            Tactic = 0x1

        Layer 1    | node_of_y [Op: Reformat]
            {m [shape=(1, 8, -1, -1)]}
             -> {y [shape=(1, 8, -1, -1)]}

    - Profile: 1
        Layer 0    | c1 + r1 [profile 1] [Op: CaskConvolution]
            {q [profile 1] [shape=(1, 3, -1, -1), Row major Int8 format]}
             -> {m [profile 1] [shape=(1, 8, -1, -1), Row major linear FP16 format]}
"""


def test_polygraphy_s_text_is_read() -> None:
    info = read_polygraphy_text(POLYGRAPHY, "a.txt")
    conv, copy = info.layers
    assert (conv.name, conv.precision, conv.tactic) == ("c1 + r1", "int8", "0x1")
    assert [(t.name, t.dtype, t.dims) for t in (*conv.inputs, *conv.outputs)] == [
        ("q", "int8", (1, 3, -1, -1)), ("s", "fp16", (1, 8, -1, -1)), ("m", "fp16", (1, 8, -1, -1))
    ]  # fmt: skip
    assert (copy.role, copy.outputs[0].dtype) == (Role.REFORMAT, "")
    assert [(t.name, t.dtype) for t in info.io] == [("x", "fp32"), ("y", "fp32")]
    with refused("QD-USAGE-ENGINE-FILE", "a.txt", "--show layers"):
        read_polygraphy_text(POLYGRAPHY.split("    ---- 2 Layer")[0], "a.txt")


METADATA = [
    {"Name": "NVIDIA A100 80GB PCIe", "ComputeCapability": [8, 0], "MULTIPROCESSOR_COUNT": 108,
     "CLOCK_RATE": 1410000, "MEMORY_CLOCK_RATE": 1512000, "GLOBAL_MEMORY_BUS_WIDTH": 5120}
]  # fmt: skip
DEVICE = """\
[I] === Device Information ===
[I] Selected Device: NVIDIA H100 PCIe
[I] Compute Capability: 9.0
[I] SMs: 114
[I] Memory Bus Width: 5120 bits (ECC enabled)
[I] Application Compute Clock Rate: 1.755 GHz
[I] Application Memory Clock Rate: 1.593 GHz
"""


def test_a_gpu_is_known_from_metadata_and_from_the_log() -> None:
    device = read_measured(METADATA, "a").device
    assert device is not None
    # NVIDIA: 312 TFLOPS in FP16, 624 TOPS in INT8, 1935 GB/s.
    assert 2e-12 * (device.peak_macs("fp16") or 0) == pytest.approx(312, rel=0.01)
    assert 2e-12 * (device.peak_macs("int8") or 0) == pytest.approx(624, rel=0.01)
    assert device.bandwidth_gb_s == pytest.approx(1935, rel=0.01)
    assert device.peak_macs("fp4") is None
    found = read_build_log(f"{DEVICE}[I] Layers:\n{LATER}", "a.log").device
    assert found is not None and found.name == "NVIDIA H100 PCIe"
    assert found.compute_capability == (9, 0) and found.multiprocessors == 114
    assert found.bandwidth_gb_s == pytest.approx(2039, rel=0.01)


def test_times_of_executions_are_their_medians() -> None:
    document = [{"computeMs": ms, "latencyMs": ms + 1} for ms in (1.0, 2.0, 9.0)]
    assert read_measured(document, "a").executions == ExecutionTimes(3, 2.0, 3.0)
    with refused("QD-USAGE-ENGINE-FILE-DAMAGED", "computeMs"):
        read_measured([{"computeMs": "1"}], "a")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", json.dumps(METADATA), "metadata="),
        ("a.json", json.dumps([{"computeMs": 1.0}]), "timing="),
        ("calib.bin", "TRT-7103-EntropyCalibration2\nx: 3c010a14\n", "calibration cache"),
        ("model.xml", '<?xml version="1.0"?><net name="m" version="11"></net>', "OpenVINO"),
        ("model.engine", b"\x00\x01garbage" * 9, "named like a serialized engine"),
    ],
)
def test_what_is_no_layers_is_told_what_it_is(
    name: str, content: str | bytes, says: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused("QD-USAGE-ENGINE-FILE", says, name):
        open_engine_file(path, lambda data, file: None)


def test_a_real_build_of_default_verbosity_names_no_kernels(
    rtx: Library, ada: BuildSettings, tmp_path: Path
) -> None:
    """TensorRT for RTX puts a whole network into one layer, and prints a brief line."""
    path = Path(__file__).parents[4] / "calib_data" / "digits_cnn.onnx"
    trt, lines = rtx.module, []

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def log(self, severity: object, message: str) -> None:
            lines.append(f"[V] [TRT] {message}")

    logger = Logger()
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    assert trt.OnnxParser(network, logger).parse(path.read_bytes())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("input", *[(4, 1, 8, 8)] * 3)
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config)
    info = read_build_log("\n".join(lines), "a.log")
    (layer,) = info.layers
    assert layer.role is Role.OPAQUE
    assert [(t.name, t.dtype, t.dims) for t in (*layer.inputs, *layer.outputs)] == [
        ("input", "fp32", (4, 1, 8, 8)), ("logits", "fp32", (4, 10))
    ]  # fmt: skip
    assert len(info.products) == 14 and gate_values(summarize(info))["fp32_share"] is None
