"""Models whose INT8 sums FP32 holds exactly, and ways to run their candidates.

Where every scale is a power of two and every weight a multiple of its scale, FP32 adds up products
of INT8 codes exactly. Then the INT8 kernels must give the very same outputs as literal Q/DQ, ties
of rounding included. Elsewhere the two differ by roundings, which a network amplifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.int8_kernels import Int8Kernels
from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.layers import find_layers
from qdebug.network.load import ModelFile
from qdebug.network.prepare import Model
from qdebug.plan.lower import lower
from qdebug.plan.plan import BoundPlan, PrecisionPlan, TensorRange, bind_plan
from qdebug.types import Fp16Kernels, Precision

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
SCALE, WEIGHT_SCALE = 2.0**-4, 2.0**-6
EXACT_SUMS = Fp16Kernels.EXACT
Array = np.ndarray[Any, Any]
Pins = Mapping[str, Precision]


def exact_weight(rng: np.random.Generator, shape: Sequence[int], axis: int | None = 0) -> Array:
    """Multiples of the scale that the largest of each channel, 127 of them, leads to."""
    codes = rng.integers(-60, 61, shape)
    first = [slice(None) if i == axis else 0 for i in range(len(shape))]
    codes[tuple(first)] = 127
    return (codes * WEIGHT_SCALE).astype(np.float32)


def exact_values(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Multiples of half a step, so that there are ties, beyond the range too."""
    return (rng.integers(-300, 301, shape) * (SCALE / 2)).astype(np.float32)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, Array],
    outputs: Sequence[str],
    shape: Sequence[int | str],
    opset: int = 17,
) -> Model:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=t) for t in outputs],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    file = ModelFile(Path("m.onnx"), proto, "sha", "digest")
    return Model(file, Graph(inferred), {n.name: (n.name,) for n in nodes}, False)


def bind(model: Model, plan: PrecisionPlan | None = None, amax: float = 127 * SCALE) -> BoundPlan:
    """Every tensor with the same scale."""
    layers = find_layers(model.graph)
    plan = plan or PrecisionPlan(INT8)
    tensors = {t: TensorRange(amax) for t in bind_plan(plan, model, layers).needed_ranges()}
    return bind_plan(plan.with_ranges(tensors, "test"), model, layers)


def with_pins(bound: BoundPlan, pins: Pins) -> BoundPlan:
    return replace(bound, precisions={**bound.precisions, **pins})


def by_the_long_way(
    bound: BoundPlan, pins: Pins, x: Array, half: Fp16Kernels = EXACT_SUMS
) -> dict[str, Array]:
    graph = lower(with_pins(bound, pins)).graph
    return dict(SimulationBackend(1, half).open(graph.proto, []).run({"x": x}))


def on_kernels(
    bound: BoundPlan, pins: Pins, x: Array, half: Fp16Kernels = EXACT_SUMS
) -> dict[str, Array]:
    proto = Int8Kernels().rewrite(lower(with_pins(bound, pins)).graph)
    return dict(SimulationBackend(1, half).open(proto, []).run({"x": x}))


def operators(bound: BoundPlan, pins: Pins | None = None) -> list[str]:
    proto = Int8Kernels().rewrite(lower(with_pins(bound, pins or {})).graph)
    return [n.op_type for n in proto.graph.node]


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


CHANNELS, SIZE = 8, 5
EXACT = [
    "Conv3",
    "Conv1",
    "Depthwise",
    "Relu",
    "Clip",
    "MaxPool",
    "Neg",
    "Bias",
    "Add",
    "MatMul",
    "MatMul2",
]
INEXACT = ["Sigmoid", "HardSwish", "Softmax", "Mul"]


def random_model(plan: list[tuple[str, int, int, bool]], seed: int) -> Model:
    """Each step reads one or two of the latest tensors; a flag makes its result an output."""
    rng = np.random.default_rng(seed)
    tensors, outputs, nodes = ["x"], [], []
    weights = {
        "w3": exact_weight(rng, (CHANNELS, CHANNELS, 3, 3)),
        "w1": exact_weight(rng, (CHANNELS, CHANNELS, 1, 1)),
        "wd": exact_weight(rng, (CHANNELS, 1, 3, 3)),
        "b": (rng.integers(-99, 99, CHANNELS) * SCALE * WEIGHT_SCALE).astype(np.float32),
        "m": exact_weight(rng, (SIZE, SIZE), 1),
        "k": np.full((CHANNELS, 1, 1), SCALE, np.float32),
        "low": np.float32(-1.5),
        "high": np.float32(3.25),
    }
    for i, (op, first, second, is_output) in enumerate(plan):
        a, b = (tensors[-1 - min(k, len(tensors) - 1)] for k in (first, second))
        inputs, attributes = {
            "Conv3": ([a, "w3", "b"], {"pads": [1] * 4}),
            "Conv1": ([a, "w1"], {}),
            "Depthwise": ([a, "wd"], {"pads": [1] * 4, "group": CHANNELS}),
            "MaxPool": ([a], {"kernel_shape": [3, 3], "pads": [1] * 4}),
            "Clip": ([a, "low", "high"], {}),
            "MatMul": ([a, "m"], {}),
            "MatMul2": ([a, b], {}),
            "Bias": ([a, "k"], {}),
            "Add": ([a, b], {}),
            "Mul": ([a, b], {}),
        }.get(op, ([a], {}))
        kind = {"Conv3": "Conv", "Conv1": "Conv", "Depthwise": "Conv", "Bias": "Add"}.get(op, op)
        kind = "MatMul" if op == "MatMul2" else kind
        nodes.append(helper.make_node(kind, inputs, [f"t{i}"], f"n{i}", **attributes))
        tensors.append(f"t{i}")
        if is_output:
            outputs.append(f"t{i}")
    return model_of(nodes, weights, outputs or [tensors[-1]], [2, CHANNELS, SIZE, SIZE])


def steps(names: list[str]) -> Any:
    step = st.tuples(st.sampled_from(names), st.integers(0, 3), st.integers(0, 3), st.booleans())
    return st.lists(step, min_size=1, max_size=9)


def pins_for(bound: BoundPlan, choices: Sequence[Precision], rng: np.random.Generator) -> Pins:
    chosen = {x.name: choices[int(rng.integers(len(choices)))] for x in bound.layers}
    return {n: p for n, p in chosen.items() if p is not INT8}
