"""The nodes that write out an FP16 kernel in operators that round only where they say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from onnx import TensorProto

from qdebug.formats.base import Format
from qdebug.formats.registry import BF16, FP16
from qdebug.plan.rewrite.edit import NodeBuilder

Shape = Sequence[int | str | None] | None
"""A shape as far as it is known; None where not even the rank is."""


class Sketch(NodeBuilder):
    """Nodes in the making that compute in FP32, with the roundings to FP16 in between."""

    format: Format = FP16
    sums_in_blocks = True
    """Whether a product is rounded after each block of its terms."""

    def inner(self) -> Self:
        """An empty one, for a body inside a node of this one."""
        return type(self)(self.opset, self.tensor_name, self._hint)

    def name(self) -> str:
        """A new name for a tensor."""
        return self.tensor_name(self._hint)

    def wide(self, tensor: str) -> str:
        """`tensor` in FP32."""
        return self.add("Cast", tensor, to=TensorProto.FLOAT)

    def half(self, tensor: str) -> str:
        """`tensor` in the format."""
        return self.add("Cast", tensor, to=self.format.onnx_type)

    def number(self, value: float) -> str:
        """A constant, rounded to the format."""
        return self.constant(np.asarray(value, self.format.dtype).astype(np.float32))

    def rounded(self, tensor: str) -> str:
        """`tensor`, rounded to the format, in FP32; see `rounding` for what keeps it rounded."""
        return self.wide(self.add("Identity", self.add("Identity", self.half(tensor))))

    def reduced(self, op_type: str, tensor: str, axis: int, *, keep: bool = True) -> str:
        """`tensor` reduced along an axis; `keep` leaves it as one of size 1."""
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.add(op_type, tensor, self.ints([axis]), keepdims=int(keep))
        return self.add(op_type, tensor, axes=[axis], keepdims=int(keep))


class Bf16Sketch(Sketch):
    """The same with BF16, whose products are summed in FP32 and rounded once."""

    format = BF16
    sums_in_blocks = False

    def rounded(self, tensor: str) -> str:
        """See Sketch. ONNX Runtime leaves a pair of Casts that loses digits where it is."""
        return self.wide(self.half(tensor))
