"""Files in forms that the tools of others write, small ones of each, against figures by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from qdebug.engine_info.files.build_log import read_build_log
from qdebug.engine_info.files.layer_info import read_layer_info
from qdebug.engine_info.files.opening import (
    engine_file_kind,
    open_device,
    open_engine_file,
    open_profile,
    open_times,
)
from qdebug.engine_info.layers import EngineInfo, InfoSource
from qdebug.engine_info.measurements import ExecutionTimes
from qdebug.engine_info.summary import gate_values, summarize

BRIEF = """\
Layer(CaskConvolution): c1 + r1, Tactic: 0x1, x (Int8[1,64:32,56,56]) -> y (Int8[1,64:32,56,56])
Layer(CaskConvolution): c2, Tactic: 0x2, y (Int8[1,64:32,56,56]) -> z (Half[1,64:8,56,56])
"""
# TensorRT 8.5: the name first, and a median, which 8.4 has not.
TABLE_OF_8_5 = """\
=== Profile (100 iterations ) ===
                  Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %
                c1 + r1       30.00           0.3000             0.2900     75.0
                     c2       10.00           0.1000             0.0900     25.0
                  Total       40.00           0.4000             0.3800    100.0
"""
SUMMARY = """\
=== Performance summary ===
Throughput: 1130.01 qps
Latency: min = 0.9786 ms, max = 0.9899 ms, mean = 0.9823 ms, median = 0.9826 ms, \
percentile(90%) = 0.9831 ms, percentile(95%) = 0.984 ms, percentile(99%) = 0.9848 ms
Enqueue Time: min = 0.006 ms, max = 0.016 ms, mean = 0.00709 ms, median = 0.00708 ms, \
percentile(99%) = 0.008 ms
GPU Compute Time: min = 0.8786 ms, max = 0.8899 ms, mean = 0.8823 ms, median = 0.8826 ms, \
percentile(90%) = 0.8831 ms, percentile(95%) = 0.884 ms, percentile(99%) = 0.8848 ms
Total Host Walltime: 3.00175 s
Total GPU Compute Time: 2.99267 s

"""
TIMES = ExecutionTimes(3392, 0.8826, 0.9826, 0.8848, 0.00708, 1130.01)


def _written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _prefixed(text: str, prefix: str = "[11/21/2026-14:23:05] [I] ") -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def test_the_profile_of_tensorrt_8_5_is_read_by_its_head(tmp_path: Path) -> None:
    log = f"[V] [TRT] Engine Layer Information:\n{BRIEF}{_prefixed(TABLE_OF_8_5)}"
    info = read_build_log(log, "a.log")
    assert [layer.time_ms for layer in info.layers] == [0.3, 0.1]
    times = open_profile(_written(tmp_path, "a.log", _prefixed(TABLE_OF_8_5)))
    assert [(t.name, t.ms) for t in times] == [("c1 + r1", 0.3), ("c2", 0.1)]


def test_the_summary_of_executions_is_read_from_any_log(tmp_path: Path) -> None:
    plain = "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec\n" + _prefixed(SUMMARY)
    path = _written(tmp_path, "plain.log", plain)
    assert open_times(path) == TIMES
    log = f"[V] [TRT] Engine Layer Information:\n{BRIEF}[I] done\n{_prefixed(SUMMARY)}"
    assert read_build_log(log, "a.log").executions == TIMES
    with refused("QD-USAGE-ENGINE-FILE", "--verbose", "timing", "plain.log"):
        open_engine_file(path, lambda data, file: None)


def test_the_metadata_of_a_profile_tells_the_gpu_and_the_times(tmp_path: Path) -> None:
    five = [0.8786, 0.8899, 0.8823, 0.8826, 0.8848]
    document = {
        "performance_summary": {
            "Throughput": 1130.01, "Latency": [x + 0.1 for x in five], "GPU Compute Time": five,
            "Enqueue Time": [0.006, 0.016, 0.00709, 0.00708, 0.008],
            "Total Host Walltime": 3.00175,
        },
        "inference_options": {"Batch": "Explicit"},
        "device_information": {
            "Selected Device": "NVIDIA A100 80GB PCIe", "Compute Capability": 8.0, "SMs": 108.0,
            "Compute Clock Rate": 1.41, "Memory Bus Width": 5120.0, "Memory Clock Rate": 1.512,
        },
    }  # fmt: skip
    path = _written(tmp_path, "resnet.engine.profile.metadata.json", document)
    assert engine_file_kind(path) == "metadata"
    device = open_device(path)
    assert (device.name, device.compute_capability) == ("NVIDIA A100 80GB PCIe", (8, 0))
    assert (device.multiprocessors, device.bandwidth_gb_s) == (108, 1935.4)
    assert open_times(path) == TIMES


@pytest.mark.parametrize("pooled", ["CaskConvActPool", "ConvActPool"])
def test_a_convolution_that_pools_counts_what_it_computes(pooled: str) -> None:
    """The first of a ResNet: 7 × 7 from 3 to 64 channels at 112 × 112 places, of which the pooling
    leaves 56 × 56."""
    layer = {
        "Name": "conv1 + relu + pool", "LayerType": pooled, "ParameterType": "ConvActPool",
        "Inputs": [{"Name": "x", "Dimensions": [2, 3, 224, 224], "Format/Datatype": "Int8"}],
        "Outputs": [{"Name": "y", "Dimensions": [2, 64, 56, 56], "Format/Datatype": "Int8"}],
        "ConvKernel": [7, 7], "ConvStride": [2, 2], "ConvPrePadding": [3, 3],
        "ConvPostPadding": [3, 3], "ConvDilation": [1, 1], "ConvOutMaps": 64, "ConvGroups": 1,
        "ConvWeights": {"Type": "Int8", "Count": 9408},
    }  # fmt: skip
    info = read_layer_info({"Layers": [layer]}, "a.json")
    assert info.layers[0].macs == 2 * 9408 * 112 * 112
    assert gate_values(summarize(info))["int8_mac_share"] == 1


CUT = "The log ends with the list of layers"


def test_a_log_that_ends_inside_its_layers_says_so() -> None:
    def notes(text: str) -> bool:
        return any(CUT in note for note in read_build_log(text, "a.log").notes)

    head = "[V] [TRT] Marking z_1 as output: z\n[V] [TRT] Engine Layer Information:\n"
    first, second = BRIEF.splitlines()
    assert notes(f"{head}{first}\n")
    assert notes(f"{head}{first}\n[V] [TRT] Layer(CaskConv")
    assert not notes(head + BRIEF)  # what writes the output is there
    assert not notes(f"{head}{BRIEF}[I] Engine built in 5.1 sec.\n")
    assert not notes(f"[V] [TRT] Layers:\n{first}\n{second}\nBindings:\nx\nz\n")


@pytest.mark.parametrize(
    "prefix",
    [
        "trt-1  | [11/21/2026-14:23:05] [V] [TRT] ",
        "Nov 21 14:23:05 host trtexec[17]: [11/21/2026-14:23:05] [V] [TRT] ",
        "Nov  1 14:23:05 host docker/trt: [V] [TRT] ",
        "2026-11-21T14:23:05.123456+01:00 host trtexec[17]: [V] [TRT] ",
        "[2023-11-21 14:23:05,123] [TRT] [V] ",
        "[2023-11-21T14:23:05] INFO: ",
    ],
)
def test_logs_are_read_behind_what_collects_them(prefix: str, tmp_path: Path) -> None:
    log = _prefixed(f"Engine Layer Information:\n{BRIEF}Total {SUMMARY}", prefix)
    info = open_engine_file(_written(tmp_path, "a.log", log), lambda data, file: None)
    assert [layer.precision for layer in info.layers] == ["int8", "int8"]
    assert info.executions == TIMES


def test_a_log_of_another_tool_is_no_json(tmp_path: Path) -> None:
    path = _written(tmp_path, "train.log", "[2023-11-21 14:23:05] epoch 1\n")
    with refused("QD-USAGE-ENGINE-FILE", "not a build log"):
        open_engine_file(path, lambda data, file: None)


def test_polygraphy_s_text_is_called_so(tmp_path: Path) -> None:
    text = (
        "[I] ==== TensorRT Engine ====\n    ---- 1 Layer(s) Per Profile ----\n"
        "        Layer 0    | c1 [Op: CaskConvolution]\n"
        "            {x [shape=(1, 8), Row major Int8 format]}\n"
        "             -> {y [shape=(1, 8), Row major Int8 format]}\n"
        "            ---- Attributes ----\n            Metadata = [ONNX Layer: conv]\n"
    )
    info: EngineInfo = open_engine_file(_written(tmp_path, "a.txt", text), lambda *_: None)
    assert info.source is InfoSource.POLYGRAPHY
    assert info.layers[0].onnx_nodes == ("conv",)
