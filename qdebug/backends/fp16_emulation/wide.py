"""Arithmetic in FP32 with roundings to a narrow format in between, written as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import make_graph, make_tensor_value_info

from qdebug.formats.base import Format
from qdebug.plan.rewrite.edit import NodeBuilder

Shape = Sequence[int | str | None] | None
"""A shape as far as it is known; None where not even the rank is."""


class Body(NodeBuilder):
    """Nodes in the making that compute a node in `format`, or the body of a Loop among them."""

    def __init__(self, opset: int, free: Callable[[str], str], hint: str, format: Format) -> None:
        super().__init__(opset, free, hint)
        self.format = format

    def named(self, operand: Any) -> str:
        """The tensor of an operand: a `Wide`, a name, or numbers, of which whole ones are int64; ""
        of None."""
        if operand is None or isinstance(operand, (Wide, str)):
            return str(operand or "")
        values = np.asarray(operand)
        return self.constant(values.astype(np.float32) if values.dtype.kind == "f" else values)

    def nearest(self, value: float) -> float:
        """A number, rounded to the format."""
        return float(np.asarray(value, self.format.dtype))


class Wide:
    """A tensor in FP32; arithmetic with it adds nodes.

    Attributes:
        body: where the nodes go.
        shape: as far as it is known.
        half: the same values in the format.
    """

    def __init__(self, body: Body, *, name: str = "", half: str = "", shape: Shape = None) -> None:
        """It has the name of a tensor in FP32, or of one in the format: the other is cast from it
        where it is needed."""
        self.body, self.shape, self._given, self._half = body, shape, name, half

    @cached_property
    def _name(self) -> str:
        return self._given or self.body.add("Cast", self._half, to=TensorProto.FLOAT)

    @cached_property
    def half(self) -> str:
        """The values in the format."""
        return self._half or self.body.add("Cast", self._name, to=self.body.format.onnx_type)

    def __str__(self) -> str:
        return self._name

    def of(self, op_type: str, *others: Any, **attributes: Any) -> Wide:
        """What an operator makes of this and other operands; see `Body.named`."""
        names = [str(self), *map(self.body.named, others)]
        return Wide(self.body, name=self.body.add(op_type, *names, **attributes))

    def __add__(self, other: Any) -> Wide:
        return self.of("Add", other)

    def __sub__(self, other: Any) -> Wide:
        return self.of("Sub", other)

    def __mul__(self, other: Any) -> Wide:
        return self.of("Mul", other)

    def __truediv__(self, other: Any) -> Wide:
        return self.of("Div", other)

    def rounded(self) -> Wide:
        """Rounded to the format; see `rounding` for what keeps it rounded."""
        kept = self.body.add("Identity", self.body.add("Identity", self.half))
        return Wide(self.body, half=kept, shape=self.shape)

    def reduced(self, op_type: str, axis: int) -> Wide:
        """Reduced along an axis, which is left with size 1."""
        if op_type == "ReduceSum" or self.body.opset >= 18:
            return self.of(op_type, [axis], keepdims=1)
        return self.of(op_type, axes=[axis], keepdims=1)


def sum_of_blocks(body: Body, count: int | str, block: Callable[[Body, str], Wide]) -> Wide:
    """A sum of blocks that is rounded after each block.

    Args:
        body: where the nodes go.
        count: the number of blocks, at least 1, or the name of a scalar that holds it.
        block: makes one block from its number, an int64 scalar.
    """
    first = block(body, body.ints(0)).rounded()
    if count == 1:
        return first
    inner = Body(body.opset, body.tensor_name, "block", body.format)
    done, go_on, before = (inner.tensor_name("loop") for _ in range(3))
    total = Wide(inner, half=before) + block(inner, inner.add("Add", done, inner.ints(1)))
    graph = make_graph(
        nodes=inner.nodes,
        name="blocks",
        inputs=[
            make_tensor_value_info(done, TensorProto.INT64, []),
            make_tensor_value_info(go_on, TensorProto.BOOL, []),
            make_tensor_value_info(before, body.format.onnx_type, None),
        ],
        outputs=[
            make_tensor_value_info(inner.add("Identity", go_on), TensorProto.BOOL, []),
            make_tensor_value_info(total.half, body.format.onnx_type, None),
        ],
    )
    more = body.add("Sub", body.named(count), body.ints(1))
    return Wide(body, half=body.add("Loop", more, "", first.half, body=graph))
