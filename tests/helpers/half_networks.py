"""Networks with normalizations by reduction, for FP16; random weights.

None of them was used to find out how kernels round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Builder:
    """A model in FP32, node by node; each method returns the name of what it adds."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        fan = int(np.prod(shape[1:])) or 1
        return self.constant(self.rng.normal(size=shape) * scale / np.sqrt(fan))

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, dtype)
        return name

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **given: Any) -> str:
        k = len(self.nodes)
        made = [f"t{k}_{i}" if i else f"t{k}" for i in range(outputs)]
        node = helper.make_node(op_type, inputs, made, f"{op_type}_{k}", **given)
        self.nodes.append(node)
        return made[0]

    def linear(self, x: str, inner: int, outer: int) -> str:
        return self.add(
            "Add",
            self.add("MatMul", x, self.constant(self._matrix(inner, outer))),
            self.weight(outer),
        )

    def _matrix(self, inner: int, outer: int) -> Array:
        return self.rng.normal(size=(inner, outer)) / np.sqrt(inner)

    def reduced(self, op_type: str, x: str, axis: int = -1) -> str:
        return self.add(op_type, x, self.constant([axis], np.int64), keepdims=1)

    def normalized(self, x: str, size: int) -> str:
        """LayerNormalization, written out as PyTorch exports it."""
        centred = self.add("Sub", x, self.reduced("ReduceMean", x))
        square = self.add("Pow", centred, self.constant(2.0))
        variance = self.add("Add", self.reduced("ReduceMean", square), self.constant(1e-5))
        ready = self.add("Div", centred, self.add("Sqrt", variance))
        factor = self.constant(1 + self.rng.normal(size=size) / 4)
        return self.add("Add", self.add("Mul", ready, factor), self.weight(size))

    def unit(self, x: str) -> str:
        """Divided by its norm, as torch.nn.functional.normalize."""
        norm = self.add("Clip", self.reduced("ReduceL2", x), self.constant(1e-4))
        return self.add("Div", x, norm)

    def squashed(self, x: str) -> str:
        """The nonlinearity of capsules."""
        square = self.reduced("ReduceSum", self.add("Mul", x, x))
        share = self.add("Div", square, self.add("Add", square, self.constant(1.0)))
        length = self.add("Sqrt", self.add("Add", square, self.constant(1e-3)))
        return self.add("Mul", share, self.add("Div", x, length))

    def shaped(self, x: str, *shape: int) -> str:
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def model(
        self, inputs: Mapping[str, Sequence[int]], outputs: Sequence[str], opset: int = 18
    ) -> onnx.ModelProto:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "network",
            [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [value(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(a, name) for name, a in self.weights.items()],
        )
        imports = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def mixer() -> onnx.ModelProto:
    """Blocks of normalizations by reduction, products over tokens and channels, Elu, and a
    comparison of directions."""
    b = Builder(5)
    x = b.linear("x", 24, 64)
    for _ in range(3):
        y = b.add("Transpose", b.normalized(x, 64), perm=[0, 2, 1])
        y = b.linear(b.add("Elu", b.linear(y, 20, 40)), 40, 20)
        x = b.add("Add", x, b.add("Transpose", y, perm=[0, 2, 1]))
        x = b.add("Add", x, b.linear(b.add("Elu", b.linear(b.normalized(x, 64), 64, 96)), 96, 64))
    ahead = b.unit(x)
    return b.model(
        {"x": [4, 20, 24]}, [b.add("MatMul", ahead, b.add("Transpose", ahead, perm=[0, 2, 1]))]
    )


def capsules() -> onnx.ModelProto:
    """Capsules with two rounds of routing: products, norms and divisions."""
    b = Builder(6)
    x = b.add("Conv", "x", b.weight(64, 1, 3, 3, scale=2), strides=[2, 2])
    x = b.squashed(b.shaped(b.add("Transpose", x, perm=[0, 2, 3, 1]), 3, 196, 1, 16))
    x = b.add("MatMul", x, b.constant(b.rng.normal(size=(196, 16, 80)) / 4))
    x = b.shaped(x, 3, 196, 10, 8)
    v = b.squashed(b.reduced("ReduceMean", x, 1))
    for _ in range(2):
        votes = b.reduced("ReduceSum", b.add("Mul", x, v), -1)
        share = b.add("Softmax", votes, axis=2)
        v = b.squashed(b.reduced("ReduceSum", b.add("Mul", x, share), 1))
    return b.model({"x": [3, 1, 16, 16]}, [b.reduced("ReduceL2", v)])


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "written-out LayerNorm": mixer,
    "capsules": capsules,
}
