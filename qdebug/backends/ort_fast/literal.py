"""The literal parts: every node as `lower` and `SimulationBackend` have it, in each precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.backends.fp16_emulation.rounding import as_tensorrt_computes
from qdebug.backends.ort_fast.parts import Form, Formed, Part, Workshop
from qdebug.formats.base import FloatArray
from qdebug.formats.registry import FP16, INT8
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.cast import narrow_roles
from qdebug.plan.rewrite.edit import copy_node, make_node
from qdebug.plan.rewrite.qdq import QuantizedLayer, along_channels, quantized_operands, weight_codes
from qdebug.types import Fp16Kernels

SELECTING = frozenset({"Clip", "Max", "Min", "MaxPool", "Relu"})
"""Operators whose results are values of their operands, or 0: they do not round."""

ZERO_U8 = 128
"""The zero point that shifts the contract's signed codes to unsigned ones."""

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]

SOURCES: dict[Form, tuple[Form, ...]] = {
    Form.PLAIN: (Form.HALF, Form.PLAIN_LAST),
    Form.HALF: (Form.PLAIN,),
    Form.FAKE: (Form.U8, Form.PLAIN),
    Form.U8: (Form.PLAIN, Form.U8_LAST),
    Form.S8: (Form.PLAIN, Form.FAKE),
    Form.U8_LAST: (Form.PLAIN_LAST, Form.U8, Form.PLAIN),
    Form.FAKE_LAST: (Form.U8_LAST,),
}
"""From which forms each can be made, the best first."""


def fed_fp32(
    node: onnx.NodeProto, halves: Iterable[int], free: Callable[[str], str]
) -> list[onnx.NodeProto]:
    """`node`, edited in place, behind Casts to FP32 of its FP16 inputs.

    Args:
        node: the node.
        halves: positions of its FP16 inputs.
        free: makes a new tensor name from a wanted one.
    """
    casts = []
    for i in halves:
        wide = free(node.input[i])
        casts.append(make_node("Cast", [node.input[i]], wide, to=TensorProto.FLOAT))
        node.input[i] = wide
    return [*casts, node]


class Literal:
    """Makes parts of single nodes, and conversions from one form to another."""

    def __init__(
        self,
        shop: Workshop,
        items: dict[str, QuantizedLayer],
        fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT,
    ) -> None:
        """`items` are the layers that may run in INT8, by name."""
        self.shop = shop
        self.fp16_kernels = fp16_kernels
        self.graph: Graph = shop.graph
        self.items = items
        self.protos = {n.name: n for n in self.graph.proto.graph.node}

    @cached_property
    def scales(self) -> dict[str, FloatArray]:
        """The scale of every quantized activation."""
        return {t: s for item in self.items.values() for t, s in item.activations.items()}

    def plain(self, node: Node) -> Part:
        """`node` as it is."""
        return self._node(node, {}, [])

    def half(self, node: Node) -> Part | None:
        """`node` in FP16, with a barrier behind each FP16 output (see half.rounding); None where
        its operator has no FP16 form. One that rounds nothing is computed in FP32."""
        roles = narrow_roles(node, self.graph, FP16)
        if roles is None:
            return None
        inputs, outputs = roles
        reads = {i: (node.inputs[i], Form.HALF) for i in inputs}
        selects = node.op_type in SELECTING and not node.domain and len(node.outputs) == 1
        if selects:
            return self._node(node, reads, [], lambda n: fed_fp32(n, reads, self.shop.tensor_name))
        return self._node(node, reads, outputs, lambda n: self._written_out(node, n))

    def _written_out(self, node: Node, half: onnx.NodeProto) -> list[onnx.NodeProto]:
        """What computes `half`, which is `node` in FP16."""
        made = None
        if self.fp16_kernels is Fp16Kernels.TENSORRT:
            shapes = [self.graph.shapes.get(tensor) for tensor in node.inputs]
            made = as_tensorrt_computes(half, shapes, self.graph.opset, self.shop.tensor_name)
        return made or [half]

    def int8(self, node: Node, item: QuantizedLayer) -> Part:
        """`node` of an INT8 layer, reading what a Q/DQ pair makes of its operands."""
        operands = quantized_operands(node, item.layer)
        reads = {i: (t, Form.FAKE) for i, t in enumerate(node.inputs[:2]) if t in operands}
        if item.bias is None or node.name != item.layer.name:
            return self._node(node, reads, [])
        shift = along_channels(self.graph, item.layer, item.bias)
        added = self.shop.constant(shift, f"{node.name}:correction")

        def corrected(made: onnx.NodeProto) -> list[onnx.NodeProto]:
            whole, made.output[0] = made.output[0], self.shop.tensor_name(node.name)
            return [made, make_node("Add", [made.output[0], added], whole)]

        return self._node(node, reads, [], corrected)

    def convert(self, tensor: str, source: Form, form: Form) -> Part:
        """The nodes that make one form of a tensor from another."""
        shop = self.shop
        start, end = shop.name(tensor, source), shop.name(tensor, form)
        middle = shop.tensor_name(tensor)
        match source, form:
            case Form.HALF, Form.PLAIN:
                nodes = [make_node("Cast", [start], end, to=TensorProto.FLOAT)]
            case Form.PLAIN, Form.HALF:
                cast = make_node("Cast", [start], middle, to=TensorProto.FLOAT16)
                nodes = [cast, *self._barrier(middle, end)]
            case Form.PLAIN_LAST, Form.PLAIN:
                nodes = [make_node("Transpose", [start], end, perm=TO_FIRST)]
            case (Form.PLAIN, Form.FAKE):
                codes = self._quantize(tensor, start, middle, signed=True)
                nodes = [codes, self._dequantize(tensor, middle, end, signed=True)]
            case (Form.U8, Form.FAKE) | (Form.U8_LAST, Form.FAKE_LAST):
                nodes = [self._dequantize(tensor, start, end)]
            case (Form.PLAIN, Form.U8) | (Form.PLAIN_LAST, Form.U8_LAST):
                nodes = [self._quantize(tensor, start, end)]
            case (Form.PLAIN, Form.S8) | (Form.FAKE, Form.S8):  # a second rounding changes nothing
                nodes = [self._quantize(tensor, start, end, signed=True)]
            case Form.PLAIN, Form.U8_LAST:
                codes = self._quantize(tensor, start, middle)
                nodes = [codes, make_node("Transpose", [middle], end, perm=TO_LAST)]
            case Form.U8, Form.U8_LAST:
                nodes = [make_node("Transpose", [start], end, perm=TO_LAST)]
            case _:
                assert (source, form) == (Form.U8_LAST, Form.U8)
                nodes = [make_node("Transpose", [start], end, perm=TO_FIRST)]
        return shop.part(nodes, [(tensor, source)], [(tensor, form)])

    def plainly(self, part: Part) -> list[Part]:
        """`part`, and what makes the form of the model from all that it gives."""
        others = [(tensor, form) for tensor, form in part.gives if form is not Form.PLAIN]
        return [part, *(self.convert(tensor, form, Form.PLAIN) for tensor, form in others)]

    def _node(
        self,
        node: Node,
        reads: dict[int, Formed],
        half_outputs: Sequence[int],
        computed: Callable[[onnx.NodeProto], list[onnx.NodeProto]] = lambda node: [node],
    ) -> Part:
        """`computed` makes the nodes that stand for the one whose inputs and outputs are named."""
        shop, proto = self.shop, copy_node(self.protos[node.name])
        needs = [(t, Form.PLAIN) for i, t in enumerate(node.inputs) if t and i not in reads]
        needs += [(t, Form.PLAIN) for t in node.implicit_inputs]
        for i, (tensor, form) in reads.items():
            if tensor in self.graph.initializers:
                proto.input[i] = self._constant(tensor, form, node)
            else:
                proto.input[i] = shop.name(tensor, form)
                needs.append((tensor, form))
        gives = []
        barriers = []
        for i, tensor in enumerate(node.outputs):
            if i in half_outputs:
                proto.output[i] = shop.tensor_name(tensor)
                barriers += self._barrier(proto.output[i], shop.name(tensor, Form.HALF))
            if tensor:
                gives.append((tensor, Form.HALF if i in half_outputs else Form.PLAIN))
        return shop.part([*computed(proto), *barriers], needs, gives)

    def _constant(self, tensor: str, form: Form, node: Node) -> str:
        """The name of a constant in FP16, or as its INT8 codes are dequantized."""
        if form is Form.HALF:
            values = self.graph.constant(tensor)
            assert values is not None
            with np.errstate(over="ignore"):  # an overflow is what the user must see
                return self.shop.constant(values.astype(np.float16), f"{tensor}:half")
        item = self.items[node.name]
        how = item.weight
        assert how is not None
        codes = weight_codes(self.graph, tensor, how)
        values = INT8.decode(codes, how.scale, how.axis)
        return self.shop.constant(values, f"{tensor}:fake:{how.axis}")

    def _barrier(self, start: str, end: str) -> list[onnx.NodeProto]:
        middle = self.shop.tensor_name(end)
        return [
            make_node("Identity", [start], middle),
            make_node("Identity", [middle], end),
        ]

    def _quantize(
        self, tensor: str, start: str, end: str, *, signed: bool = False
    ) -> onnx.NodeProto:
        return make_node("QuantizeLinear", [start, *self.grid(tensor, signed)], end)

    def _dequantize(
        self, tensor: str, start: str, end: str, *, signed: bool = False
    ) -> onnx.NodeProto:
        return make_node("DequantizeLinear", [start, *self.grid(tensor, signed)], end)

    def grid(self, tensor: str, signed: bool = False) -> tuple[str, str]:
        """Names of the scale and the zero point of a quantized activation."""
        scale = self.shop.constant(self.scales[tensor], f"{tensor}:scale")
        if signed:
            return scale, self.shop.constant(np.int8(0), "zero:s8")
        return scale, self.shop.constant(np.uint8(ZERO_U8), "zero:u8")
