"""Costs: what is added up, and in which unit."""

from __future__ import annotations

import pytest

from qdebug.network.macs import Work
from qdebug.plan.cost import latency_costs, mac_costs
from qdebug.types import Precision

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def test_macs_weigh_by_precision() -> None:
    costs = mac_costs({"conv": Work(1000, 10), "softmax": Work(0, 10)})
    assert costs.total({"conv": INT8, "softmax": FP32}) == 1010 + 40
    assert costs.raising("conv", INT8, FP16) == 1010
    assert costs.raising("conv", FP16, FP32) == 2020
    assert 0 < costs.raising("softmax", FP16, FP32) < costs.raising("conv", FP16, FP32)


def test_weights_alone_cost_the_bytes_that_are_read() -> None:
    """An eighth and a quarter of FP32, though they multiply in it."""
    (costs,) = mac_costs({"gemm": Work(1000, 10)}).by_layer.values()
    assert (costs[Precision.W4], costs[Precision.W8]) == (costs[FP32] / 8, costs[FP32] / 4)


def test_latencies_scale_with_the_work() -> None:
    work = mac_costs({"conv": Work(1000, 0), "fused": Work(5, 0)})
    costs = latency_costs({"conv": 0.4}, {"conv": INT8, "fused": FP32}, work)
    assert costs.unit == "ms"
    assert costs.raising("conv", INT8, FP16) == pytest.approx(0.4)
    assert costs.raising("fused", INT8, FP32) == 0
    half = latency_costs({"conv": 0.8}, {"conv": FP16, "fused": FP32}, work)
    assert half.raising("conv", INT8, FP32) == pytest.approx(1.2)
