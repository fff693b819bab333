"""Networks with recurrent layers, and with normalizations by reduction, for FP16; random weights.

None of them was used to find out how kernels round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


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

    def recurrent(
        self,
        op_type: str,
        x: str,
        size: int,
        hidden: int,
        *states: str,
        both: bool = False,
        **given: Any,
    ) -> str:
        d, rows = 1 + both, GATES[op_type] * hidden
        tensors = [
            self.constant(self.rng.normal(size=(d, rows, n)) / np.sqrt(n)) for n in (size, hidden)
        ]
        bias = self.constant(self.rng.normal(size=(d, 2 * rows)) / 4)
        way = "bidirectional" if both else "forward"
        return self.add(
            op_type, x, *tensors, bias, *states, outputs=2 + (op_type == "LSTM"),
            hidden_size=hidden, direction=way, **given,
        )  # fmt: skip

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


def speech(batch: int = 4) -> onnx.ModelProto:
    """Two LSTM in one direction over steps, a dense layer with Elu."""
    b = Builder(1)
    x = b.recurrent("LSTM", "x", 40, 56)
    x = b.recurrent("LSTM", b.add("Squeeze", x, b.constant([1], np.int64)), 56, 64)
    x = b.add("Squeeze", x, b.constant([1], np.int64))
    x = b.add("Elu", b.linear(x, 64, 48))
    return b.model({"x": [12, batch, 40]}, [b.linear(x, 48, 20)])


def speech_of_one() -> onnx.ModelProto:
    """The same with a batch of one, whose products are those of a vector."""
    return speech(1)


def text() -> onnx.ModelProto:
    """Convolutions, then two LSTM in both directions, as recognizers of text have them."""
    b = Builder(2)
    x = b.add("Conv", "x", b.weight(32, 1, 3, 3), pads=[1, 1, 1, 1], strides=[2, 1])
    x = b.add("Conv", b.add("LeakyRelu", x, alpha=0.1), b.weight(48, 32, 3, 3), pads=[1, 1, 1, 1])
    x = b.reduced("ReduceMean", b.add("Relu", x), 2)
    x = b.add("Transpose", b.add("Squeeze", x, b.constant([2], np.int64)), perm=[2, 0, 1])
    for size in (48, 80):
        x = b.recurrent("LSTM", x, size, 40, both=True)
        x = b.shaped(b.add("Transpose", x, perm=[0, 2, 1, 3]), 16, 3, 80)
    return b.model({"x": [3, 1, 16, 16]}, [b.add("Softmax", b.linear(x, 80, 37), axis=-1)])


def tagger() -> onnx.ModelProto:
    """A GRU in both directions as PyTorch exports it, a GRU as ONNX has it, Softplus and Mish."""
    b = Builder(3)
    x = b.recurrent(
        "GRU", b.add("Mish", b.linear("x", 24, 40)), 40, 36, both=True, linear_before_reset=1
    )
    x = b.shaped(b.add("Transpose", x, perm=[0, 2, 1, 3]), 10, 5, 72)
    x = b.recurrent("GRU", x, 72, 44)
    x = b.add("Softplus", b.add("Squeeze", x, b.constant([1], np.int64)))
    return b.model({"x": [10, 5, 24]}, [b.linear(x, 44, 12)])


def voice() -> onnx.ModelProto:
    """One step of an LSTM whose states are inputs and outputs, as detectors of speech have it."""
    b = Builder(4)
    x = b.add("Conv", "x", b.weight(48, 20, 3), pads=[1, 1])
    x = b.add("Transpose", b.reduced("ReduceMean", b.add("Relu", x), 2), perm=[2, 0, 1])
    steps = b.recurrent("LSTM", x, 48, 32, "", "h", "c")
    states = b.add("Concat", f"{steps}_1", f"{steps}_2", axis=0)
    shape = b.add("Squeeze", steps, b.constant([1], np.int64))
    return b.model(
        {"x": [2, 20, 12], "h": [1, 2, 32], "c": [1, 2, 32]},
        [b.add("Sigmoid", b.linear(b.add("Relu", shape), 32, 4)), states],
    )


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
    "LSTM, one direction": speech,
    "LSTM, one direction, batch 1": speech_of_one,
    "LSTM, both directions": text,
    "GRU": tagger,
    "LSTM, one step, states given": voice,
    "written-out LayerNorm": mixer,
    "capsules": capsules,
}
