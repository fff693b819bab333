"""Multiply what a layer reads by one factor per channel, and divide its weight by the same: the
network computes what it computed, with other ranges between its layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdebug.model.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node

Factors = npt.NDArray[np.float64]
"""One per channel, positive, [channels]."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Rescaled:
    """A network of the same function.

    Attributes:
        proto: the network.
        stale: tensors whose values are others now, weights included.
        products: how many Mul nodes were inserted: the factors that nothing could take in.
    """

    proto: onnx.ModelProto
    stale: frozenset[str]
    products: int


@dataclass
class _Edits:
    """What is to be changed: constants that nodes read, by node and position, and tensors whose
    values change with them."""

    constants: dict[tuple[str, int], npt.NDArray[np.float64]] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)


def input_channels(graph: Graph, node: Node) -> int | None:
    """How many channels a layer's anchor reads and multiplies by its constant weight, its second
    operand; None where that is not how it computes."""
    axis = _input_axis(graph, node)
    if axis is None:
        return None
    shape = graph.initializers[node.inputs[1]].dims
    groups = graph.attributes(node).get("group", 1) if node.op_type == "Conv" else 1
    return int(shape[axis]) * int(groups)


def channel_axis(graph: Graph, node: Node) -> int:
    """The axis of those channels in what the anchor reads, counted from the end."""
    if node.op_type in ("Conv", "ConvTranspose"):
        return 1 - len(graph.initializers[node.inputs[1]].dims)
    return -1


def rescale_inputs(
    graph: Graph,
    factors: Mapping[str, Factors],
    *,
    untouched: Collection[str] = (),
    fold: bool = True,
) -> Rescaled:
    """`graph` with the first operand of some nodes multiplied by factors, and their weights divided
    by them. Nodes that read a tensor with the same factors share the product.

    Args:
        factors: by the name of the node, one for each of `input_channels`.
        untouched: nodes whose constants stay as they are.
        fold: let the constants of what computes the tensor take the factors in, where nobody else
            reads it and only operations that commute with a product lie between. Else, and
            elsewhere, a Mul is inserted.

    Raises:
        PlanError: as `check`.
    """
    edits = _Edits()
    for name, each in factors.items():
        _divide_weight(graph, graph.by_name[name], each, edits)
    products: list[tuple[Factors, list[Node]]] = []
    for each, nodes in _shared(graph, factors):
        if not (fold and _folded(graph, each, nodes, untouched, edits)):
            products.append((each, nodes))
    proto = _emit(graph, edits, products)
    return Rescaled(proto, frozenset(edits.stale), len(products))


def takes_in(graph: Graph, factors: Mapping[str, Factors], untouched: Collection[str] = ()) -> bool:
    """Whether `rescale_inputs` would insert no product."""
    groups = _shared(graph, factors)
    return all(_folded(graph, each, nodes, untouched, _Edits()) for each, nodes in groups)


def _shared(graph: Graph, factors: Mapping[str, Factors]) -> list[tuple[Factors, list[Node]]]:
    """Factors with the nodes that share them: they read the same tensor."""
    shared: dict[tuple[str, int, bytes], tuple[Factors, list[Node]]] = {}
    for name, each in factors.items():
        node = graph.by_name[name]
        values = np.asarray(each, np.float64)
        key = node.inputs[0], channel_axis(graph, node), values.tobytes()
        shared.setdefault(key, (values, []))[1].append(node)
    return list(shared.values())


def _folded(
    graph: Graph, factors: Factors, nodes: list[Node], untouched: Collection[str], edits: _Edits
) -> bool:
    """Whether what computes the tensor that `nodes` read takes the factors in; if so it does."""
    tensor = nodes[0].inputs[0]
    readers = {n.name for n in graph.consumers[tensor]}
    if readers != {n.name for n in nodes}:
        return False
    walk = _Fold(graph, frozenset(untouched), edits)
    if not walk.take_in(tensor, _along(factors, 0, -channel_axis(graph, nodes[0]))):
        return False
    walk.keep()
    return True


def _input_axis(graph: Graph, node: Node) -> int | None:
    """The axis of the weight along which a node sums over what it reads."""
    if node.op_type not in _WEIGHTED or len(node.inputs) < 2:
        return None
    weight = graph.initializers.get(node.inputs[1])
    if weight is None or node.inputs[0] in graph.initializers or len(weight.dims) < 2:
        return None
    if node.op_type == "Gemm":
        attributes = graph.attributes(node)
        return None if attributes.get("transA", 0) else int(attributes.get("transB", 0))
    if node.op_type == "MatMul":
        return len(weight.dims) - 2 if all(d == 1 for d in weight.dims[:-2]) else None
    return 1 if node.op_type == "Conv" else 0


def _value(graph: Graph, edits: _Edits, node: Node, position: int) -> npt.NDArray[np.float64]:
    """A constant that a node reads, as changed so far."""
    known = edits.constants.get((node.name, position))
    if known is not None:
        return known
    stored = graph.constant(node.inputs[position])
    assert stored is not None
    return stored.astype(np.float64)


def _divide_weight(graph: Graph, node: Node, factors: Factors, edits: _Edits) -> None:
    weight = _value(graph, edits, node, 1)
    edits.constants[node.name, 1] = divided_weight(graph, node, weight, factors)
    edits.stale.add(node.inputs[1])


def divided_weight(
    graph: Graph, node: Node, weight: npt.NDArray[np.floating[Any]], factors: Factors
) -> npt.NDArray[np.float64]:
    """The weight of a node, or another of its shape, divided by factors of `input_channels`."""
    axis = _input_axis(graph, node)
    assert axis is not None
    groups = int(graph.attributes(node).get("group", 1)) if node.op_type == "Conv" else 1
    if groups == 1:
        return np.asarray(weight / _along(factors, axis, weight.ndim), np.float64)
    rows = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    each = factors.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    return np.asarray((rows / each).reshape(weight.shape), np.float64)


def weight_reach(graph: Graph, node: Node) -> Factors:
    """The largest magnitude of a node's weight for each of `input_channels`."""
    axis, weight = _input_axis(graph, node), graph.constant(node.inputs[1])
    assert axis is not None and weight is not None
    groups = int(graph.attributes(node).get("group", 1)) if node.op_type == "Conv" else 1
    rows = np.abs(weight.astype(np.float64)).reshape(groups, -1, *weight.shape[1:])
    if groups == 1:
        reach: Factors = np.moveaxis(rows[0], axis, 0).reshape(weight.shape[axis], -1).max(axis=1)
    else:
        reach = rows.reshape(*rows.shape[:3], -1).max(axis=(1, 3)).reshape(-1)
    return reach


def _along(factors: Factors, axis: int, rank: int) -> Factors:
    shape = [1] * rank
    shape[axis] = -1
    return factors.reshape(shape)


class _Fold:
    """Factors of a tensor, taken in by the constants of what computes it. Nothing is changed before
    `keep`.

    Factors are arrays that broadcast against the tensor's last axes: [C, 1, 1] for images.
    """

    def __init__(self, graph: Graph, untouched: frozenset[str], edits: _Edits) -> None:
        self.graph = graph
        self.edits = edits
        self._untouched = untouched
        self._trial = _Edits(dict(edits.constants))

    def keep(self) -> None:
        """Change what was found."""
        self.edits.constants |= self._trial.constants
        self.edits.stale |= self._trial.stale

    def take_in(self, tensor: str, factors: Factors) -> bool:
        """Whether constants can take in the factors of `tensor`, whose readers all want them."""
        node = self.graph.producers.get(tensor)
        if node is None or node.domain or tensor in self.graph.outputs:
            return False
        if node.outputs[0] != tensor or any(node.outputs[1:]) or node.name in self._untouched:
            return False
        self._trial.stale.add(tensor)
        rule = _RULES.get(node.op_type)
        return rule is not None and rule(self, node, _trimmed(factors))

    def _behind(self, tensor: str, factors: Factors) -> bool:
        """Go on at what a node reads, where nobody else reads it."""
        alone = len(self.graph.consumers.get(tensor, ())) == 1
        return alone and self.take_in(tensor, factors)

    def _same(self, node: Node, factors: Factors) -> bool:
        return self._behind(node.inputs[0], factors)

    def _pool(self, node: Node, factors: Factors) -> bool:
        """Channels are the second axis, and only they may differ."""
        return self._is_second(node, factors) and self._behind(node.inputs[0], factors)

    def _is_second(self, node: Node, factors: Factors) -> bool:
        shape = self.graph.shapes.get(node.outputs[0])
        rank = 0 if shape is None else len(shape)
        return factors.ndim == rank - 1 and factors.size == factors.shape[0]

    def _transpose(self, node: Node, factors: Factors) -> bool:
        order = self.graph.attributes(node).get("perm")
        if order is None or factors.ndim > len(order):
            return False
        whole = factors.reshape((1,) * (len(order) - factors.ndim) + factors.shape)
        return self._behind(node.inputs[0], np.transpose(whole, np.argsort(order)))

    def _reshape(self, node: Node, factors: Factors) -> bool:
        """The last axes, of as many values before as after."""
        after = self.graph.shapes.get(node.outputs[0])
        before = self.graph.shapes.get(node.inputs[0])
        if after is None or before is None or factors.ndim > len(after):
            return False
        last = after[len(after) - factors.ndim :]
        if not all(isinstance(d, int) for d in last):
            return False
        every = np.broadcast_to(factors, [int(d or 0) for d in last])
        for axes in range(1, len(before) + 1):
            inner = before[-axes:]
            if not all(isinstance(d, int) for d in inner):
                return False
            sizes = [int(d or 0) for d in inner]
            if np.prod(sizes) == every.size:
                return self._behind(node.inputs[0], _reduced(every.reshape(sizes)))
        return False

    def _matmul(self, node: Node, factors: Factors) -> bool:
        if node.inputs[1] in self.graph.initializers:
            return self._linear(node, factors)
        if factors.ndim > 1 and factors.shape[-2] != 1:
            return False
        if len(set(node.inputs)) < 2 or node.inputs[0] in self.graph.initializers:
            return False
        ranks = {len(self.graph.shapes.get(t, ())) for t in (*node.inputs, *node.outputs)}
        return len(ranks) == 1 and self._behind(node.inputs[1], factors)

    def _multiply(self, node: Node, position: int, factors: Factors) -> bool:
        """Multiply a constant that a node reads, if it is one."""
        if position >= len(node.inputs) or not node.inputs[position]:
            return True  # an absent bias
        stored = self.graph.initializers.get(node.inputs[position])
        if stored is None or stored.data_type != onnx.TensorProto.FLOAT:
            return False
        value = _value(self.graph, self._trial, node, position)
        self._trial.constants[node.name, position] = value * factors
        self._trial.stale.add(node.inputs[position])
        return True

    def _linear(self, node: Node, factors: Factors) -> bool:
        """Multiply a matrix along its output channels, and the bias."""
        graph = self.graph
        if node.inputs[1] not in graph.initializers or factors.ndim != 1:
            return False
        transposed = node.op_type == "Gemm" and graph.attributes(node).get("transB", 0)
        rows = factors.reshape(-1, 1) if transposed else factors
        shape = graph.initializers[node.inputs[1]].dims
        if len(shape) < 2 or shape[-2 if transposed else -1] != factors.size:
            return False
        return self._multiply(node, 1, rows) and self._multiply(node, 2, factors)

    def _conv(self, node: Node, factors: Factors) -> bool:
        """Multiply a kernel along its output channels, and the bias."""
        graph = self.graph
        if node.inputs[1] not in graph.initializers:
            return False
        shape = graph.initializers[node.inputs[1]].dims
        each = factors.reshape(-1)
        if factors.ndim != len(shape) - 1 or factors.size != factors.shape[0]:
            return False
        if node.op_type == "ConvTranspose":
            if graph.attributes(node).get("group", 1) != 1 or shape[1] != each.size:
                return False
            rows = _along(each, 1, len(shape))
        else:
            if shape[0] != each.size:
                return False
            rows = _along(each, 0, len(shape))
        return self._multiply(node, 1, rows) and self._multiply(node, 2, each)

    def _layer_norm(self, node: Node, factors: Factors) -> bool:
        one = factors.ndim == 1 and len(self.graph.shapes.get(node.inputs[1], ())) == 1
        return one and self._multiply(node, 1, factors) and self._multiply(node, 2, factors)

    def _batch_norm(self, node: Node, factors: Factors) -> bool:
        each = factors.reshape(-1)
        second = self._is_second(node, factors)
        return second and self._multiply(node, 1, each) and self._multiply(node, 2, each)

    def _product(self, node: Node, factors: Factors) -> bool:
        """One factor of a product takes them in."""
        fixed = [t in self.graph.initializers for t in node.inputs]
        if not any(fixed):
            return False
        place = fixed.index(True)
        divisor = node.op_type == "Div" and place == 1
        return self._multiply(node, place, 1 / factors if divisor else factors)

    def _sum(self, node: Node, factors: Factors) -> bool:
        """Both terms take them in."""
        whole = self.graph.shapes.get(node.outputs[0])
        if len(set(node.inputs)) < len(node.inputs):
            return False
        for position, tensor in enumerate(node.inputs):
            if tensor in self.graph.initializers:
                done = self._multiply(node, position, factors)
            else:
                same = whole is not None and self.graph.shapes.get(tensor) == whole
                done = same and self._behind(tensor, factors)
            if not done:
                return False
        return True


_RULES: Mapping[str, Callable[[_Fold, Node, Factors], bool]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Identity"), _Fold._same),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _Fold._pool),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _Fold._reshape),
    **dict.fromkeys(("Mul", "Div"), _Fold._product),
    **dict.fromkeys(("Add", "Sub"), _Fold._sum),
    **dict.fromkeys(("Conv", "ConvTranspose"), _Fold._conv),
    "Transpose": _Fold._transpose,
    "MatMul": _Fold._matmul,
    "Gemm": _Fold._linear,
    "LayerNormalization": _Fold._layer_norm,
    "BatchNormalization": _Fold._batch_norm,
}
"""How an operation passes positive factors of what it gives on to what it reads."""


def _trimmed(factors: Factors) -> Factors:
    """Without leading axes of one value."""
    while factors.ndim > 1 and factors.shape[0] == 1:
        factors = factors[0]
    return factors


def _reduced(factors: Factors) -> Factors:
    """With one value along each axis on which they are the same."""
    for axis in range(factors.ndim):
        first = factors.take([0], axis)
        if np.array_equal(np.broadcast_to(first, factors.shape), factors):
            factors = first
    return factors


def _emit(
    graph: Graph, edits: _Edits, products: list[tuple[Factors, list[Node]]]
) -> onnx.ModelProto:
    editor = Editor(graph)
    places = {n.name: i for i, (_, nodes) in enumerate(products) for n in nodes}
    made: dict[int, str] = {}
    only = _only_readings(graph)
    replaced: dict[str, onnx.TensorProto] = {}
    for proto in graph.proto.graph.node:
        view = graph.by_name[proto.name]
        node = copy_node(proto)
        for position, tensor in enumerate(view.inputs):
            value = edits.constants.get((view.name, position))
            if value is None:
                continue
            value = np.asarray(value, np.float32)
            if tensor in only:  # the constant keeps its name
                replaced[tensor] = numpy_helper.from_array(value, tensor)
            else:
                node.input[position] = editor.initializer(value, f"{tensor}_rescaled")
        if view.name in places:
            number = places[view.name]
            each, _ = products[number]
            tensor = view.inputs[0]
            if number not in made:
                shape = _along(each, 0, -channel_axis(graph, view))
                scale = editor.initializer(shape.astype(np.float32), f"{tensor}_factors")
                made[number] = editor.tensor_name(f"{tensor}_rescaled")
                name = editor.node_name(f"{tensor}_rescale")
                editor.add("Mul", tensor, scale, output=made[number], name=name)
            node.input[0] = made[number]
        editor.emit(node)
    editor.nodes = [
        n for n in editor.nodes if not (n.op_type == "Constant" and n.output[0] in replaced)
    ]
    stored = [t for t in editor.proto.graph.initializer if t.name not in replaced]
    del editor.proto.graph.initializer[:]
    editor.proto.graph.initializer.extend([*stored, *replaced.values()])
    return editor.finish("the rescaled network")


def _only_readings(graph: Graph) -> frozenset[str]:
    """Constants of the graph itself that are read once."""
    counts: dict[str, int] = {}
    for node in graph.nodes:
        for tensor in node.reads:
            counts[tensor] = counts.get(tensor, 0) + 1
    own = {t.name for t in graph.proto.graph.initializer}
    own |= {n.outputs[0] for n in graph.nodes if n.op_type == "Constant"}
    return frozenset(t for t in own if counts.get(t, 0) == 1 and t not in graph.outputs)
