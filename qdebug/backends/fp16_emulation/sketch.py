"""The nodes that write out an FP16 kernel in operators that round only where they say so."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from qdebug.plan.rewrite.edit import NodeBuilder

Shape = Sequence[int | str | None] | None
"""A shape as far as it is known; None where not even the rank is."""


class Sketch(NodeBuilder):
    """Nodes in the making that compute in FP32, with the roundings to FP16 in between."""

    def inner(self) -> Sketch:
        """An empty one, for a body inside a node of this one."""
        return Sketch(self.opset, self.tensor_name, self._hint)

    def name(self) -> str:
        """A new name for a tensor."""
        return self.tensor_name(self._hint)

    def wide(self, tensor: str) -> str:
        """`tensor` in FP32."""
        return self.add("Cast", tensor, to=TensorProto.FLOAT)

    def half(self, tensor: str) -> str:
        """`tensor` in FP16."""
        return self.add("Cast", tensor, to=TensorProto.FLOAT16)

    def rounded(self, tensor: str) -> str:
        """`tensor`, rounded to FP16, in FP32; see `rounding` for what keeps it rounded."""
        return self.wide(self.add("Identity", self.add("Identity", self.half(tensor))))

    def reduced(self, op_type: str, tensor: str, axis: int, *, keep: bool = True) -> str:
        """`tensor` reduced along an axis; `keep` leaves it as one of size 1."""
        if op_type == "ReduceSum" or self.opset >= 18:
            return self.add(op_type, tensor, self.ints([axis]), keepdims=int(keep))
        return self.add(op_type, tensor, axes=[axis], keepdims=int(keep))
