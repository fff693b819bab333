"""A folder with one small file of every kind that qdebug reads, and the commands that read each."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.quant_utils import write_calibration_table

from qdebug.cli.app import main

LAYERS = {
    "Layers": [
        {
            "Name": "conv1 + relu1",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {"Name": "x", "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Row major Int8"}
            ],
            "Outputs": [
                {"Name": "r1", "Dimensions": [1, 4, 8, 8], "Format/Datatype": "Row major Int8"}
            ],
            "Weights": {"Type": "Int8", "Count": 108},
            "TacticName": "sm80_xmma_fprop_i8i8",
            "Metadata": "[ONNX Layer: conv1]\x1e[ONNX Layer: relu1]",
        },
        {
            "Name": "fc",
            "LayerType": "CaskGemmMatrixMultiply",
            "Inputs": [{"Name": "f", "Dimensions": [1, 4], "Format/Datatype": "Half"}],
            "Outputs": [{"Name": "out", "Dimensions": [1, 5], "Format/Datatype": "Half"}],
            "TacticName": "sm80_xmma_gemm_f16f16",
            "Metadata": "[ONNX Layer: fc]",
        },
    ],
    "Bindings": ["x", "out"],
}
PROFILE = [
    {"count": 100},
    {"name": "conv1 + relu1", "timeMs": 4.0, "averageMs": 0.04, "percentage": 80.0},
    {"name": "fc", "timeMs": 1.0, "averageMs": 0.01, "percentage": 20.0},
]
BUILD_LOG = """\
[11/01/2024-10:32:52] [V] [TRT] ConvReluFusion: Fusing conv1 with relu1
[11/01/2024-10:32:52] [W] [TRT] Missing scale and zero-point for tensor f, expect fall back to \
non-int8 implementation for any layer consuming or producing given tensor
[11/01/2024-10:32:55] [V] [TRT] conv1 + relu1 Set Tactic Name: sm80_xmma_fprop_i8i8 Tactic: 0x7
[11/01/2024-10:32:57] [V] [TRT] Layers:
Name: conv1 + relu1, LayerType: CaskConvolution, Inputs: [ { Name: x, Location: Device, \
Dimensions: [1,3,8,8], Format/Datatype: Row major Int8 format }], Outputs: [ { Name: r1, \
Location: Device, Dimensions: [1,4,8,8], Format/Datatype: Row major Int8 format }], \
TacticName: sm80_xmma_fprop_i8i8, TacticValue: 0xd3f5, StreamId: 0, \
Metadata: [ONNX Layer: conv1][ONNX Layer: relu1]
Name: fc, LayerType: CaskGemmMatrixMultiply, Inputs: [ { Name: f, Location: Device, Dimensions: \
[1,4], Format/Datatype: Half }], Outputs: [ { Name: out, Location: Device, Dimensions: [1,5], \
Format/Datatype: Half }], TacticName: sm80_xmma_gemm_f16f16, StreamId: 0, Metadata: [ONNX Layer: fc]

Bindings:
x
out
[11/01/2024-10:32:58] [I] Engine built in 5.1 sec.
"""

BRIEF_LOG = """\
[I] === Device Information ===
[I] Selected Device: NVIDIA H100 PCIe
[I] Compute Capability: 9.0
[I] SMs: 114
[I] Memory Bus Width: 5120 bits (ECC enabled)
[I] Application Compute Clock Rate: 1.755 GHz
[I] Application Memory Clock Rate: 1.593 GHz
[V] [TRT] conv1 + relu1 Set Tactic Name: sm80_xmma_fprop_i8i8_i8i32_f32 Tactic: 0x7
[V] [TRT] Engine Layer Information:
Layer(CaskConvolution): conv1 + relu1, Tactic: 0x7, x (Int8[1,3:4,8,8]), s (Half[1,4:8,8,8]) -> \
r1 (Int8[1,4:32,8,8])
Layer(Myelin): {ForeignNode[a...b]}, Tactic: 0x0, r1 (Int8[1,4:32,8,8]) -> f (Half[1,4])
Layer(CaskGemmMatrixMultiply): fc, Tactic: 0x1, f (Half[1,4]) -> out (Float[1,5])
Layer(CaskConvolution): conv1 + relu1 [profile 1], Tactic: -7, x [profile 1][Int8(1,3,8,8)] -> \
r1 [profile 1][Int8(1,4,8,8)]
[I] === Profile (100 iterations ) ===
[I]    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer
[I]        4.00         0.04       0.0400      60.0   conv1 + relu1
[I]        1.00         0.01       0.0100      20.0   {ForeignNode[a...b]}
[I]        1.00         0.01       0.0100      20.0   fc
[I]        6.00         0.06       0.0600     100.0   Total
"""
POLYGRAPHY = """\
[I] ==== TensorRT Engine ====
    ---- 1 Engine Input(s) ----
    {x [dtype=float32, shape=(1, 3, 8, 8)]}

    ---- 1 Layer(s) Per Profile ----
    - Profile: 0
        Layer 0    | conv1 + relu1 [Op: CaskConvolution]
            {x [shape=(1, 3, 8, 8), Row major Int8 format]}
             -> {r1 [shape=(1, 4, 8, 8), Row major Int8 format]}
            ---- Attributes ----
            Tactic = 0x1
"""
TIMES = [{"startComputeMs": k, "computeMs": 0.5 + k, "latencyMs": 0.75 + k} for k in range(3)]
METADATA = [
    {
        "Name": "NVIDIA A100",
        "ComputeCapability": [8, 0],
        "MULTIPROCESSOR_COUNT": 108,
        "CLOCK_RATE": 1410000,
        "MEMORY_CLOCK_RATE": 1512000,
        "GLOBAL_MEMORY_BUS_WIDTH": 5120,
    }
]

CONFIGS: Mapping[str, Sequence[str]] = {
    "config.yaml": (
        *("command: compare", "model: net.onnx", "inputs: data.npz", "precision: int8"),
        *("samples: 2", "fail-on: [output.cosine>=0.5]", "weights: per-channel"),
    ),
    "calibrate.yaml": (
        *("command: calibrate", "model: net.onnx", "calib-data: calib.npz", "samples: 4"),
        *("method: [minmax, 'percentile:99']", "holdout-share: 0.5", "weights: per-tensor"),
    ),
    "repair.yaml": (
        *("command: repair", "model: net.onnx", "calib-data: calib.npz", "samples: 4"),
        *("only: [bias-correction, ranges]", "pin: false", "holdout-share: 0.5"),
    ),
    "sweep.yaml": (
        *("command: sweep", "model: net.onnx", "inputs: data.npz", "samples: 2"),
        *("precision: [int8, fp32]", "backend: onnxruntime", "fail-on: [output.cosine>=0.5]"),
    ),
}
"""Configuration files of the desk, and their lines."""

_COMPARE = ("compare", "net.onnx", "--inputs", "data.npz", "--no-progress")
_SWEEP = ("sweep", "net.onnx", "--inputs", "data.npz", "--backend", "onnxruntime", "--no-progress")
_VIEW = ("view", "--no-browser")
_WITH_DATA = ("--calib-data", "calib.npz", "--no-progress")

COMMANDS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "net.onnx": (
        (*_COMPARE, "--metric", "top1"),
        (*_COMPARE, "--precision", "fp16"),
        ("inspect", "net.onnx"),
        ("calibrate", "net.onnx", *_WITH_DATA, "--method", "minmax,percentile"),
        ("ranges", "net.onnx", *_WITH_DATA),
        ("export", "plan.yaml", "--to", "onnx", "--model", "net.onnx", "-o", "out.onnx"),
        ("compare", "--plan", "plan.yaml", "--inputs", "data.npz", "--no-progress"),
        (*_SWEEP, "--precision", "int8,fp32"),
        (*_VIEW, "net.onnx"),
    ),
    "loop.onnx": (
        ("compare", "loop.onnx", "--inputs", "loop.npz", "--no-progress"),
        ("inspect", "loop.onnx"),
    ),
    "external.onnx": (
        ("compare", "external.onnx", "--inputs", "data.npz", "--no-progress"),
        ("inspect", "external.onnx"),
    ),
    "metric.py": ((*_COMPARE, "--metric", "metric.py:metric", "--json", "-"),),
    "folds.onnx": (
        ("inspect", "folds.onnx"),
        ("compare", "folds.onnx", "--inputs", "loop.npz", "--no-progress"),
    ),
    "calls.onnx": (
        ("inspect", "calls.onnx"),
        ("compare", "calls.onnx", "--inputs", "loop.npz", "--no-progress"),
    ),
    "qdq.onnx": (
        ("compare", "qdq.onnx", "--inputs", "data.npz", "--no-progress"),
        ("inspect", "qdq.onnx", "--expect", "plan.yaml"),
    ),
    "data.npz": ((*_COMPARE, "--metric", "top1"), _COMPARE),
    "packed.npz": (("compare", "net.onnx", "--inputs", "packed.npz", "--no-progress"),),
    "data.npy": (("compare", "net.onnx", "--inputs", "data.npy", "--no-progress"),),
    "data.h5": (
        ("compare", "net.onnx", "--inputs", "data.h5", "--metric", "top1", "--no-progress"),
    ),
    "data.json": (("compare", "net.onnx", "--inputs", "data.json", "--no-progress"),),
    "set/test_data_set_0/input_0.pb": (
        ("compare", "net.onnx", "--inputs", "set", "--no-progress"),
    ),
    "plan.yaml": (
        ("compare", "--plan", "plan.yaml", "--inputs", "data.npz", "--no-progress"),
        ("export", "plan.yaml", "--to", "trtexec", "--model", "net.onnx", "-o", "out.sh"),
        ("export", "plan.yaml", "--to", "onnx", "-o", "out.onnx"),
        ("inspect", "layers.json", "--expect", "plan.yaml", "--model", "net.onnx"),
        (*_SWEEP, "--plan", "plan.yaml"),
    ),
    "scales.yaml": (
        (*_COMPARE, "--calibration", "scales.yaml"),
        ("export", "scales.yaml", "--to", "trt-cache", "--model", "net.onnx", "-o", "out.cache"),
    ),
    "trt.cache": (
        (*_COMPARE, "--calibration", "trt.cache"),
        ("calibrate", "net.onnx", *_WITH_DATA, "--from-cache", "trt.cache"),
    ),
    "config.yaml": (("compare", "--config", "config.yaml", "--no-progress"),),
    "calibrate.yaml": (("calibrate", "--config", "calibrate.yaml", "--no-progress"),),
    "repair.yaml": (("repair", "--config", "repair.yaml", "--no-progress"),),
    "sweep.yaml": (("sweep", "--config", "sweep.yaml", "--no-progress"),),
    "run.h5": (
        ("report", "run.h5", "-o", "page.html"),
        ("ranges", "run.h5"),
        (*_COMPARE, "--reference", "run.h5"),
        (*_VIEW, "run.h5"),
    ),
    **{
        f"{kind}.json": (
            ("report", f"{kind}.json", "-o", "page.html"),
            (*_VIEW, f"{kind}.json"),
        )
        for kind in ("compare", "calibrate", "ranges", "bisect", "repair", "sweep", "inspect")
    },
    "layers.json": (
        ("inspect", "layers.json"),
        ("inspect", "layers.json", "--expect", "plan.yaml", "--profile", "profile.json"),
    ),
    "profile.json": (
        ("inspect", "profile.json"),
        ("inspect", "layers.json", "--profile", "profile.json"),
    ),
    "times.json": (("inspect", "layers.json", "--timing", "times.json"), (*_VIEW, "times.json")),
    "metadata.json": (("inspect", "layers.json", "--metadata", "metadata.json"),),
    "brief.log": (
        ("inspect", "brief.log", "--csv", "new.csv"),
        ("inspect", "layers.json", "--diff", "brief.log", "--diff-profile", "brief.log"),
        ("inspect", "layers.json", "--metadata", "brief.log"),
    ),
    "polygraphy.txt": (("inspect", "polygraphy.txt"),),
    "calibration.json": ((*_COMPARE, "--calibration", "calibration.json"),),
    "calibration.flatbuffers": ((*_COMPARE, "--calibration", "calibration.flatbuffers"),),
    "build.log": (("inspect", "build.log"), ("inspect", "build.log", "--expect", "plan.yaml")),
}
"""The commands that read each file of the desk."""


def make(folder: Path) -> None:
    """Write every file into `folder`."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        _models()
        _samples()
        _results()
    finally:
        os.chdir(before)


def _models() -> None:
    rng = np.random.default_rng(0)
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        node("Relu", ["c1"], ["r1"], "relu1"),
        node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        node("Add", ["c2", "r1"], ["s"], "add"),
        node("BatchNormalization", ["s", "g", "h", "m", "v"], ["n"], "norm"),
        node("GlobalAveragePool", ["n"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("Gemm", ["f", "w3", "b3"], ["out"], "fc", transB=1),
    ]
    shapes = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (4, 4, 3, 3), "w3": (5, 4), "b3": (5,)}
    weights = {name: rng.normal(size=shape) / 3 for name, shape in shapes.items()}
    weights |= {"g": np.ones(4), "h": np.zeros(4), "m": np.zeros(4), "v": np.ones(4)}
    net = _model(nodes, ("x", ("N", 3, 8, 8)), ("out", ("N", 5)), weights)
    Path("net.onnx").write_bytes(net.SerializeToString())
    options = {"save_as_external_data": True, "location": "external.data", "size_threshold": 0}
    onnx.save_model(onnx.ModelProto.FromString(net.SerializeToString()), "external.onnx", **options)
    Path("loop.onnx").write_bytes(_loop(weights).SerializeToString())
    Path("folds.onnx").write_bytes(_folding(weights, None).SerializeToString())
    functions = [_function(k, k < _LEVELS - 1) for k in range(_LEVELS)]
    Path("calls.onnx").write_bytes(_folding(weights, functions).SerializeToString())
    Path("metric.py").write_text(METRIC, encoding="utf-8")


def _model(
    nodes: Sequence[onnx.NodeProto],
    given: tuple[str, Sequence[int | str]],
    found: tuple[str, Sequence[int | str]],
    weights: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value(given[0], TensorProto.FLOAT, given[1])],
        [value(found[0], TensorProto.FLOAT, found[1])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


_LEVELS = 6
METRIC = """\
import sys
calls = 0
def metric(labels, outputs):
    global calls
    calls += 1
    print("call", calls)
    if calls > 1:
        sys.stdout.close()
    return float(outputs["out"].mean())
"""
"""A metric that prints, and closes what it prints to."""


def _folding(
    weights: Mapping[str, np.ndarray], functions: Sequence[onnx.FunctionProto] | None
) -> onnx.ModelProto:
    """A product, and nodes that read only constants: doubled, or in functions that call others."""
    node = helper.make_node
    nodes = [node("Constant", [], ["c0"], "one", value=numpy_helper.from_array(np.ones(2, "f4")))]
    if functions is None:
        nodes += [node("Concat", [f"c{k}"] * 2, [f"c{k + 1}"], f"cat{k}", axis=0) for k in range(4)]
        shape = numpy_helper.from_array(np.array([4, 8]))
        nodes.append(node("Constant", [], ["shape"], "shape", value=shape))
        nodes.append(node("Reshape", ["c4", "shape"], ["table"], "reshape"))
    else:
        nodes.append(node("f0", ["c0"], ["table"], "call", domain="my"))
    nodes += [
        node("ReduceSum", ["table"], ["sum"], "sum", keepdims=0),
        node("MatMul", ["x", "w"], ["product"], "product"),
        node("Add", ["product", "sum"], ["out"], "add"),
    ]
    made = _model(nodes, ("x", ("N", 4)), ("out", ("N", 5)), {"w": weights["w3"].T.copy()})
    if functions is not None:
        made.functions.extend(functions)
        made.opset_import.append(helper.make_opsetid("my", 1))
    return made


def _function(level: int, calls: bool) -> onnx.FunctionProto:
    """One that calls the next one twice."""
    inner = {"op_type": f"f{level + 1}", "domain": "my"} if calls else {"op_type": "Relu"}
    nodes = [helper.make_node(inputs=[a], outputs=[b], **inner) for a, b in ("ab", "bc")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_function("my", f"f{level}", ["a"], ["c"], nodes, opsets)


def _loop(weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """A product in the body of an If, a Loop, a Scan, and the attributes that hold tensors and
    graphs."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [node("MatMul", ["x", "w"], ["then"], "product")],
        "body",
        [],
        [value("then", TensorProto.FLOAT, ("N", 5))],
    )
    other = helper.make_graph(
        [node("Mul", ["all", "all"], ["else"], "square")],
        "other",
        [],
        [value("else", TensorProto.FLOAT, ("N", 5))],
    )
    again = helper.make_graph(
        [node("Identity", ["go"], ["on"], "on"), node("Tanh", ["h"], ["next"], "tanh")],
        "again",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("h", TensorProto.FLOAT, ("N", 5)),
        ],
        [value("on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, ("N", 5))],
    )
    step = helper.make_graph(
        [node("Add", ["total", "row"], ["more"], "add"), node("Neg", ["more"], ["seen"], "neg")],
        "step",
        [value("total", TensorProto.FLOAT, [5]), value("row", TensorProto.FLOAT, [5])],
        [value("more", TensorProto.FLOAT, [5]), value("seen", TensorProto.FLOAT, [5])],
    )
    zero = numpy_helper.from_array(np.zeros((), np.float32))
    three = numpy_helper.from_array(np.array(3))
    start = numpy_helper.from_array(np.zeros(5, np.float32))
    nodes = [
        node("Constant", [], ["three"], "three", value=three),
        node("Constant", [], ["start"], "start", value=start),
        node("MatMul", ["x", "w"], ["all"], "outside"),
        node("ReduceSum", ["x"], ["sum"], "sum", keepdims=0),
        node("Constant", [], ["zero"], "constant", value=zero),
        node("Greater", ["sum", "zero"], ["which"], "greater"),
        node("If", ["which"], ["y"], "if", then_branch=body, else_branch=other),
        node("Loop", ["three", "", "y"], ["z"], "loop", body=again),
        node("Scan", ["start", "z"], ["last", "rows"], "scan", body=step, num_scan_inputs=1),
        node("Softmax", ["rows"], ["out"], "softmax"),
    ]
    return _model(nodes, ("x", ("N", 4)), ("out", ("N", 5)), {"w": weights["w3"].T.copy()})


def _samples() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3, 3, 8, 8)).astype(np.float32)
    labels = np.arange(3)
    np.savez("data.npz", x=x, labels=labels)
    np.savez("calib.npz", x=rng.normal(size=(8, 3, 8, 8)).astype(np.float32))
    np.savez("loop.npz", x=rng.normal(size=(2, 4)).astype(np.float32))
    np.savez_compressed("packed.npz", x=x, labels=labels)
    np.save("data.npy", x)
    with h5py.File("data.h5", "w") as file:
        file["x"], file["labels"] = x, labels
    with h5py.File("calib.h5", "w") as file:
        file["x"] = rng.normal(size=(400, 3, 8, 8)).astype(np.float32)
    encoded = io.BytesIO()
    np.save(encoded, x[:1])
    array = {"polygraphy_class": "ndarray", "array": base64.b64encode(encoded.getvalue()).decode()}
    Path("data.json").write_text(json.dumps([{"x": array}]), encoding="utf-8")
    Path("set/test_data_set_0").mkdir(parents=True)
    tensor = numpy_helper.from_array(x[:1], "x").SerializeToString()
    Path("set/test_data_set_0/input_0.pb").write_bytes(tensor)


def _results() -> None:
    Path("layers.json").write_text(json.dumps(LAYERS, indent=1), encoding="utf-8")
    Path("profile.json").write_text(json.dumps(PROFILE, indent=1), encoding="utf-8")
    Path("build.log").write_text(BUILD_LOG, encoding="utf-8")
    Path("brief.log").write_text(BRIEF_LOG, encoding="utf-8")
    Path("polygraphy.txt").write_text(POLYGRAPHY, encoding="utf-8")
    Path("times.json").write_text(json.dumps(TIMES, indent=1), encoding="utf-8")
    Path("metadata.json").write_text(json.dumps(METADATA, indent=1), encoding="utf-8")
    ends = {"x": (np.array(-3, np.float32), np.array(2, np.float32))}
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, ends).data, ".")
    for name, lines in CONFIGS.items():
        Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = ("net.onnx", "--inputs", "data.npz")
    searched = ("net.onnx", "--inputs", "calib.npz")
    calibrated = ("net.onnx", "--calib-data", "calib.npz")
    for arguments in (
        ("compare", *found, "--save-plan", "plan.yaml", "-o", "run.h5", "--json", "compare.json"),
        ("calibrate", *calibrated, "-o", "scales.yaml", "--trt-cache", "trt.cache"),
        ("calibrate", *calibrated, "--json", "calibrate.json"),
        ("ranges", *calibrated, "--json", "ranges.json"),
        ("bisect", *searched, "--target", "output.sqnr_db>=30", "--json", "bisect.json"),
        ("repair", *calibrated, "--only", "ranges", "--no-pin", "--json", "repair.json"),
        (*_SWEEP[:-1], "--precision", "int8,fp32", "--json", "sweep.json"),
        ("inspect", "net.onnx", "--json", "inspect.json"),
        ("export", "plan.yaml", "--to", "onnx", "-o", "qdq.onnx"),
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([*arguments, *(() if arguments[0] in _BRIEF else ("--no-progress",))])
        assert code in (0, 1), arguments


_BRIEF = ("inspect", "export")
