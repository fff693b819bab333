"""Networks that are inside of If, Loop and Scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Array = np.ndarray[Any, Any]


def value(name: str, shape: Sequence[int | str | None] | None = None, kind: int = FLOAT) -> Any:
    """A graph's input or output; without a shape not even its rank is known."""
    return helper.make_tensor_value_info(name, kind, shape)


def weights(seed: int, **shapes: tuple[int, ...]) -> list[onnx.TensorProto]:
    """Random tensors of the given shapes, of about unit gain."""
    rng = np.random.default_rng(seed)
    return [
        numpy_helper.from_array(
            (rng.normal(size=s) / max(1, np.prod(s[1:])) ** 0.5).astype(np.float32), name
        )
        for name, s in shapes.items()
    ]


def constant(name: str, values: Any) -> onnx.NodeProto:
    """A Constant node."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values))


def voice_branch(which: str, seed: int, stride: int, *, nodes: bool) -> onnx.GraphProto:
    """A convolution, another in an If of its own, and an LSTM; the weights are initializers of the
    branch, or with `nodes` its Constant nodes. Both branches use the same names, as exporters do.
    """
    held = weights(
        seed,
        conv_w=(8, 1, 9),
        deep_w=(8, 8, 3),
        lstm_w=(1, 32, 8),
        lstm_r=(1, 32, 8),
        lstm_b=(1, 64),
        out_w=(8, 1),
    )
    deep = helper.make_graph(
        [
            helper.make_node("Conv", ["act", "deep_w"], ["deep"], "deep", pads=[1, 1]),
            helper.make_node("Relu", ["deep"], ["deep_act"], "deep_relu"),
        ],
        "deep",
        [],
        [value("deep_act")],
    )
    passed = [helper.make_node("Identity", ["act"], ["passed"], "pass")]
    shallow = helper.make_graph(passed, "shallow", [], [value("passed")])
    body = [
        helper.make_node("Conv", ["x", "conv_w"], ["c"], "conv", strides=[stride], pads=[4, 4]),
        helper.make_node("Relu", ["c"], ["act"], "relu"),
        helper.make_node("Shape", ["act"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "two"], ["length"], "length"),
        helper.make_node("Greater", ["length", "four"], ["is_long"], "is_long"),
        helper.make_node("If", ["is_long"], ["d"], "inner", then_branch=deep, else_branch=shallow),
        helper.make_node("Transpose", ["d"], ["t"], "transpose", perm=[2, 0, 1]),
        helper.make_node(
            "LSTM", ["t", "lstm_w", "lstm_r", "lstm_b"], ["", "h"], "lstm", hidden_size=8
        ),
        helper.make_node("Squeeze", ["h", "zero"], ["state"], "squeeze"),
        helper.make_node("MatMul", ["state", "out_w"], ["o"], "out"),
        helper.make_node("Sigmoid", ["o"], [f"{which}_result"], "sigmoid"),
    ]
    small = {"two": np.array(2), "four": np.array(4), "zero": np.array([0])}
    if nodes:
        body = [constant(t.name, numpy_helper.to_array(t)) for t in held] + body
        held = []
    body = [constant(name, values) for name, values in small.items()] + body
    return helper.make_graph(body, which, [], [value(f"{which}_result")], held)


def voice_net(opset: int = 16) -> onnx.ModelProto:
    """All of the network is in an If on the sampling rate, as in voice-activity models."""
    branches = {
        "then_branch": voice_branch("wide", 1, 4, nodes=False),
        "else_branch": voice_branch("narrow", 2, 2, nodes=True),
    }
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_16k"], "is_16k"),
        helper.make_node("If", ["is_16k"], ["speech"], "rate_if", **branches),
    ]
    graph = helper.make_graph(
        nodes,
        "voice",
        [value("x", ["batch", 1, "samples"]), value("sr", [], INT64)],
        [value("speech", ["batch", 1])],
        [numpy_helper.from_array(np.array(16000), "rate")],
    )
    return model_of(graph, opset)


def voice_samples(count: int, rate: int = 16000, length: int = 256, seed: int = 0) -> list[Any]:
    """Feeds of `voice_net`."""
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.normal(size=(1, 1, length)).astype(np.float32),
            "sr": np.array(rate, np.int64),
        }
        for _ in range(count)
    ]


def loop_net(iterations: int | None = 3, opset: int = 16) -> onnx.ModelProto:
    """A residual convolution with shared weights, `iterations` times, or as often as the input `n`
    says; it also stacks the mean of each iteration."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"], "proceed"),
            helper.make_node("Conv", ["acc", "w"], ["c"], "conv", pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("Add", ["acc", "r"], ["next"], "add"),
            helper.make_node("ReduceMean", ["next"], ["mean"], "mean", keepdims=0),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("acc")],
        [value("on", [], BOOL), value("next"), value("mean", [])],
        weights(3, w=(4, 4, 3, 3)),
    )
    nodes = [
        helper.make_node("Conv", ["x", "stem_w"], ["stem"], "stem", pads=[1] * 4),
        helper.make_node("Loop", ["n", "", "stem"], ["y", "means"], "loop", body=body),
    ]
    held = weights(4, stem_w=(4, 3, 3, 3))
    inputs = [value("x", ["batch", 3, 8, 8])]
    if iterations is None:
        inputs.append(value("n", [], INT64))
    else:
        held.append(numpy_helper.from_array(np.array(iterations), "n"))
    outputs = [value("y", [None, 4, 8, 8]), value("means", [None])]
    return model_of(helper.make_graph(nodes, "loops", inputs, outputs, held), opset)


def scan_net(steps: int = 4, *, backwards: bool = False, opset: int = 16) -> onnx.ModelProto:
    """A recurrent cell written as a Scan over the second axis, stacking its output there too."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["step", "w"], ["from_x"], "from_x"),
            helper.make_node("MatMul", ["h", "r"], ["from_h"], "from_h"),
            helper.make_node("Add", ["from_x", "from_h"], ["sum"], "sum"),
            helper.make_node("Tanh", ["sum"], ["h_next"], "tanh"),
            helper.make_node("Identity", ["h_next"], ["seen"], "seen"),
        ],
        "cell",
        [value("h", [1, 6]), value("step", [1, 5])],
        [value("h_next", [1, 6]), value("seen", [1, 6])],
    )
    turned = int(backwards)
    nodes = [
        helper.make_node(
            "Scan",
            ["h0", "x"],
            ["last", "all"],
            "scan",
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_output_axes=[1],
            scan_input_directions=[turned],
            scan_output_directions=[turned],
        ),
        helper.make_node("MatMul", ["all", "head"], ["y"], "head"),
    ]
    held = [
        *weights(5, w=(5, 6), r=(6, 6), head=(6, 3)),
        numpy_helper.from_array(np.zeros((1, 6), np.float32), "h0"),
    ]
    graph = helper.make_graph(
        nodes,
        "scans",
        [value("x", [1, steps, 5])],
        [value("y", [1, steps, 3]), value("last", [1, 6])],
        held,
    )
    return model_of(graph, opset)


def model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """A checked model of one opset."""
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(proto)
    return proto
