"""Turn operators that compute on integers into their Q/DQ equivalents.

QLinearConv(x, w) is QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w))), with the same
scales and zero points. ONNX Runtime adds up in int32 and rounds once; the equivalent adds up in
float32. From the same codes its codes differ by one step at most, and only where a sum is within
float32's rounding of the middle between two codes. (tests/plan/test_plan_qoperator.py holds this
against ONNX Runtime, operator by operator.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from qdebug.errors import ModelError
from qdebug.formats.base import Format
from qdebug.formats.registry import INT4, INT8, UINT4, UINT8
from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import free_name, needed
from qdebug.network.weights import tensor_of
from qdebug.plan.quantize import dynamic_grid
from qdebug.plan.rewrite.edit import Editor, copy_node, make_node
from qdebug.types import Array

_MOVING = frozenset(
    {
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Slice"),
        *("Gather", "MaxPool", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Split"),
    }
)
"""Operators that give codes as they found them, of the same scale and zero point; see `moves`."""
_MICROSOFT = "com.microsoft"
_LEVEL_KEY = "qdebug.accuracy_level"


def moves(graph: Graph, node: Node) -> bool:
    """Whether a node gives codes as it found them, of the same scale and zero point."""
    if node.op_type == "Resize":
        return bool(graph.attributes(node).get("mode", b"nearest") == b"nearest")
    return node.op_type in _MOVING


class NoEquivalentError(ModelError):
    """An operator that computes on integers has no Q/DQ equivalent."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"an operator that computes on integers has no Q/DQ equivalent: {why}",
            "Quantize the model in the Q/DQ format (QuantFormat.QDQ in ONNX Runtime).",
            code="QD-MODEL-INTEGER-OPERATOR",
        )


@dataclass(frozen=True)
class Explicit:
    """A model without integer operators.

    Attributes:
        proto: the model.
        replaced: how many nodes of each operator were turned into their equivalent.
    """

    proto: onnx.ModelProto
    replaced: Mapping[str, int]


def has_qoperators(graph: Graph) -> bool:
    """Whether a model has operators that `to_qdq` turns into others."""
    return any(
        QOPERATORS.get((node.domain, node.op_type)) is not None
        or (node.op_type == "DequantizeLinear" and _moves(graph, node.inputs[0]))
        for node in graph.nodes
    )


def to_qdq(graph: Graph) -> Explicit:
    """`graph` with its integer operators as Q/DQ equivalents.

    Raises:
        NoEquivalentError: an operator that has no equivalent here.
        PlanError: as `check`.
    """
    graph = _with_constant_codes(graph)
    writer = _Writer(graph)
    replaced: Counter[str] = Counter()
    for node in graph.nodes:
        handler = QOPERATORS.get((node.domain, node.op_type))
        if node.name in writer.done:
            continue
        if handler is not None:
            handler(writer, node)
            replaced[node.op_type] += 1
        elif node.inputs and node.inputs[0] in writer.pairs and moves(graph, node):
            writer.move(node)
        else:
            writer.keep(node)
    writer.drop_unread()
    proto = writer.editor.finish("the model with Q/DQ")
    levels = [graph.attributes(n).get("accuracy_level", 0) for n in graph.nodes if _is_nbits(n)]
    if levels:
        proto.metadata_props.add(key=_LEVEL_KEY, value=str(max(levels)))
    return Explicit(proto, replaced)


def accuracy_level(proto: onnx.ModelProto) -> int | None:
    """The highest `accuracy_level` of the MatMulNBits that a model had before `to_qdq`: with 4
    ONNX Runtime's kernel also rounds what it multiplies to INT8. None where it had none."""
    found = next((p.value for p in proto.metadata_props if p.key == _LEVEL_KEY), None)
    return None if found is None else int(found)


def _is_nbits(node: Node) -> bool:
    return node.op_type == "MatMulNBits" and node.domain == _MICROSOFT


def _with_constant_codes(graph: Graph) -> Graph:
    """`graph` with the codes of constants in the place of each DynamicQuantizeLinear that makes
    them. ONNX Runtime's `quantize_dynamic` writes those for weights that are Constant nodes."""
    made = {
        node.name: node
        for node in graph.nodes
        if node.op_type == "DynamicQuantizeLinear" and node.inputs[0] in graph.initializers
    }
    if not made:
        return graph
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    del proto.graph.node[:]
    proto.graph.node.extend(x for x in graph.proto.graph.node if x.name not in made)
    for node in made.values():
        values = graph.constant(node.inputs[0])
        assert values is not None
        grid = dynamic_grid(values)
        zero = grid.zero_point.astype(np.uint8)
        codes = UINT8.encode(values, grid.scale, None, zero)
        made_of: list[Array] = [codes, np.asarray(grid.scale), zero]
        for name, value in zip(node.outputs, made_of, strict=True):
            proto.graph.initializer.append(tensor_of(value, name))
    return Graph(proto)


def _moves(graph: Graph, codes: str) -> list[Node]:
    """The nodes that move constant codes to `codes`, such as a Gather in a table of embeddings, in
    execution order; none where there are none, or where the codes are computed."""
    found: list[Node] = []
    maker = graph.producers.get(codes)
    while maker is not None and moves(graph, maker):
        found.insert(0, maker)
        codes = maker.inputs[0]
        maker = graph.producers.get(codes)
    return found if codes in graph.initializers else []


class _Writer:
    """The new graph, and which scale and zero point each tensor of codes has."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.editor = Editor(graph)
        self.pairs: dict[str, tuple[str, str]] = {}
        self.done: set[str] = set()
        self._floats: dict[tuple[str, str, str, int | None], str] = {}

    def keep(self, node: Node) -> None:
        """The node as it is."""
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            dynamic = node.op_type == "DynamicQuantizeLinear"
            scale, zero = node.outputs[1:3] if dynamic else (*node.inputs[1:3], "")[:2]
            self.pairs[node.outputs[0]] = (scale, zero)
        if node.op_type == "DequantizeLinear":
            codes, scale, zero = (*node.inputs, "")[:3]
            if self.moved(codes, scale, zero, node.outputs[0]):
                return
        proto = copy_node(self.graph.protos[node.name])
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain == _MICROSOFT:
            proto.domain = ""
        self.editor.emit(proto)

    def moved(self, codes: str, scale: str, zero: str, output: str = "") -> str:
        """The values of constant codes after what moves them: dequantized first, then moved. ""
        where nothing moves them, or where they have several scales."""
        nodes = _moves(self.graph, codes)
        if not nodes or self._size(scale) != 1:
            return ""
        values = self.values(nodes[0].inputs[0], scale, zero)
        for node in nodes:
            proto = copy_node(self.graph.protos[node.name])
            proto.input[0] = values
            last = node is nodes[-1] and output
            values = output if last else self.editor.tensor_name(f"{node.outputs[0]}_values")
            proto.output[0] = values
            self.editor.emit(proto)
        return values

    def move(self, node: Node) -> None:
        """A node that gives codes as it found them, between a DequantizeLinear and a
        QuantizeLinear of the same scale: the codes stay the same."""
        pair = self.pairs[node.inputs[0]]
        proto = copy_node(self.graph.protos[node.name])
        proto.input[0] = self.values(node.inputs[0], *pair)
        names = [self.editor.tensor_name(f"{t}_dequantized") for t in node.outputs]
        for i, name in enumerate(names):
            proto.output[i] = name
        self.editor.emit(proto)
        for name, codes in zip(names, node.outputs, strict=True):
            self.codes(name, codes, *pair)

    def values(self, codes: str, scale: str, zero: str, axis: int | None = None) -> str:
        """The values of a tensor of codes, made once."""
        key = (codes, scale, zero, axis)
        if key not in self._floats and (moved := self.moved(codes, scale, zero)):
            self._floats[key] = moved
        if key not in self._floats:
            per_axis = axis is not None and self._size(scale) != 1
            attributes = {"axis": axis} if per_axis else {}
            if per_axis and zero and self._size(zero) == 1:
                zero = self._spread(zero, self._size(scale))
            self._floats[key] = self.editor.add(
                "DequantizeLinear",
                *([codes, scale, zero] if zero else [codes, scale]),
                output=self.editor.tensor_name(f"{codes}_DequantizeLinear_Output"),
                name=f"{codes}_DequantizeLinear",
                **attributes,
            )
        return self._floats[key]

    def codes(self, values: str, codes: str, scale: str, zero: str) -> None:
        """Quantize `values` to the tensor `codes`."""
        self.pairs[codes] = (scale, zero)
        self.editor.add(
            "QuantizeLinear",
            *([values, scale, zero] if zero else [values, scale]),
            output=codes,
            name=f"{codes}_QuantizeLinear",
        )

    def compute(
        self,
        op_type: str,
        node: Node,
        inputs: Sequence[str],
        output: str = "",
        **attributes: object,
    ) -> str:
        """The floating-point node in the place of `node`, under its name."""
        output = output or self.editor.tensor_name(f"{node.outputs[0]}_values")
        self.editor.emit(make_node(op_type, inputs, output, node.name, **attributes))
        return output

    def scale_product(self, factors: Sequence[str], wanted: str, times: float = 1.0) -> str:
        """The product of scales, as a constant.

        Raises:
            NoEquivalentError: one of them is computed.
        """
        product = np.array(times, np.float32)
        for name in factors:
            value = self.graph.constant(name)
            if value is None:
                raise NoEquivalentError(f"the scale '{name}' is computed")
            product = product * (value.reshape(()) if value.size == 1 else value)
        return self.editor.initializer(np.asarray(product, np.float32), wanted)

    def drop_unread(self) -> None:
        """Drop nodes that nothing reads, such as products of scales."""
        nodes = self.editor.nodes
        nodes[:] = needed(nodes, (v.name for v in self.editor.proto.graph.output))
        taken: set[str] = set()
        for node in nodes:  # what moves codes and values has one name until here
            node.name = free_name(node.name, taken)

    def last_axis(self, tensor: str) -> int | None:
        """The last axis of a tensor; None where its rank is not known."""
        rank = self.rank(tensor)
        return None if rank is None else rank - 1

    def rank(self, tensor: str) -> int | None:
        """The number of axes of a tensor, where it is known."""
        shape = self.graph.shapes.get(tensor)
        return None if shape is None else len(shape)

    def _spread(self, zero: str, count: int) -> str:
        """One zero point for each channel, as DequantizeLinear wants where scales are many."""
        value = self.graph.constant(zero)
        if value is None:
            raise NoEquivalentError(f"the zero point '{zero}' is computed")
        return self.editor.initializer(np.full(count, value.reshape(())), f"{zero}_per_channel")

    def _size(self, tensor: str) -> int:
        known = next((t for t in self.editor.proto.graph.initializer if t.name == tensor), None)
        shape = tuple(known.dims) if known is not None else self.graph.shapes.get(tensor, ())
        return int(np.prod([d if isinstance(d, int) else 1 for d in shape]))


def _optional(node: Node, place: int) -> str:
    return node.inputs[place] if len(node.inputs) > place else ""


def _in_float(
    op_type: str, operands: Sequence[int], result: int, *, bias: int = 99, kept: int = 0
) -> Callable[[_Writer, Node], None]:
    """An operator that computes as `op_type` does, between DequantizeLinear and QuantizeLinear.

    Args:
        operands: the places of its operands' codes, before scale and zero point of each; none of
            Concat, which has any number.
        result: the place of the result's scale, before its zero point; where it is absent the
            result is in floating point.
        bias: of its int32 bias, in units of the accumulator.
        kept: how many inputs it reads as they are.
    """

    def handle(to: _Writer, node: Node) -> None:
        given = to.graph.attributes(node)
        if given.pop("channels_last", 0):
            raise NoEquivalentError(f"node '{node.name}' has its channels last")
        places = operands or range(result + 2, len(node.inputs), 3)
        inputs = list(node.inputs[:kept])
        for place in places:
            codes, scale, zero = node.inputs[place : place + 3]
            inputs.append(to.values(codes, scale, zero, _axis(to, op_type, given, codes)))
        stored = _optional(node, bias)
        if stored:  # alpha multiplies the accumulator, too
            factors = [node.inputs[place + 1] for place in places]
            times = float(given.get("alpha", 1.0))
            scale = to.scale_product(factors, f"{stored}_scale", times)
            inputs.append(_bias(to, stored, scale))
        if not _optional(node, result):
            to.compute(op_type, node, inputs, node.outputs[0], **given)
            return
        values = to.compute(op_type, node, inputs, **given)
        to.codes(values, node.outputs[0], node.inputs[result], _optional(node, result + 1))

    return handle


def _axis(to: _Writer, op_type: str, attributes: Mapping[str, Any], weight: str) -> int | None:
    """The axis of the output channels in a weight; None where its rank is not known."""
    if op_type == "Conv":
        return 0
    if op_type == "Gemm":
        return 0 if attributes.get("transB", 0) else 1
    return to.last_axis(weight)


def _bias(to: _Writer, bias: str, scale: str) -> str:
    """An int32 bias, dequantized: with one scale, or one for each value."""
    return to.editor.add(
        "DequantizeLinear",
        bias,
        scale,
        output=to.editor.tensor_name(f"{bias}_DequantizeLinear_Output"),
        name=f"{bias}_DequantizeLinear",
        axis=0,
    )


def _softmax(to: _Writer, node: Node) -> None:
    x, xs, xz, ys = node.inputs[:4]
    given = to.graph.attributes(node)
    opset, axis = given.get("opset", 13), given.get("axis", -1)
    rank = to.rank(x)
    source = to.values(x, xs, xz)
    if opset >= 13 or (rank is not None and axis % rank == rank - 1):
        values = to.compute("Softmax", node, [source], axis=axis)
    else:  # it flattened its input to two axes before opset 13
        shape = to.editor.add("Shape", source, name=f"{node.name}_shape")
        flat = to.editor.add("Flatten", source, name=f"{node.name}_flat", axis=axis)
        soft = to.compute("Softmax", node, [flat], axis=1)
        values = to.editor.add("Reshape", soft, shape, name=f"{node.name}_reshape")
    to.codes(values, node.outputs[0], ys, _optional(node, 4))


@dataclass(frozen=True)
class _Scaled:
    """What follows an integer product: a Cast, and a Mul with both scales.

    Attributes:
        nodes: the Cast and the Mul.
        scale: that of the first operand.
        weight_scale: that of the second operand; its name is that of a constant, or of what a
            DynamicQuantizeLinear gives.
        output: what the Mul writes.
    """

    nodes: tuple[str, ...]
    scale: str
    weight_scale: str
    output: str


def _scaled(to: _Writer, node: Node) -> _Scaled | None:
    """The Cast and Mul after `node`, where the Mul's other operand is the scale of the first
    operand times a constant, or times the scale with which the second operand was quantized."""
    graph = to.graph
    cast = _only_reader(graph, node.outputs[0], "Cast")
    product = _only_reader(graph, cast.outputs[0], "Mul") if cast else None
    if cast is None or product is None or graph.attributes(cast)["to"] != TensorProto.FLOAT:
        return None
    other = next((t for t in product.inputs if t != cast.outputs[0]), "")
    maker = graph.producers.get(other)
    if maker is None or maker.op_type != "Mul":
        return None
    scale = to.pairs.get(node.inputs[0], ("", ""))[0] or _scale_of_moved(to, node, maker)
    if scale not in maker.inputs:
        return None
    weight_scale = next((t for t in maker.inputs if t != scale), "")
    own = to.pairs.get(node.inputs[1], ("", ""))[0]
    if graph.constant(weight_scale) is None and (not own or weight_scale != own):
        return None
    return _Scaled((cast.name, product.name), scale, weight_scale, product.outputs[0])


def _scale_of_moved(to: _Writer, node: Node, scales: Node) -> str:
    """The scale of constant codes that were moved to the first operand, as those of a table of
    embeddings are: the first factor of `scales`, as ONNX Runtime writes it; "" for other codes."""
    graph = to.graph
    first = graph.constant(scales.inputs[0])
    moved = _moves(graph, node.inputs[0])
    return scales.inputs[0] if moved and first is not None and first.size == 1 else ""


def _only_reader(graph: Graph, tensor: str, op_type: str) -> Node | None:
    readers = graph.consumers.get(tensor, ())
    if len(readers) != 1 or tensor in graph.outputs or readers[0].op_type != op_type:
        return None
    return readers[0]


def _integer(op_type: str) -> Callable[[_Writer, Node], None]:
    """ConvInteger and MatMulInteger, of a tensor that DynamicQuantizeLinear or QuantizeLinear
    quantized and a weight."""

    def handle(to: _Writer, node: Node) -> None:
        x, w = node.inputs[:2]
        xz, wz = _optional(node, 2), _optional(node, 3)
        scaled = _scaled(to, node)
        given = to.graph.attributes(node)
        axis = _axis(to, op_type, given, w)
        if scaled is not None:
            inputs = [to.values(x, scaled.scale, xz), _weight(to, w, scaled.weight_scale, wz, axis)]
            to.compute(op_type, node, inputs, scaled.output, **given)
            to.done.update(scaled.nodes)
            return
        one = to.editor.initializer(np.array(1, np.float32), f"{node.name}_scale")
        zeros, ones = to.graph.constant(wz) if wz else None, one
        if zeros is not None and zeros.size > 1:  # one for each channel, and so are scales
            ones = to.editor.initializer(np.ones(zeros.size, np.float32), f"{node.name}_scales")
        inputs = [to.values(x, one, xz), to.values(w, ones, wz, axis)]
        sums = to.compute(op_type, node, inputs, **given)
        to.editor.add("Cast", sums, output=node.outputs[0], to=TensorProto.INT32)

    return handle


def _weight(to: _Writer, weight: str, scale: str, zero: str, axis: int | None) -> str:
    """The values of the second operand of a product."""
    factor = to.graph.constant(scale)
    if factor is None:  # computed, by a DynamicQuantizeLinear
        return to.values(weight, scale, zero)
    flat = factor.reshape(() if factor.size == 1 else -1)
    constant = to.editor.initializer(flat, f"{weight}_scale")
    return to.values(weight, constant, zero, None if factor.size == 1 else axis)


def _integer_to_float(to: _Writer, node: Node) -> None:
    """MatMulIntegerToFloat."""
    a, b, a_s, bs = node.inputs[:4]
    weight = to.values(b, bs, _optional(node, 5), to.last_axis(b))
    inputs = [to.values(a, a_s, _optional(node, 4)), weight]
    _with_bias(to, node, inputs, _optional(node, 6))


def _dynamic_matmul(to: _Writer, node: Node) -> None:
    """DynamicQuantizeMatMul."""
    a, b, bs = node.inputs[:3]
    edit = to.editor
    codes, scale, zero = (edit.tensor_name(f"{a}_{s}") for s in ("quantized", "scale", "zero"))
    quantizer = onnx.helper.make_node("DynamicQuantizeLinear", [a], [codes, scale, zero])
    quantizer.name = f"{node.name}_QuantizeLinear"
    edit.emit(quantizer)
    weight = to.values(b, bs, _optional(node, 3), to.last_axis(b))
    inputs = [to.values(codes, scale, zero), weight]
    _with_bias(to, node, inputs, _optional(node, 4))


def _with_bias(to: _Writer, node: Node, inputs: Sequence[str], bias: str) -> None:
    if not bias:
        to.compute("MatMul", node, inputs, node.outputs[0])
        return
    product = to.compute("MatMul", node, inputs)
    to.editor.add("Add", product, bias, output=node.outputs[0], name=f"{node.name}_bias")


def _matmul_nbits(to: _Writer, node: Node) -> None:
    """MatMulNBits: a weight [N, K] in blocks along K, each with a scale; see
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.

    Raises:
        NoEquivalentError: codes of other bits than 4 and 8, a reordered weight, or zero points in
            floating point.
    """
    given = to.graph.attributes(node)
    bits, k, n, block = (int(given[name]) for name in ("bits", "K", "N", "block_size"))
    a, packed, scale = node.inputs[:3]
    zero, order, bias = (_optional(node, place) for place in (3, 4, 5))
    if bits not in _BLOCK_FORMATS:
        raise NoEquivalentError(f"node '{node.name}' has codes of {bits} bits")
    if order:
        raise NoEquivalentError(f"node '{node.name}' reorders its weight (g_idx)")
    blocks = -(-k // block)
    codes = _unpacked(_constant(to, packed), bits, n, blocks * block)[:, :k]
    symmetric, asymmetric = _BLOCK_FORMATS[bits]
    if zero:
        zeros = _constant(to, zero)
        if zeros.dtype != np.uint8:
            raise NoEquivalentError(f"node '{node.name}' has zero points in floating point")
        points = _unpacked(zeros, bits, n, blocks).T.astype(asymmetric.dtype)
        operands = [codes.astype(asymmetric.dtype), points]
    else:  # half of the codes are negative
        operands = [(codes.astype(np.int16) - (1 << (bits - 1))).astype(symmetric.dtype)]
    operands[0] = np.ascontiguousarray(operands[0].T)
    operands.insert(1, _constant(to, scale).reshape(n, blocks).T)
    names = (packed, f"{packed}_scales", f"{packed}_zero_points")
    weight = to.editor.add(
        "DequantizeLinear",
        *map(to.editor.initializer, map(np.ascontiguousarray, operands), names),
        output=to.editor.tensor_name(f"{packed}_DequantizeLinear_Output"),
        name=f"{packed}_DequantizeLinear",
        axis=0,
        block_size=block,
    )
    _with_bias(to, node, [a, weight], bias)


def _constant(to: _Writer, tensor: str) -> Array:
    """The value of a constant.

    Raises:
        NoEquivalentError: it is computed.
    """
    value = to.graph.constant(tensor)
    if value is None:
        raise NoEquivalentError(f"'{tensor}' is computed")
    return value


def _unpacked(packed: Array, bits: int, rows: int, columns: int) -> Array:
    """Codes [rows, columns], uint8: those of each row packed into whole bytes, the first one into
    the lowest bits."""
    whole = packed.reshape(rows, -1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (whole[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(codes.reshape(rows, -1)[:, :columns])


_BLOCK_FORMATS: Mapping[int, tuple[Format, Format]] = {4: (INT4, UINT4), 8: (INT8, UINT8)}
"""By bits: the formats of codes without zero points, and with them."""

_CONTRIBUTED: Mapping[str, Callable[[_Writer, Node], None]] = {
    "QLinearConv": _in_float("Conv", (0, 3), 6, bias=8),
    "QGemm": _in_float("Gemm", (0, 3), 7, bias=6),
    "QLinearAdd": _in_float("Add", (0, 3), 6),
    "QLinearMul": _in_float("Mul", (0, 3), 6),
    "QLinearConcat": _in_float("Concat", (), 0),
    "QLinearWhere": _in_float("Where", (1, 4), 7, kept=1),
    "QLinearAveragePool": _in_float("AveragePool", (0,), 3),
    "QLinearGlobalAveragePool": _in_float("GlobalAveragePool", (0,), 3),
    "QLinearLeakyRelu": _in_float("LeakyRelu", (0,), 3),
    "QLinearSigmoid": _in_float("Sigmoid", (0,), 3),
    "QLinearSoftmax": _softmax,
    "MatMulIntegerToFloat": _integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulNBits": _matmul_nbits,
}
QOPERATORS: Mapping[tuple[str, str], Callable[[_Writer, Node], None]] = {
    ("", "QLinearConv"): _CONTRIBUTED["QLinearConv"],
    ("", "QLinearMatMul"): _in_float("MatMul", (0, 3), 6),
    ("", "ConvInteger"): _integer("Conv"),
    ("", "MatMulInteger"): _integer("MatMul"),
    **{(_MICROSOFT, name): handler for name, handler in _CONTRIBUTED.items()},
}
"""What writes the equivalent of an operator, by its domain and name."""
