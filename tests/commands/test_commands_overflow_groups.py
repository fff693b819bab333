"""FP16 overflows inside what exporters write out node by node: the smallest group to pin.

Each group is proven by running it: pinned, the output is right; without any one of its layers it
is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from half_networks import Builder

import qdebug
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision

SAMPLES = {"x": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)}


def scaled(b: Builder, x: str, factor: float, offset: float = 0.0) -> str:
    x = b.add("Mul", x, b.constant(factor))
    return b.add("Add", x, b.constant(offset)) if offset else x


def softmax(b: Builder, x: str) -> str:
    e = b.add("Exp", scaled(b, x, 8.0))
    return b.add("Div", e, b.reduced("ReduceSum", e))


def softmax_whose_sum_overflows(b: Builder, x: str) -> str:
    e = b.add("Exp", scaled(b, x, 0.1, 9.5))
    return b.add("Div", e, b.reduced("ReduceSum", e))


def softmax_less_its_maximum(b: Builder, x: str) -> str:
    x = scaled(b, x, 3e4)
    e = b.add("Exp", b.add("Sub", x, b.reduced("ReduceMax", x)))
    return b.add("Div", e, b.reduced("ReduceSum", e))


def gelu_by_tanh(b: Builder, x: str, factor: float = 3e4) -> str:
    x = scaled(b, x, factor)
    cube = scaled(b, b.add("Pow", x, b.constant(3.0)), 0.044715)
    t = b.add("Tanh", scaled(b, b.add("Add", x, cube), 0.7978846))
    return scaled(b, scaled(b, b.add("Mul", x, b.add("Add", t, b.constant(1.0))), 0.5), 1e-4)


def gelu_by_erf(b: Builder, x: str) -> str:
    x = scaled(b, x, 3e4)
    t = b.add("Erf", b.add("Div", x, b.constant(2**0.5)))
    return scaled(b, scaled(b, b.add("Mul", x, b.add("Add", t, b.constant(1.0))), 0.5), 1e-4)


def rational(b: Builder, x: str) -> str:
    cube = b.add("Pow", scaled(b, x, 30.0), b.constant(3.0))
    return b.add("Div", cube, b.add("Add", b.add("Abs", cube), b.constant(1.0)))


def summed(b: Builder, x: str) -> str:
    x = scaled(b, x, 100.0, 4000.0)
    return b.add("Sub", scaled(b, b.reduced("ReduceSum", x), 1 / 32), x)


def norm_by_sum_of_squares(b: Builder, x: str) -> str:
    x = scaled(b, x, 100.0)
    return b.add("Div", x, b.add("Sqrt", b.reduced("ReduceSumSquare", x)))


def norm_of_large_values(b: Builder, x: str) -> str:
    x = scaled(b, x, 2e4)
    return b.add("Div", x, b.reduced("ReduceL2", x))


def log_of_summed_exponentials(b: Builder, x: str) -> str:
    x = scaled(b, x, 8.0)
    return b.add("Sub", x, b.add("Log", b.reduced("ReduceSum", b.add("Exp", x))))


def log_sum_exp(b: Builder, x: str) -> str:
    x = scaled(b, x, 8.0)
    return b.add("Sub", x, b.reduced("ReduceLogSumExp", x))


Part = Callable[[Builder, str], str]
GROUPS: dict[Part, set[str]] = {
    softmax: {"Exp", "ReduceSum", "Div"},
    softmax_whose_sum_overflows: {"ReduceSum", "Div"},
    softmax_less_its_maximum: {"Mul", "ReduceMax", "Sub"},  # an Exp of -Inf is right
    gelu_by_tanh: {"Mul"},  # a Tanh of Inf is right
    gelu_by_erf: {"Mul"},
    rational: {"Pow", "Abs", "Add", "Div"},
    summed: {"ReduceSum", "Mul"},
    norm_by_sum_of_squares: {"ReduceSumSquare", "Sqrt"},
    norm_of_large_values: {"Mul", "ReduceL2", "Div"},
    log_of_summed_exponentials: {"Exp", "ReduceSum", "Log"},
    log_sum_exp: {"ReduceLogSumExp"},
}


def network(part: Part) -> onnx.ModelProto:
    b = Builder(5)
    y = part(b, b.linear("x", 16, 32))
    return b.model({"x": ["n", 16]}, [b.linear(y, 32, 4)])


def sqnr_db(model: onnx.ModelProto, high: list[str]) -> float:
    plan = PrecisionPlan(Precision.FP16, layers=dict.fromkeys(high, Precision.FP32))
    found = qdebug.compare(model, inputs=SAMPLES, plan=plan, effect="none", cache=False)
    return found.outputs[0].metrics.sqnr_db


@pytest.mark.parametrize("part", GROUPS, ids=lambda part: part.__name__)
def test_the_smallest_group_removes_the_overflow(part: Part) -> None:
    model = network(part)
    result = qdebug.compare(model, inputs=SAMPLES, precision="fp16", effect="none", cache=False)
    assert not result.outputs[0].metrics.sqnr_db > 40
    layer, cause = next(
        (x, c) for x in result.layers for c in x.causes if c.label == "fp16-overflow"
    )
    assert not layer.harmless
    group = re.findall("'([^']+)'", cause.remedy) or [layer.name]
    assert {name.partition("_")[0] for name in group} == GROUPS[part]
    assert sqnr_db(model, group) > 45
    for left_out in group:
        assert not sqnr_db(model, [name for name in group if name != left_out]) > 40


def test_an_overflow_that_a_tanh_swallows_needs_no_group() -> None:
    model = network(lambda b, x: gelu_by_tanh(b, x, 30.0))
    result = qdebug.compare(model, inputs=SAMPLES, precision="fp16", cache=False)
    broken = [x for x in result.layers if not math.isfinite(x.local_sqnr_db or 0.0)]
    assert {x.op_type for x in broken} >= {"Pow", "Add"} and all(x.harmless for x in broken)
    assert not any("'" in c.remedy for x in broken for c in x.causes)
    assert result.summary is not None and not result.summary.layers


def test_a_kernel_that_overflows_inside_is_told_from_one_that_rounds() -> None:
    """All that it reads and writes fits FP16."""
    result = qdebug.compare(network(log_sum_exp), inputs=SAMPLES, precision="fp16", cache=False)
    layer = next(x for x in result.layers if x.op_type == "ReduceLogSumExp")
    assert layer.metrics.ref_amax < 100 and layer.local_sqnr_db is not None
    assert math.isnan(layer.local_sqnr_db)
    assert [c.label for c in layer.causes] == ["fp16-overflow"]
