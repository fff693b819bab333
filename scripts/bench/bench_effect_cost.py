"""What measuring the effects of layers takes, at 50 to 300 quantized layers.

Residual networks of 3×3 convolutions with 64 channels on 14×14 pixels, 8 random images,
whose comparison in INT8 is timed with and without effects (CPU time of all threads). The bound is
the rest of the comparison, or 60 passes of the FP32 model over the samples, whichever is more.

    python scripts/bench/bench_effect_cost.py [--layers 50 110 188 300]
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from common import parser_of
from onnx import TensorProto, helper, numpy_helper

import qdebug

CHANNELS, SIZE, SAMPLES, PASSES = 64, 14, 8, 60


def main() -> None:
    """Print a table row for each number of layers."""
    parser = parser_of(__doc__)
    parser.add_argument("--layers", nargs="+", type=int, default=[50, 110, 188, 300])
    print(
        "| layers | left out | on samples | FP32 pass | rest of compare | effects | passes | "
        "of the bound |\n|---|---|---|---|---|---|---|---|"
    )
    for layers in parser.parse_args().layers:
        with TemporaryDirectory() as folder:
            print(row(layers, Path(folder)), flush=True)


def row(layers: int, folder: Path) -> str:
    """What one network takes."""
    model = folder / "network.onnx"
    onnx.save(residual(layers), model)
    images = np.random.default_rng(layers).normal(size=(SAMPLES, 3, SIZE, SIZE)).astype(np.float32)

    def compared(mode: str) -> tuple[qdebug.CompareResult, float]:
        before = time.process_time()
        result = qdebug.compare(str(model), inputs={"x": images}, effect=mode)
        return result, time.process_time() - before

    compared("none")
    rest = min(compared("none")[1] for _ in range(2))
    result, whole = compared("fast")
    assert result.effect is not None and result.effect.of_layers == layers
    one = fp32_seconds(model, images)
    bound = max(rest, PASSES * one)
    effects = whole - rest
    return (
        f"| {layers} | {result.effect.layers} | {result.effect.samples} | {one:.2f} s | "
        f"{rest:.1f} s | {effects:.1f} s | {effects / one:.0f} | {effects / bound:.2f} |"
    )


def fp32_seconds(model: Path, images: Any) -> float:
    """CPU seconds of the FP32 model over the samples, one by one: the least of five."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    found = []
    for _ in range(5):
        before = time.process_time()
        for image in images:
            session.run(None, {"x": image[None]})
        found.append(time.process_time() - before)
    return min(found)


def residual(layers: int) -> onnx.ModelProto:
    """A network of so many convolutions, in blocks of two with an Add and Relus."""
    rng, nodes, constants = np.random.default_rng(0), [], []

    def conv(source: str, name: str, inputs: int) -> str:
        weight = rng.normal(size=(CHANNELS, inputs, 3, 3)) * np.sqrt(1 / (9 * inputs))
        bias = rng.normal(size=CHANNELS) * 0.1
        for key, values in (("w", weight), ("b", bias)):
            constants.append(numpy_helper.from_array(values.astype(np.float32), f"{name}_{key}"))
        given = [source, f"{name}_w", f"{name}_b"]
        nodes.append(helper.make_node("Conv", given, [name], name, pads=[1, 1, 1, 1]))
        return name

    def node(op: str, inputs: list[str], name: str) -> str:
        nodes.append(helper.make_node(op, inputs, [name], name))
        return name

    here = node("Relu", [conv("x", "stem", 3)], "stem_relu")
    for i in range(1, layers - 1, 2):
        first = node("Relu", [conv(here, f"c{i}", CHANNELS)], f"r{i}")
        second = conv(first, f"c{i + 1}", CHANNELS)
        here = node("Relu", [node("Add", [second, here], f"a{i}")], f"r{i + 1}")
    if layers % 2 == 0:
        here = conv(here, "last", CHANNELS)
    nodes.append(helper.make_node("GlobalAveragePool", [here], ["y"], "pool"))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CHANNELS, 1, 1])
    graph = helper.make_graph(nodes, "residual", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


if __name__ == "__main__":
    main()
