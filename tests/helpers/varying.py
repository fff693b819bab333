"""Networks of every number of axes, with samples that differ in size from one to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from control_flow import INT64, constant, model_of, value, weights
from onnx import helper

Feed = dict[str, np.ndarray[Any, Any]]
node = helper.make_node


@dataclass(frozen=True)
class Case:
    """A network, and how to draw a sample for it.

    Attributes:
        sizes: of the samples that are compared.
        calib_sizes: of those to calibrate on, none of which is the same.
        draw: a feed of a size.
        int8: the layers that run in INT8.
    """

    proto: onnx.ModelProto
    sizes: tuple[Any, ...]
    calib_sizes: tuple[Any, ...]
    draw: Callable[[np.random.Generator, Any], Feed]
    int8: frozenset[str]

    def feeds(self, sizes: tuple[Any, ...], seed: int) -> list[Feed]:
        """A feed for each size, twice."""
        rng = np.random.default_rng(seed)
        return [self.draw(rng, size) for size in (*sizes, *sizes)]


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(np.float32)


def mlp() -> Case:
    """2-D; each execution has another number of rows."""
    nodes = [
        node("Gemm", ["x", "w1", "b1"], ["h"], "fc1"),
        node("Relu", ["h"], ["r"], "relu"),
        node("Gemm", ["r", "w2"], ["y"], "fc2"),
    ]
    held = weights(0, w1=(6, 8), b1=(8,), w2=(8, 3))
    graph = helper.make_graph(nodes, "g", [value("x", ["n", 6])], [value("y", ["n", 3])], held)
    return Case(
        model_of(graph, 17),
        (1, 3, 2, 5),
        (4, 7),
        lambda rng, n: {"x": _floats(rng, n, 6)},
        frozenset({"fc1", "fc2"}),
    )


def audio() -> Case:
    """3-D; the length differs, and with it that of the output."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], "conv1", pads=[1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2], strides=[2]),
        node("Conv", ["p", "w2"], ["y"], "conv2"),
    ]
    held = weights(1, w1=(8, 2, 3), w2=(4, 8, 1))
    graph = helper.make_graph(
        nodes, "g", [value("x", ["n", 2, "length"])], [value("y", ["n", 4, None])], held
    )
    return Case(
        model_of(graph, 17),
        (16, 30, 11, 64),
        (20, 44),
        lambda rng, n: {"x": _floats(rng, 1, 2, n)},
        frozenset({"conv1", "conv2"}),
    )


def images() -> Case:
    """4-D; height and width differ, the output has one row per image."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], "conv", pads=[1] * 4, strides=[2, 2]),
        node("BatchNormalization", ["c", "s", "t", "m", "v"], ["b"], "bn"),
        node("Relu", ["b"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flatten"),
        node("Gemm", ["f", "w2"], ["y"], "fc"),
    ]
    held = weights(2, w1=(8, 3, 3, 3), w2=(8, 4), s=(8,), t=(8,), m=(8,))
    held.append(onnx.numpy_helper.from_array(np.linspace(0.5, 2, 8, dtype=np.float32), "v"))
    graph = helper.make_graph(
        nodes, "g", [value("x", ["n", 3, "h", "w"])], [value("y", ["n", 4])], held
    )
    return Case(
        model_of(graph, 17),
        ((8, 8), (9, 14), (20, 6), (8, 14)),
        ((12, 12), (16, 9)),
        lambda rng, size: {"x": _floats(rng, 1, 3, *size)},
        frozenset({"conv", "fc"}),
    )


def volumes() -> Case:
    """5-D, batch and depth differ."""
    nodes = [
        node("Conv", ["x", "w1"], ["c"], "conv", pads=[1] * 6),
        node("Relu", ["c"], ["r"], "relu"),
        node("ConvTranspose", ["r", "w2"], ["y"], "up", strides=[2, 2, 2]),
    ]
    held = weights(3, w1=(4, 2, 3, 3, 3), w2=(4, 2, 2, 2, 2))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", ["n", 2, "d", 6, 6])],
        [value("y", ["n", 2, None, 12, 12])],
        held,
    )
    return Case(
        model_of(graph, 17),
        ((1, 4), (2, 3), (1, 7)),
        ((3, 5), (1, 6)),
        lambda rng, size: {"x": _floats(rng, size[0], 2, size[1], 6, 6)},
        frozenset({"conv", "up"}),
    )


def attention() -> Case:
    """Two inputs of one sequence axis; scores in which it occurs twice; int64 tokens."""
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "embed"),
        node("MatMul", ["e", "wq"], ["q"], "query"),
        node("MatMul", ["e", "wk"], ["k"], "key"),
        node("Transpose", ["k"], ["kt"], "turn", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Cast", ["mask"], ["mf"], "cast", to=1),
        node("Unsqueeze", ["mf", "one"], ["mu"], "spread"),
        node("Add", ["s", "mu"], ["ms"], "masked"),
        node("Softmax", ["ms"], ["a"], "softmax", axis=-1),
        node("MatMul", ["a", "e"], ["z"], "mix"),
        node("MatMul", ["z", "wo"], ["y"], "out"),
        constant("one", np.array([1])),
    ]
    nodes = [nodes[-1], *nodes[:-1]]
    held = weights(4, table=(20, 8), wq=(8, 8), wk=(8, 8), wo=(8, 5))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("ids", ["n", "t"], INT64), value("mask", ["n", "t"], INT64)],
        [value("y", ["n", "t", 5])],
        held,
    )
    return Case(
        model_of(graph, 17),
        (4, 9, 6, 17),
        (5, 12),
        lambda rng, t: {
            "ids": rng.integers(0, 20, size=(1, t)),
            "mask": -(rng.random((1, t)) < 0.2).astype(np.int64),
        },
        frozenset({"query", "key", "scores", "mix", "out"}),
    )


def recurrent() -> Case:
    """An LSTM over sequences of different length, time first."""
    nodes = [
        node("MatMul", ["x", "w0"], ["p"], "project"),
        node("LSTM", ["p", "w", "r"], ["all", "last"], "lstm", hidden_size=6),
        node("Squeeze", ["all", "one"], ["s"], "squeeze"),
        node("MatMul", ["s", "wo"], ["y"], "out"),
    ]
    held = weights(5, w0=(5, 5), w=(1, 24, 5), r=(1, 24, 6), wo=(6, 3))
    held.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", ["t", "n", 5])],
        [value("y", ["t", "n", 3]), value("last", [1, "n", 6])],
        held,
    )
    return Case(
        model_of(graph, 17),
        (3, 10, 6),
        (8, 4),
        lambda rng, t: {"x": _floats(rng, t, 1, 5)},
        frozenset({"project", "out"}),
    )


def detector() -> Case:
    """Two images of different sizes each, and an output whose number of rows depends on values."""
    nodes = [
        node("Conv", ["left", "w1"], ["a"], "first", pads=[1] * 4),
        node("Conv", ["right", "w2"], ["b"], "second", pads=[1] * 4),
        node("GlobalMaxPool", ["a"], ["pa"], "pool_a"),
        node("GlobalMaxPool", ["b"], ["pb"], "pool_b"),
        node("Sub", ["pa", "pb"], ["d"], "difference"),
        node("Flatten", ["d"], ["score"], "flatten"),
        node("Greater", ["score", "zero"], ["above"], "above"),
        node("NonZero", ["above"], ["found"], "found"),
    ]
    held = weights(6, w1=(6, 3, 3, 3), w2=(6, 1, 3, 3))
    held.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    graph = helper.make_graph(
        nodes,
        "g",
        [value("left", ["n", 3, "h", "w"]), value("right", ["n", 1, "hh", "ww"])],
        [value("score", ["n", 6]), value("found", [2, None], INT64)],
        held,
    )
    return Case(
        model_of(graph, 17),
        (6, 9, 13),
        (8, 11),
        lambda rng, s: {
            "left": _floats(rng, 1, 3, s, s + 2),
            "right": _floats(rng, 1, 1, 2 * s, s),
        },
        frozenset({"first", "second"}),
    )


CASES: Mapping[str, Callable[[], Case]] = {
    f.__name__: f for f in (mlp, audio, images, volumes, attention, recurrent, detector)
}
