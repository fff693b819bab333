"""Nodes in the making, with names of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None] | None
"""A shape as far as it is known; None where not even the rank is."""


class Sketch:
    """A list of nodes that grows. Each method appends what it takes and returns what it makes."""

    def __init__(self, opset: int, free: Callable[[str], str], hint: str) -> None:
        """`free` makes a new tensor name from a known one; all names here start with `hint`."""
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self._free = free
        self._hint = hint

    def inner(self) -> Sketch:
        """An empty one, for a body inside a node of this one."""
        return Sketch(self.opset, self._free, self._hint)

    def name(self) -> str:
        """A new name for a tensor."""
        return self._free(self._hint)

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        output = self.name()
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """A constant."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(values)))

    def ints(self, values: Any) -> str:
        """A constant of int64: axes, sizes, tables of them."""
        return self.constant(np.asarray(values, np.int64))

    def wide(self, tensor: str) -> str:
        """`tensor` in FP32."""
        return self.add("Cast", tensor, to=TensorProto.FLOAT)

    def half(self, tensor: str) -> str:
        """`tensor` in FP16."""
        return self.add("Cast", tensor, to=TensorProto.FLOAT16)

    def rounded(self, tensor: str) -> str:
        """`tensor`, rounded to FP16, in FP32; see `half.rounding` for what keeps it rounded."""
        return self.wide(self.add("Identity", self.add("Identity", self.half(tensor))))

    def reduced(self, op_type: str, tensor: str, axis: int, *, keep: bool = True) -> str:
        """`tensor` reduced along an axis; `keep` leaves it as one of size 1."""
        if op_type == "ReduceSum" or self.opset >= 18:
            axes = self.ints([axis])
            return self.add(op_type, tensor, axes, keepdims=int(keep))
        return self.add(op_type, tensor, axes=[axis], keepdims=int(keep))
