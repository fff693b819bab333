"""Functions that are written out, in the forms of many exporters, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repair_networks import Builder

from qdebug.backends.simulation import SimulationBackend
from qdebug.network.graph import Graph
from qdebug.network.prepare import Model
from qdebug.plan.rewrite.fuse.functions import fuse, written_out

TOKENS = {"x": ("N", 6, 16)}
Write = Callable[[Builder, str], str]


def _n(b: Builder, value: float) -> str:
    return b.constant(np.float32(value))


def _axes(b: Builder, *axes: int) -> str:
    return b.constant(np.array(axes))


def gelu_of_pytorch(b: Builder, x: str) -> str:
    share = b.add("Add", b.add("Erf", b.add("Div", x, _n(b, 2**0.5))), _n(b, 1))
    return b.add("Mul", b.add("Mul", x, share), _n(b, 0.5))


def gelu_of_half(b: Builder, x: str) -> str:
    share = b.add("Add", _n(b, 1), b.add("Erf", b.add("Mul", x, _n(b, 0.5**0.5))))
    return b.add("Mul", b.add("Mul", _n(b, 0.5), x), share)


def gelu_of_shares(b: Builder, x: str) -> str:
    share = b.add("Add", b.add("Erf", b.add("Mul", x, _n(b, 0.5**0.5))), _n(b, 1))
    return b.add("Mul", x, b.add("Mul", share, _n(b, 0.5)))


def gelu_by_tanh(b: Builder, x: str) -> str:
    cube = b.add("Mul", b.add("Pow", x, _n(b, 3)), _n(b, 0.044715))
    inner = b.add("Mul", b.add("Add", x, cube), _n(b, (2 / np.pi) ** 0.5))
    share = b.add("Add", b.add("Tanh", inner), _n(b, 1))
    return b.add("Mul", b.add("Mul", x, _n(b, 0.5)), share)


def gelu_by_squares(b: Builder, x: str) -> str:
    square = b.add("Mul", _n(b, 0.044715), b.add("Mul", x, x))
    inner = b.add("Mul", b.add("Mul", x, _n(b, 0.7978846)), b.add("Add", _n(b, 1), square))
    share = b.add("Add", _n(b, 1), b.add("Tanh", inner))
    return b.add("Mul", _n(b, 0.5), b.add("Mul", x, share))


def softplus(b: Builder, x: str) -> str:
    return b.add("Log", b.add("Add", b.add("Exp", x), _n(b, 1)))


def mish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Tanh", softplus(b, x)))


def softmax(b: Builder, x: str) -> str:
    away = b.add("Sub", x, b.add("ReduceMax", x, _axes(b, -2)))
    power = b.add("Exp", away)
    return b.add("Div", power, b.add("ReduceSum", power, _axes(b, 1)))


def softmax_by_inverse(b: Builder, x: str) -> str:
    power = b.add("Exp", x)
    total = b.add("ReduceSum", power, _axes(b, 2))
    return b.add("Mul", b.add("Reciprocal", total), power)


def rms(b: Builder, x: str) -> str:
    mean = b.add("ReduceMean", b.add("Pow", x, _n(b, 2)), _axes(b, -1))
    root = b.add("Sqrt", b.add("Add", mean, _n(b, 1e-5)))
    return b.add("Mul", x, b.add("Div", _n(b, 1), root))


def rms_by_quotient(b: Builder, x: str) -> str:
    mean = b.add("ReduceMean", b.add("Mul", x, x), _axes(b, 2))
    return b.add("Div", x, b.add("Sqrt", b.add("Add", _n(b, 1e-6), mean)))


def layer_norm(b: Builder, x: str) -> str:
    away = b.add("Sub", x, b.add("ReduceMean", x, _axes(b, -1)))
    variance = b.add("ReduceMean", b.add("Mul", away, away), _axes(b, -1))
    return b.add("Div", away, b.add("Sqrt", b.add("Add", variance, _n(b, 1e-5))))


FORMS: dict[Write, str] = {
    **dict.fromkeys((gelu_of_pytorch, gelu_of_half, gelu_of_shares), "Gelu"),
    **dict.fromkeys((gelu_by_tanh, gelu_by_squares), "Gelu"),
    **dict.fromkeys((softmax, softmax_by_inverse), "Softmax"),
    **dict.fromkeys((rms, rms_by_quotient), "RMSNormalization"),
    softplus: "Softplus",
    mish: "Mish",
    layer_norm: "LayerNormalization",
}
OPSETS = {"Gelu": 20, "RMSNormalization": 23, "Mish": 18, "LayerNormalization": 18}


def network(write: Write, opset: int = 23) -> Model:
    """Behind an addition, as a layer's bias is, and before a product."""
    b = Builder(0)
    before = b.add("Add", "x", b.constant(b.rng.normal(size=16)))
    weight = b.constant(b.rng.normal(size=(16, 4)))
    return b.model(TOKENS, b.add("MatMul", write(b, before), weight), opset=opset)


def outputs(proto: Any) -> Any:
    x = np.random.default_rng(0).normal(size=(4, 6, 16)).astype(np.float32)
    return next(iter(SimulationBackend(1).open(proto, ()).run({"x": 3 * x}).values()))


@pytest.mark.parametrize("write", FORMS, ids=lambda w: w.__name__)
def test_a_function_becomes_one_operator(write: Write) -> None:
    graph = network(write).graph
    (found,) = written_out(graph)
    assert found.op_type == FORMS[write]
    fused = fuse(graph, [found])
    assert [n.op_type for n in fused.graph.node] == ["Add", FORMS[write], "MatMul"]
    expected = outputs(graph.proto)
    atol = 2e-5 * np.abs(expected).max()
    np.testing.assert_allclose(outputs(fused), expected, rtol=0, atol=atol)
    assert found.last in Graph(fused).by_name


@pytest.mark.parametrize("write", FORMS, ids=lambda w: w.__name__)
def test_an_older_opset_keeps_what_it_has_no_operator_for(write: Write) -> None:
    first = OPSETS.get(FORMS[write])
    if first is None or first == 18:
        return
    assert not written_out(network(write, opset=first - 1).graph)


@pytest.mark.parametrize("write", FORMS, ids=lambda w: w.__name__)
def test_what_is_read_elsewhere_too_stays(write: Write) -> None:
    b = Builder(0)
    result = write(b, "x")
    inner = next(n.output[0] for n in b.nodes if n.output[0] != result)
    model = b.model(TOKENS, result, b.add("Identity", inner), opset=23)
    assert not any(n in f.inner for f in written_out(model.graph) for n in (b.nodes[0].name,))


def quick_gelu(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", b.add("Mul", x, _n(b, 1.702))))


def wrong_factor(b: Builder, x: str) -> str:
    share = b.add("Add", b.add("Erf", b.add("Mul", x, _n(b, 0.70))), _n(b, 1))
    return b.add("Mul", b.add("Mul", x, share), _n(b, 0.5))


def other_gate(b: Builder, x: str) -> str:
    gate = b.add("Relu", x)
    share = b.add("Add", b.add("Erf", b.add("Div", x, _n(b, 2**0.5))), _n(b, 1))
    return b.add("Mul", b.add("Mul", gate, share), _n(b, 0.5))


def sum_of_squares(b: Builder, x: str) -> str:
    power = b.add("Exp", x)
    return b.add("Div", power, b.add("ReduceSum", b.add("Mul", power, power), _axes(b, -1)))


def mean_over_two_axes(b: Builder, x: str) -> str:
    mean = b.add("ReduceMean", b.add("Mul", x, x), _axes(b, 1, 2))
    return b.add("Div", x, b.add("Sqrt", b.add("Add", mean, _n(b, 1e-6))))


def factor_by_channel(b: Builder, x: str) -> str:
    erf = b.add("Erf", b.add("Mul", x, b.constant(np.full(16, 0.5**0.5))))
    return b.add("Mul", b.add("Mul", x, b.add("Add", erf, _n(b, 1))), _n(b, 0.5))


def wider(b: Builder, x: str) -> str:
    """Its result has an axis more than what it reads."""
    share = b.add("Add", b.add("Erf", b.add("Div", x, _n(b, 2**0.5))), _n(b, 1))
    return b.add("Mul", b.add("Mul", x, share), b.constant(np.full((1, 1, 1, 1), 0.5)))


@pytest.mark.parametrize(
    "write",
    [
        *(quick_gelu, wrong_factor, other_gate, sum_of_squares, mean_over_two_axes),
        *(factor_by_channel, wider),
    ],
    ids=lambda w: w.__name__,
)
def test_what_only_looks_like_one_stays(write: Write) -> None:
    assert written_out(network(write).graph) == []
