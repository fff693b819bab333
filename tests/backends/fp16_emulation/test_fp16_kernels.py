"""What is computed as TensorRT does and what is left alone, and that both ways to it agree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from half_rules import codes, half, matmul
from half_runs import half_model, is_left_alone, run_model
from lowered_models import (
    FP16,
    bind,
    by_the_long_way,
    model_of,
)
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.fp16_emulation.rounding import keep_fp16_rounding
from qdebug.network.prepare import Model
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.rewrite.edit import check
from qdebug.types import Fp16Kernels

TENSORRT = Fp16Kernels.TENSORRT
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
Array = np.ndarray[Any, Any]
make = helper.make_node


@pytest.mark.parametrize(
    "node",
    [
        make("Add", ["x", "w"], ["y"]),
        make("ConvTranspose", ["x", "w"], ["y"]),
        make("Einsum", ["x", "w"], ["y"], equation="abij,acij->bc"),
        make("Exp", ["x"], ["y"]),
        make("GlobalAveragePool", ["x"], ["y"]),
        make("MaxPool", ["x"], ["y"], kernel_shape=[2, 2]),
        make("Relu", ["x"], ["y"]),
        make("Conv", ["x", "w"], ["y"], domain="my.ops"),
    ],
    ids=lambda node: f"{node.domain}{node.op_type}",
)
def test_other_operators_are_left_alone(node: onnx.NodeProto) -> None:
    proto = half_model([node], {"x": [3, 3, 4, 4]}, {"w": np.ones((3, 3, 4, 4))})
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    proto.graph.value_info.append(helper.make_tensor_value_info("y", HALF, None))
    assert is_left_alone(proto)


def test_layers_in_fp32_are_left_alone() -> None:
    nodes = [
        make("Cast", ["x"], ["wide"], to=FLOAT),
        make("Softmax", ["wide"], ["s"]),
        make("MatMul", ["s", "w"], ["m"]),
        make("Cast", ["m"], ["y"], to=HALF),
    ]
    proto = half_model(nodes, {"x": [3, 40]})
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((40, 2), np.float32), "w"))
    assert is_left_alone(proto)


def dequantized(node: onnx.NodeProto, sources: dict[str, str]) -> onnx.ModelProto:
    """`node` behind FP16 Q/DQ pairs: what they write by what they read."""
    nodes = []
    for source, tensor in sources.items():
        nodes.append(make("QuantizeLinear", [source, "scale", "zero"], [f"{source}_q"]))
        nodes.append(make("DequantizeLinear", [f"{source}_q", "scale", "zero"], [tensor]))
    weights = {"w": np.ones((40, 5)), "scale": np.array(0.5)}
    proto = half_model([*nodes, node], {"x": [3, 40]}, weights, opset=21)
    proto.ir_version = 10
    proto.graph.initializer.append(numpy_helper.from_array(np.int8(0), "zero"))
    return proto


def test_what_runs_in_int8_is_left_alone() -> None:
    """An engine multiplies codes where both operands are dequantized, and only there."""
    product = make("MatMul", ["a", "b"], ["y"])
    assert is_left_alone(dequantized(product, {"x": "a", "w": "b"}))
    for operands in (["a", "w"], ["x", "b"]):
        sources = {"x": "a"} if operands[0] == "a" else {"w": "b"}
        assert not is_left_alone(dequantized(make("MatMul", operands, ["y"]), sources))


def test_a_transpose_after_dequantizing_is_part_of_the_product() -> None:
    """As in PyTorch's exports. Seen: TensorRT for RTX 1.7.1 builds one INT8 kernel of both."""
    proto = dequantized(make("MatMul", ["a", "t"], ["y"]), {"x": "a", "w": "b"})
    product = proto.graph.node.pop()
    proto.graph.node.extend([make("Transpose", ["b"], ["t"], perm=[0, 1]), product])
    assert is_left_alone(proto)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "HardSwish", "HardSigmoid"])
def test_what_has_a_single_operand_never_runs_in_int8(op: str) -> None:
    assert not is_left_alone(dequantized(make(op, ["a"], ["y"]), {"x": "a"}))


TAKEN = ["y:unrounded", "y:unrounded_", "y:unrounded__", "y:rounded", "y:unrounded:"]


def test_names_that_the_new_tensors_would_take() -> None:
    rng = np.random.default_rng(0)
    x, w = codes(rng, (3, 40)), codes(rng, (40, 5))
    nodes = [
        *(make("Neg", ["x"], [name]) for name in TAKEN),
        make("Sum", [*TAKEN[1:], "x"], ["s"]),
        make("MatMul", [TAKEN[0], "w"], ["y"]),
        make("Softmax", ["y"], ["z"]),
        make("Add", ["y", "y"], ["last"]),
    ]
    proto = half_model(nodes, {"x": x.shape}, {"w": w})
    check(keep_fp16_rounding(proto, TENSORRT), "it")
    np.testing.assert_array_equal(run_model(proto, {"x": x}), half(2 * matmul(-x, w)))


def branching(names: list[str]) -> onnx.ModelProto:
    """x · w · w; the second product and Negs before it, which write `names`, in an If."""
    body = [make("Neg", ["y"], [names[0]])]
    body += [make("Neg", [a], [b]) for a, b in pairwise(names)]
    body.append(make("MatMul", [names[-1], "w"], ["then"]))
    value = helper.make_tensor_value_info
    then = helper.make_graph(body, "then", [], [value("then", HALF, [3, 40])])
    other = helper.make_graph(
        [make("Identity", ["y"], ["else"])], "else", [], [value("else", HALF, [3, 40])]
    )
    nodes = [
        make("MatMul", ["x", "w"], ["y"]),
        make("Constant", [], ["yes"], value=numpy_helper.from_array(np.bool_(True))),
        make("If", ["yes"], ["last"], then_branch=then, else_branch=other),
    ]
    return half_model(nodes, {"x": [3, 40]}, {"w": codes(np.random.default_rng(0), (40, 40), 9)})


@pytest.mark.parametrize("names", [["n"], [*TAKEN, "y:unrounded___"]])
def test_nodes_inside_subgraphs_are_left_alone(names: list[str]) -> None:
    x = codes(np.random.default_rng(1), (3, 40))
    proto = branching(names)
    before = proto.SerializeToString(deterministic=True)
    barred = keep_fp16_rounding(proto, TENSORRT)
    check(barred, "it")
    assert proto.SerializeToString(deterministic=True) == before
    (branch,) = [n for n in barred.graph.node if n.op_type == "If"]
    assert branch.attribute == proto.graph.node[-1].attribute
    w = numpy_helper.to_array(proto.graph.initializer[0]).astype(np.float64)
    sign = (-1) ** len(names)
    np.testing.assert_array_equal(run_model(proto, {"x": x}), half(sign * matmul(x, w) @ w))


def network(batch: int | str) -> Model:
    """An operator of each kind; what the MatMul at its end reads has computed sizes."""
    rng = np.random.default_rng(0)
    ones = np.ones(24, np.float32)
    weights = {
        "wide": rng.normal(size=(24, 5, 3, 3)),
        "grouped": rng.normal(size=(24, 12, 1, 1)),
        "depthwise": rng.normal(size=(24, 1, 3, 3)),
        "scale": ones,
        "rows": rng.normal(size=(24, 40)),
        "bias": rng.normal(size=40),
        "long": np.ones(40),
        "head": rng.normal(size=(8, 3)),
    }
    constants = {n: a.astype(np.float32) for n, a in weights.items()}
    sizes = {"first": np.array([0]), "tail": np.array([5, 8])}
    nodes = [
        make("Conv", ["x", "wide", "scale"], ["t0"], "n0", pads=[1] * 4),
        make("InstanceNormalization", ["t0", "scale", "scale"], ["t1"], "n1"),
        make("HardSwish", ["t1"], ["t2"], "n2"),
        make("Conv", ["t2", "grouped"], ["t3"], "n3", group=2),
        make("Conv", ["t3", "depthwise"], ["t4"], "n4", group=24),
        make("HardSigmoid", ["t4"], ["t5"], "n5", alpha=0.3),
        make("GlobalAveragePool", ["t5"], ["t6"], "n6"),
        make("Flatten", ["t6"], ["t7"], "n7"),
        make("Gemm", ["t7", "rows", "bias"], ["t8"], "n8", alpha=3.0),
        make("LayerNormalization", ["t8", "long"], ["t9"], "n9"),
        make("Softmax", ["t9"], ["t10"], "n10"),
        make("Shape", ["t10"], ["size"], "n11"),
        make("Gather", ["size", "first"], ["batch"], "n12"),
        make("Concat", ["batch", "tail"], ["shape"], "n13", axis=0),
        make("Reshape", ["t10", "shape"], ["t11"], "n14"),
        make("MatMul", ["t11", "head"], ["t12"], "n15"),
        make("LogSoftmax", ["t12"], ["t13"], "n16", axis=1),
    ]
    outputs = [f"t{i}" for i in range(14)]
    return model_of(nodes, {**constants, **sizes}, outputs, [batch, 5, 6, 6])


@pytest.mark.parametrize("batch", [2, "N"])
def test_every_operator_differs_from_exact_sums(batch: int | str) -> None:
    bound = bind(network(batch), PrecisionPlan(FP16, FP16))
    x = np.random.default_rng(1).normal(size=(2, 5, 6, 6)).astype(np.float32)
    found = by_the_long_way(bound, {}, x, TENSORRT)
    exact = by_the_long_way(bound, {}, x)
    assert all(np.any(found[name] != exact[name]) for name in found)
