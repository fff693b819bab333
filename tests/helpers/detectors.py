"""Small detectors whose output joins boxes of up to 640 and scores of at most 1."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, quantize_static

LARGEST_BOX = 640.0
JOIN = "join"
"""The node that joins boxes and scores."""


@dataclass
class Builder:
    """A network in the making; nodes write tensors of their own name."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def op(self, op_type: str, *inputs: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, values: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def conv(
        self, x: str, read: int, write: int, name: str, bias: float = 0.0, size: int = 3
    ) -> str:
        fan = read * size * size
        weight = self.rng.normal(size=(write, read, size, size)) * np.sqrt(2 / fan)
        given = self.constant(f"{name}.w", weight.astype(np.float32))
        shift = self.constant(f"{name}.b", np.full(write, bias, np.float32))
        return self.op("Conv", x, given, shift, name=name, pads=[size // 2] * 4)

    def stage(self, x: str, read: int, write: int, name: str) -> str:
        return self.op("Relu", self.conv(x, read, write, name), name=f"{name}.relu")

    def rows(self, x: str, channels: int, name: str) -> str:
        shape = self.constant(f"{name}.shape", np.array([0, channels, -1], np.int64))
        return self.op("Reshape", x, shape, name=name)

    def boxes(self, x: str, name: str = "boxes") -> str:
        raw = self.op("Sigmoid", self.conv(x, 16, 4, f"{name}.conv"), name=f"{name}.unit")
        largest = self.constant(f"{name}.size", np.float32(LARGEST_BOX))
        return self.op("Mul", raw, largest, name=name)

    def scores(self, x: str, classes: int = 5, name: str = "scores") -> str:
        return self.op("Sigmoid", self.conv(x, 16, classes, f"{name}.conv", -2.0), name=name)

    def features(self) -> str:
        return self.stage(self.stage("image", 3, 16, "stem"), 16, 16, "neck")

    def save(self, path: Path, output: str) -> Path:
        given = [helper.make_tensor_value_info("image", 1, ["N", 3, 16, 16])]
        final = [helper.make_tensor_value_info(output, 1, None)]
        graph = helper.make_graph(self.nodes, "g", given, final, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return path


def joined(net: Builder) -> str:
    """Boxes and scores, each in rows, joined last."""
    x = net.features()
    boxes, scores = net.rows(net.boxes(x), 4, "box_rows"), net.rows(net.scores(x), 5, "score_rows")
    return net.op("Concat", boxes, scores, name=JOIN, axis=1)


def turned(net: Builder) -> str:
    """The same with a sample's anchors first, as YOLOX has them."""
    return net.op("Transpose", joined(net), name="turned", perm=[0, 2, 1])


def three(net: Builder) -> str:
    """With an objectness besides."""
    x = net.features()
    every = [net.boxes(x), net.scores(x, 1, "objectness"), net.scores(x)]
    return net.rows(net.op("Concat", *every, name=JOIN, axis=1), 10, "rows")


def unit(net: Builder) -> str:
    """Boxes of at most 1, too: one scale suits both."""
    x = net.features()
    boxes = net.op("Sigmoid", net.conv(x, 16, 4, "boxes.conv"), name="boxes")
    return net.op("Concat", boxes, net.scores(x), name=JOIN, axis=1)


def pyramid(net: Builder) -> str:
    """Two levels, each of boxes and scores."""
    fine = net.features()
    coarse = net.op("AveragePool", fine, name="pool", kernel_shape=[2, 2], strides=[2, 2])
    levels = []
    for k, x in enumerate((fine, net.stage(coarse, 16, 16, "deep"))):
        every = net.boxes(x, f"boxes{k}"), net.scores(x, 5, f"scores{k}")
        one = net.op("Concat", *every, name=f"{JOIN}{k}", axis=1)
        levels.append(net.rows(one, 9, f"rows{k}"))
    return net.op("Concat", *levels, name="levels", axis=2)


class _Reader(CalibrationDataReader):
    def __init__(self, samples: np.ndarray) -> None:
        self._feeds = iter([{"image": samples[i : i + 1]} for i in range(len(samples))])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def images(count: int = 16) -> np.ndarray:
    """Smooth noise, float32 [count, 3, 16, 16]."""
    x = np.random.default_rng(7).normal(size=(count, 3, 16, 16))
    for axis in (2, 3):
        x = (x + np.roll(x, 1, axis) + np.roll(x, -1, axis)) / 1.7
    return x.astype(np.float32)


def quantized(
    make: Callable[[Builder], str], folder: Path, **settings: Any
) -> tuple[Path, Path, Path]:
    """A detector, the same quantized by ONNX Runtime, and samples."""
    net = Builder()
    fp32 = net.save(folder / "fp32.onnx", make(net))
    int8 = folder / "int8.onnx"
    source = shutil.copy(fp32, folder / "source.onnx")
    quantize_static(source, int8, _Reader(images()), **settings)
    np.savez(folder / "images.npz", image=images())
    return fp32, int8, folder / "images.npz"
