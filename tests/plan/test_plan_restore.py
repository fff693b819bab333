"""Activations that a quantizer absorbed, put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdebug.network.graph import Graph
from qdebug.plan.correspond import align
from qdebug.plan.rewrite.restore import guessed, restore, suspects

F32 = np.float32


def _reference(kit: SimpleNamespace, op: str, high: float | None) -> Any:
    bounds = ["low", "high"] if op == "Clip" else []
    nodes = [
        kit.node("Conv", ["x", "w"], ["c"], "conv"),
        kit.node(op, ["c", *bounds], ["r"], "act"),
        kit.node("Conv", ["r", "w"], ["y"], "last"),
    ]
    constants = {"w": np.full((1, 1, 1, 1), 2, F32)}
    if bounds:
        constants |= {"low": np.array(0, F32), "high": np.array(high, F32)}
    return kit.make(nodes, {"x": (1, 1, 2, 2)}, ["y"], constants)


def _quantized(kit: SimpleNamespace, scale: float, zero: Any, named: str = "r") -> Any:
    nodes = [
        kit.node("Conv", ["x", "w"], [named], "conv"),
        kit.node("QuantizeLinear", [named, "s", "z"], ["q"], "quantize"),
        kit.node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        kit.node("Conv", ["d", "w"], ["y"], "last"),
    ]
    constants = {"w": np.full((1, 1, 1, 1), 2, F32), "s": np.array(scale, F32), "z": zero}
    return kit.make(nodes, {"x": (1, 1, 2, 2)}, ["y"], constants)


def _graphs(kit: SimpleNamespace, *protos: Any) -> list[Graph]:
    return [kit.model_of(p).graph for p in protos]


@pytest.mark.parametrize("named", ["r", "c"], ids=["named after it", "named before it"])
@pytest.mark.parametrize(
    ("op", "high", "scale", "zero"),
    [
        ("Relu", None, 0.1, np.array(0, np.uint8)),
        ("Relu", None, 0.1, np.array(-128, np.int8)),
        ("Relu", None, 0.001, np.array(0, np.uint16)),
        ("Clip", 6.0, 6 / 255, np.array(0, np.uint8)),
        ("Clip", 6.0, 0.01, np.array(0, np.uint8)),  # it ends at 2.55 already
    ],
)
def test_put_back_without_changing_a_bit(
    kit: SimpleNamespace, op: str, high: float | None, scale: float, zero: Any, named: str
) -> None:
    opset = 21 if zero.dtype == np.uint16 else 17
    proto = _quantized(kit, scale, zero, named)
    proto.opset_import[0].version = opset
    reference, quantized = _graphs(kit, _reference(kit, op, high), proto)
    found = align(reference, quantized)
    assert not found.unmatched
    (item,) = found.absorbed
    assert item.what == ("Relu" if op == "Relu" else "Relu6")
    restored = restore(found.graph, found.absorbed)
    assert kit.ops(restored) == ["Conv", op, "QuantizeLinear", "DequantizeLinear", "Conv"]
    x = np.array([-1e6, -0.01, 1.27, 9], F32).reshape(1, 1, 2, 2)
    found = kit.run(restored, {"x": x}, ["c", "r", "d"])
    plain = kit.run(reference, {"x": x}, ["c", "r"])
    for tensor in ("c", "r"):
        np.testing.assert_array_equal(found[tensor], plain[tensor])
    before = kit.run(quantized, {"x": x}, ["d"])
    for tensor in ("d", "y"):
        np.testing.assert_array_equal(found[tensor], before[tensor])


@pytest.mark.parametrize(
    ("op", "high", "scale", "zero"),
    [
        ("Relu", None, 0.1, np.array(1, np.uint8)),  # its codes reach -0.1
        ("Relu", None, 0.1, np.array(0, np.int8)),
        ("Clip", 6.0, 7 / 255, np.array(0, np.uint8)),  # its codes reach 7
    ],
)
def test_a_range_that_is_not_the_activation(
    kit: SimpleNamespace, op: str, high: float | None, scale: float, zero: Any
) -> None:
    graphs = _graphs(kit, _reference(kit, op, high), _quantized(kit, scale, zero))
    found = align(*graphs)
    assert not found.absorbed and [u.tensor for u in found.unmatched] == ["r"]


def test_another_reader_keeps_it_out(kit: SimpleNamespace) -> None:
    proto = _quantized(kit, 0.1, np.array(0, np.uint8))
    proto.graph.node.append(kit.node("Exp", ["r"], ["e"], "exp"))
    reference, quantized = _graphs(kit, _reference(kit, "Relu", None), proto)
    assert align(reference, quantized).absorbed == () and suspects(quantized) == {}


def test_what_it_may_have_been_without_the_reference(kit: SimpleNamespace) -> None:
    zero = np.array(0, np.uint8)
    six = suspects(_graphs(kit, _quantized(kit, 6 / 255, zero))[0])
    assert [x.what for x in guessed(list(six), six)] == ["Relu6"]
    wide = suspects(_graphs(kit, _quantized(kit, 0.1, zero))[0])
    assert [x.what for x in guessed(list(wide), wide)] == ["Relu"]
    assert suspects(_graphs(kit, _quantized(kit, 0.1, np.array(3, np.uint8)))[0]) == {}
