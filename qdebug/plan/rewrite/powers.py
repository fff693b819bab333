"""Hold tensors scaled by powers of two, so that FP16 can hold them: exact, and free wherever the
constants of the network take the powers in.

Every tensor t gets an exponent s: the rewritten network holds t · 2⁻ˢ. What an operator does to its
operands decides about its result: a sum needs operands of one exponent, a square doubles it, a
product adds two. A constant weight takes in any exponent, and so do normalizations, which do not
depend on the scale of what they read. Where an operator needs another exponent (an Exp needs 0), a
Mul by a power of two is inserted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from qdebug.formats.registry import FP16
from qdebug.network.graph import Graph, Node
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.fuse.matching import number, squared
from qdebug.types import Array

_FIRST = frozenset(
    {"Abs", "AveragePool", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather"}
    | {"GatherElements", "GatherND", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LeakyRelu"}
    | {"MaxPool", "Neg", "PRelu", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin"}
    | {"ReduceSum", "Relu", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze"}
)
"""Operators that commute with a positive factor on their first operand."""
_ALIGNED = frozenset({"Add", "Clip", "Concat", "Max", "Mean", "Min", "Sub", "Sum", "Where"})
"""Those that commute with one factor on all of their float operands."""
_DEGREES: Mapping[str, tuple[int, int]] = {
    "ReduceSumSquare": (2, 1),
    "Reciprocal": (-1, 1),
    "Sqrt": (1, 2),
}
"""f(c · x) = cᵈ · f(x), with d as a fraction."""
_NORMALIZATIONS = frozenset(
    {"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization"}
    | {"RMSNormalization"}
)
_INVARIANT = frozenset({"ArgMax", "ArgMin", "LpNormalization", "Shape", "Sign", "Size"})
"""Those that do not depend on a positive factor."""
_SATURATING = frozenset({"Erf", "HardSigmoid", "Sigmoid", "Softsign", "Tanh"})
"""Those that do the right thing with Inf."""

_SLACK = 1
"""By which an exponent may be beyond its limits before a product is worth it."""


@dataclass(frozen=True)
class Powers:
    """A network of the same function.

    Attributes:
        proto: the network.
        stale: tensors whose values are others now.
        held: the exponent of each tensor that is held scaled.
        products: how many Mul nodes were inserted.
    """

    proto: onnx.ModelProto
    stale: frozenset[str]
    held: Mapping[str, int]
    products: int


Limits = Mapping[str, tuple[int, int]]
"""By tensor the least and the largest exponent with which FP16 holds it well."""


def hold_scaled(
    graph: Graph,
    needs: Mapping[str, int],
    limits: Limits,
    fixed: frozenset[str] = frozenset(),
) -> Powers | None:
    """`graph` with some tensors held as t · 2⁻ˢ; None where that helps none of them.

    Tensors are left out where it is of no use: an overflow that ends in an operator which needs the
    value itself (a mask added to scores before Softmax), or in one that makes a finite value of Inf
    (Tanh).

    Args:
        needs: s of tensors that FP16 cannot hold; at least so much where positive, at most where
            negative.
        limits: of all tensors that FP16 must hold; 0 is taken to be within them for those that have
            no need.
        fixed: nodes whose constants stay as they are.

    Raises:
        PlanError: as `check`.
    """
    roles = {node.name: _role(graph, node, fixed) for node in graph.nodes}
    useful = _useful(graph, roles, needs)
    if not useful:
        return None
    fits = _fits(limits, useful)
    emission = _Emission(graph, roles, fits, _wishes(graph, roles, useful))
    for proto in graph.proto.graph.node:
        emission.add(graph.by_name[proto.name], proto)
    held = {tensor: s for tensor, s in emission.held.items() if s}
    if not set(held) & set(useful):
        return None
    scaled = emission.editor.finish("the network with scaled tensors")
    return Powers(scaled, frozenset(held), held, emission.products)


# What an operator does with the exponents of its operands.
_FREE, _SAME, _TOGETHER, _POWER, _SUM, _DIFFERENCE, _ANY, _NONE = (
    "free", "same", "together", "power", "sum", "difference", "any", "none",
)  # fmt: skip


@dataclass(frozen=True)
class _Role:
    """How a node treats the exponents of its operands.

    Attributes:
        kind: FREE: constants give the result any exponent, whatever that of the operand; SAME: that
            of the first operand; TOGETHER: that of all operands, which must agree; POWER: the first
            one's times `degree`; SUM, DIFFERENCE: of two operands; ANY: 0, whatever they are; NONE:
            0, and theirs must be 0.
        data: positions of the operands whose exponents count.
        absorbed: positions of constants that are multiplied by 2^(s_in · a − s_out · b), with
            (a, b).
        degree: a fraction.
    """

    kind: str
    data: tuple[int, ...] = ()
    absorbed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    degree: tuple[int, int] = (1, 1)


def _role(graph: Graph, node: Node, fixed: frozenset[str]) -> _Role:
    """See _Role."""
    floats = tuple(i for i, t in enumerate(node.inputs) if t and graph.is_float(t))
    nothing = _Role(_NONE, floats)
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain or node.implicit_inputs or node.name in fixed:
        return nothing
    data = tuple(i for i in floats if graph.constant(node.inputs[i]) is None)
    return rule(graph, node, data) or nothing


def _moving(graph: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if 0 in data:
        return _Role(_SAME, (0,))
    return _Role(_FREE, (), {0: (0, 1)}) if node.op_type == "Gather" else None  # a table


def _aligned(graph: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if not data or (node.op_type == "Clip" and graph.opset < 11):  # its limits are attributes
        return None
    floats = (i for i, t in enumerate(node.inputs) if t and graph.is_float(t))
    return _Role(_TOGETHER, data, {i: (0, 1) for i in floats if i not in data})


def _power(graph: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if data != (0,):
        return None
    if node.op_type != "Pow":
        return _Role(_POWER, data, degree=_DEGREES[node.op_type])
    value = number(graph, node.inputs[1])
    if value == 0.5:
        return _Role(_POWER, data, degree=(1, 2))
    return _Role(_POWER, data, degree=(int(value), 1)) if value and value in (2, 3, 4) else None


def _weighted(_: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if node.op_type == "MatMul" and data == (0, 1):
        return _Role(_SUM, data)
    if node.op_type == "MatMul" and data:
        return _Role(_FREE, data, {1 - data[0]: (1, 1)})
    if data != (0,):
        return None
    biases = {i: (0, 1) for i in range(2, len(node.inputs)) if node.inputs[i]}
    return _Role(_FREE, data, {1: (1, 1)} | biases)


def _product(_: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if len(data) == 2:
        return _Role(_SUM if node.op_type == "Mul" else _DIFFERENCE, data)
    if not data:
        return None
    constant = 1 - data[0]
    if node.op_type == "Mul":
        return _Role(_FREE, data, {constant: (1, 1)})
    # x / c has c in the denominator; c / x has x there.
    return _Role(_FREE, data, {constant: (-1, -1) if constant else (-1, 1)})


def _normalization(_: Graph, node: Node, data: tuple[int, ...]) -> _Role | None:
    if data != (0,) or any(node.outputs[1:]):
        return None
    absorbed = {i: (0, 1) for i in (1, 2) if i < len(node.inputs) and node.inputs[i]}
    if node.op_type == "BatchNormalization":
        absorbed |= {3: (-1, 0), 4: (-2, 0)}  # of mean and variance
    return _Role(_FREE, data, absorbed)


_Rule = Callable[[Graph, Node, tuple[int, ...]], _Role | None]
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_INVARIANT, lambda _, __, ___: _Role(_ANY)),
    **dict.fromkeys(_FIRST, _moving),
    **dict.fromkeys(_ALIGNED, _aligned),
    **dict.fromkeys((*_DEGREES, "Pow"), _power),
    **dict.fromkeys(QUANTIZABLE_OPS, _weighted),
    **dict.fromkeys(("Div", "Mul"), _product),
    **dict.fromkeys(_NORMALIZATIONS, _normalization),
}


def _useful(graph: Graph, roles: Mapping[str, _Role], needs: Mapping[str, int]) -> dict[str, int]:
    """Those of `needs` that lead to a tensor which FP16 can hold, or into constants."""
    helped: dict[str, bool] = {}
    saturated: dict[str, bool] = {}
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            readers = graph.consumers.get(tensor, ())
            saturated[tensor] = bool(readers) and all(
                _saturates(graph, roles, r, saturated) for r in readers
            )
            helped[tensor] = any(
                _helps(roles[r.name], r, tensor, needs, helped) for r in readers
            ) and not (needs.get(tensor, 0) > 0 and saturated[tensor])
    return {t: s for t, s in needs.items() if s and helped.get(t) and t not in graph.outputs}


def _saturates(
    graph: Graph, roles: Mapping[str, _Role], node: Node, known: Mapping[str, bool]
) -> bool:
    if node.op_type in _SATURATING:
        return True
    plain = node.op_type in ("Mul", "Div") and roles[node.name].kind == _FREE
    passes = plain or node.op_type in ("Add", "Cast")
    return passes and all(t not in graph.outputs and known[t] for t in node.outputs)


def _helps(
    role: _Role, node: Node, tensor: str, needs: Mapping[str, int], helped: Mapping[str, bool]
) -> bool:
    if tensor not in [node.inputs[i] for i in role.data] or role.kind == _NONE:
        return False
    if role.kind == _FREE:
        return True
    return any(not needs.get(t) or helped.get(t, False) for t in node.outputs if t)


def _fits(limits: Limits, needs: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """`limits`, with `needs` within them, or else 0."""
    found = {}
    for tensor, (least, most) in limits.items():
        need = needs.get(tensor, 0)
        if need > 0:
            found[tensor] = need, max(most, need)
        elif need < 0:
            found[tensor] = min(least, need), need
        else:
            found[tensor] = min(least, 0), max(most, 0)
    return found


def _wishes(graph: Graph, roles: Mapping[str, _Role], needs: Mapping[str, int]) -> dict[str, int]:
    """By tensor the exponent that it had best be computed with, from what its readers need."""
    wishes: dict[str, int] = {}
    shown = _shown(graph)
    for node in reversed(graph.nodes):
        for tensor in node.outputs:
            if not tensor:
                continue
            asked = [
                _asked(graph, roles, reader, tensor, wishes, needs)
                for reader in graph.consumers.get(tensor, ())
            ]
            wishes[tensor] = _combined([*asked, needs.get(tensor, 0)])
            if tensor in shown:
                wishes[tensor] = 0
    return wishes


def _combined(asked: Sequence[int]) -> int:
    """The largest where one is positive: an overflow is worse than small numbers."""
    return max(asked) if max(asked) > 0 else min(asked)


def _shown(graph: Graph) -> frozenset[str]:
    """Tensors that keep their values: outputs, and what subgraphs read."""
    return frozenset(graph.outputs).union(*(n.implicit_inputs for n in graph.nodes))


def _asked(
    graph: Graph,
    roles: Mapping[str, _Role],
    node: Node,
    tensor: str,
    wishes: Mapping[str, int],
    needs: Mapping[str, int],
) -> int:
    """The exponent that a reader would like a tensor to have; 0 where it does not matter."""
    role = roles[node.name]
    if role.kind in (_FREE, _ANY, _NONE) or tensor not in [node.inputs[i] for i in role.data]:
        return 0
    wish = _combined([wishes.get(t, 0) for t in node.outputs if t])
    if role.kind == _POWER:
        return _operand_exponent(wish, role.degree)
    if role.kind == _SUM:
        if len({node.inputs[i] for i in role.data}) == 1:
            return _operand_exponent(wish, (2, 1))
        return wish if tensor == node.inputs[_carrier(graph, roles, node)] else 0
    if role.kind == _DIFFERENCE:
        return wish if tensor == node.inputs[0] and needs.get(node.outputs[0]) else 0
    return wish


def _carrier(graph: Graph, roles: Mapping[str, _Role], product: Node) -> int:
    """The position of the operand of a product of two activations that had best be scaled: one that
    constants before it scale for nothing, else the first."""
    for i in roles[product.name].data:
        tensor = product.inputs[i]
        while len(graph.consumers[tensor]) == 1 and (maker := graph.producers.get(tensor)):
            kind = roles[maker.name].kind
            if kind == _FREE:
                return i
            if kind != _SAME:
                break
            tensor = maker.inputs[0]
    return roles[product.name].data[0]


def _operand_exponent(wish: int, degree: tuple[int, int]) -> int:
    """The exponent nearest to 0 of an operand whose power has at least the exponent `wish`, or
    at most, where that is negative."""
    up, down = degree
    exact = wish * down / up
    return math.ceil(exact) if exact > 0 else math.floor(exact)


class _Emission:
    """Emits the nodes one by one, in execution order, each with the exponents that it needs."""

    def __init__(
        self,
        graph: Graph,
        roles: Mapping[str, _Role],
        fits: Limits,
        wishes: Mapping[str, int],
    ) -> None:
        self.editor = Editor(graph)
        self.held: dict[str, int] = {}
        self.products = 0
        self._shown = _shown(graph)
        self._graph, self._roles, self._fits, self._wishes = graph, roles, fits, wishes
        self._other: dict[tuple[str, int], str] = {}
        self._rules: Mapping[str, Callable[[Node, _Role, list[int]], tuple[list[int], int]]] = {
            _FREE: self._free,
            _SAME: self._same,
            _TOGETHER: self._together,
            _POWER: self._powered,
            _SUM: self._sum,
            _DIFFERENCE: self._difference,
            _ANY: lambda _, __, operands: (operands, 0),
            _NONE: lambda _, __, operands: ([0] * len(operands), 0),
        }

    def add(self, view: Node, original: onnx.NodeProto) -> None:
        """A node, behind products where its operands have the wrong exponents."""
        role = self._roles[view.name]
        operands = [self.held.get(view.inputs[i], 0) for i in role.data]
        wanted, result = self._rules[role.kind](view, role, operands)
        node = copy_node(original)
        for i, s in zip(role.data, wanted, strict=True):
            node.input[i] = self._with_exponent(view.inputs[i], s)
        first = wanted[0] if wanted else 0
        for i, (a, b) in role.absorbed.items():
            shift = a * first - b * result
            if shift:
                node.input[i] = self._constant(view.inputs[i], shift)
        if view.op_type in _NORMALIZATIONS and first:
            _rescale_epsilon(node, first)
        least = self._least_root(view, first) if result else 0.0
        if least:
            root, node.output[0] = node.output[0], self.editor.tensor_name(f"{node.output[0]}_open")
            self._emit(view, node, result)
            limit = self.editor.initializer(np.asarray(least, np.float32), f"{root}_least")
            self.editor.add("Max", node.output[0], limit, output=root)
        else:
            self._emit(view, node, result)

    def _least_root(self, node: Node, s: int) -> float:
        """What the root of v + ε cannot be below, just about, where 2⁻ˢ · ε is lost in FP16: a row
        of zeros would be divided by 0. In FP32 that limit changes nothing. 0 where no limit is
        needed."""
        total = self._graph.producers.get(node.inputs[0]) if node.op_type == "Sqrt" else None
        if total is None or total.op_type != "Add" or node.outputs[0] in self._shown:
            return 0.0
        if not any(_is_sum_of_squares(self._graph, tensor) for tensor in total.inputs):
            return 0.0  # v may be below 0, and the root below that of ε
        for tensor in total.inputs:
            value = number(self._graph, tensor)
            if value is not None and value >= FP16.smallest_subnormal:
                epsilon = value * 2.0**-s
                return 0.999 * math.sqrt(epsilon) if epsilon < FP16.smallest_normal else 0.0
        return 0.0

    def _emit(self, view: Node, node: onnx.NodeProto, result: int) -> None:
        restored = []
        for i, tensor in enumerate(view.outputs):
            if not tensor or not self._graph.is_float(tensor):
                continue
            if result and tensor in self._shown:
                node.output[i] = self.editor.tensor_name(f"{tensor}_scaled")
                restored.append((node.output[i], tensor))
            elif result:
                self.held[tensor] = result
        self.editor.emit(node)
        for scaled, tensor in restored:
            self._multiply(scaled, result, tensor)

    def _with_exponent(self, tensor: str, s: int) -> str:
        """The name of a tensor with this exponent."""
        now = self.held.get(tensor, 0)
        if now == s:
            return tensor
        if (tensor, s) not in self._other:
            name = self.editor.tensor_name(f"{tensor}_times_{_as_text(now - s)}")
            self._other[tensor, s] = self._multiply(tensor, now - s, name)
        return self._other[tensor, s]

    def _multiply(self, tensor: str, power: int, output: str) -> str:
        self.products += 1
        factor = self.editor.initializer(np.asarray(2.0**power, np.float32), f"{tensor}_power")
        return self.editor.add("Mul", tensor, factor, output=output, name=f"{output}_mul")

    def _constant(self, tensor: str, shift: int) -> str:
        if (tensor, -shift) not in self._other:
            values = self._graph.constant(tensor)
            assert values is not None
            with np.errstate(over="ignore"):
                scaled = np.ldexp(values, shift)
            scaled = np.where(np.isinf(values), values, _finite(scaled)).astype(values.dtype)
            name = f"{tensor}_times_{_as_text(shift)}"
            self._other[tensor, -shift] = self.editor.initializer(scaled, name)
        return self._other[tensor, -shift]

    def _fitted(self, tensor: str, s: int) -> int:
        """`s` where FP16 holds a tensor well with it, or nearly; else the nearest that does."""
        least, most = self._fits.get(tensor, (s, s))
        if least - _SLACK <= s <= most + _SLACK:
            return s
        return min(max(s, least), most)

    def _free(self, node: Node, _: _Role, operands: list[int]) -> tuple[list[int], int]:
        return operands, self._wishes[node.outputs[0]]

    def _same(self, node: Node, _: _Role, operands: list[int]) -> tuple[list[int], int]:
        s = operands[0]
        for tensor in (t for t in node.outputs if t):
            s = self._fitted(tensor, s)
        return [s], s

    def _together(self, node: Node, _: _Role, operands: list[int]) -> tuple[list[int], int]:
        output = node.outputs[0]
        s = operands[0] if len(set(operands)) == 1 else self._wishes[output]
        s = self._fitted(output, s)
        return [s] * len(operands), s

    def _powered(self, node: Node, role: _Role, operands: list[int]) -> tuple[list[int], int]:
        up, down = role.degree
        s = operands[0] + operands[0] % down  # the root of 2⁻ˢ is a power of two where s is even
        now = s * up // down
        fitted = self._fitted(node.outputs[0], now)
        if fitted != now:
            exact = fitted * down / up
            rounded_up = (fitted > now) == (up > 0)
            s = math.ceil(exact) if rounded_up else math.floor(exact)
        return [s], s * up // down

    def _sum(self, node: Node, role: _Role, operands: list[int]) -> tuple[list[int], int]:
        found, now = list(operands), sum(operands)
        fitted = self._fitted(node.outputs[0], now)
        if fitted != now and node.inputs[role.data[0]] == node.inputs[role.data[1]]:
            each = fitted / 2
            found = [math.ceil(each) if fitted > now else math.floor(each)] * 2
        elif fitted != now:
            found[_carrier(self._graph, self._roles, node)] += fitted - now
        return found, sum(found)

    def _difference(self, node: Node, _: _Role, operands: list[int]) -> tuple[list[int], int]:
        first, second = operands
        s = self._fitted(node.outputs[0], first - second)
        return [s + second, second], s


def _is_sum_of_squares(graph: Graph, tensor: str) -> bool:
    total = graph.producers.get(tensor)
    if total is None or total.op_type not in ("ReduceMean", "ReduceSum"):
        return False
    square = graph.producers.get(total.inputs[0])
    return square is not None and squared(graph, square) is not None


def _rescale_epsilon(node: onnx.NodeProto, s: int) -> None:
    """Let a normalization of x · 2⁻ˢ compute what it computed of x."""
    found = next((a for a in node.attribute if a.name == "epsilon"), None)
    if found is None:
        found = onnx.helper.make_attribute("epsilon", 1e-5)
        node.attribute.append(found)
    found.f = float(np.ldexp(np.float32(found.f), -2 * s))


def _finite(values: Array) -> Array:
    limit = np.finfo(values.dtype).max
    return np.clip(values, -limit, limit)


def _as_text(power: int) -> str:
    return f"2p{power}" if power >= 0 else f"2m{-power}"
