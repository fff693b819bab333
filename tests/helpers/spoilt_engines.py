"""Engines that compute one layer wrong wherever it runs in INT8, whatever builds them: a simulation
cannot foresee it, so a search has to go on on engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.engine import BuiltEngine

Build = Callable[..., BuiltEngine]
LAYERS = ("first", "second", "third", "fourth")
WIDTH = 64


@dataclass(frozen=True)
class Perceptron:
    """A network of four products on disk, with samples for it. `second` reads a few outliers, so
    that INT8 harms it most."""

    model: Path
    samples: Path


def perceptron(folder: Path) -> Perceptron:
    """Write it."""
    rng = np.random.default_rng(0)
    nodes, weights, tensor = [], [], "x"
    for k, name in enumerate(LAYERS):
        last = k == len(LAYERS) - 1
        values = rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH / 2)
        if k == 0:
            values[:, 0] *= 30
        if k == 1:
            values[0] /= 30
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{k}"))
        made = "y" if last else f"m{k}"
        nodes.append(helper.make_node("MatMul", [tensor, f"w{k}"], [made], name))
        if not last:
            nodes.append(helper.make_node("Relu", [made], [f"r{k}"], f"relu{k}"))
        tensor = f"r{k}"
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [value("x", TensorProto.FLOAT, ["N", WIDTH])],
        [value("y", TensorProto.FLOAT, ["N", WIDTH])],
        weights,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = Perceptron(folder / "perceptron.onnx", folder / "samples.npz")
    onnx.save(proto, found.model)
    np.savez(found.samples, x=rng.normal(size=(48, WIDTH)).astype(np.float32))
    return found


def spoilt_in_int8(build: Build, layer: str) -> Build:
    """`build`, of models in which `layer` multiplies by 1.2 too much where it reads INT8 data."""

    def spoilt(library: Any, proto: onnx.ModelProto, *rest: Any, **more: Any) -> BuiltEngine:
        producers = {t: n for n in proto.graph.node for t in n.output}
        node = next((n for n in proto.graph.node if n.name == layer), None)
        quantized = node and (producer := producers.get(node.input[0])) and producer.op_type
        if node is not None and quantized == "DequantizeLinear":
            scale = producers[node.input[1]].input[1]
            copied = onnx.ModelProto()
            copied.CopyFrom(proto)
            for tensor in copied.graph.initializer:
                if tensor.name == scale:
                    values = numpy_helper.to_array(tensor) * np.float32(1.2)
                    tensor.CopyFrom(numpy_helper.from_array(values, scale))
            proto = copied
        return build(library, proto, *rest, **more)

    return spoilt
