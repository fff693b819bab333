"""Multiply what a layer reads by one factor per channel, and divide its weight by the same: the
network computes what it computed, with other ranges between its layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from qdebug.model.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node

Factors = npt.NDArray[np.float64]
"""One per channel, positive, [channels]."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_HOMOGENEOUS = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "Identity", "MaxPool", "AveragePool", "GlobalAveragePool"}
    | {"GlobalMaxPool"}
)
"""f(s·x) = s·f(x) for s > 0, channel by channel."""


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
    shared: dict[tuple[str, bytes], list[Node]] = {}
    for name, each in factors.items():
        node = graph.by_name[name]
        _divide_weight(graph, node, each, edits)
        key = node.inputs[0], np.asarray(each, np.float64).tobytes()
        shared.setdefault(key, []).append(node)
    products: list[tuple[Factors, list[Node]]] = []
    for (tensor, data), nodes in shared.items():
        each = np.frombuffer(data, np.float64)
        readers = {n.name for n in graph.consumers[tensor]}
        alone = readers == {n.name for n in nodes} and len(readers) == len(nodes)
        walk = _Fold(graph, frozenset(untouched), edits)
        if not (fold and alone and walk.take_in(tensor, channel_axis(graph, nodes[0]), each)):
            products.append((each, nodes))
        else:
            walk.keep()
    proto = _emit(graph, edits, products)
    return Rescaled(proto, frozenset(edits.stale), len(products))


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
    axis = _input_axis(graph, node)
    assert axis is not None
    weight = _value(graph, edits, node, 1)
    groups = int(graph.attributes(node).get("group", 1)) if node.op_type == "Conv" else 1
    if groups == 1:
        divided = weight / _along(factors, axis, weight.ndim)
    else:
        rows = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        each = factors.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
        divided = (rows / each).reshape(weight.shape)
    edits.constants[node.name, 1] = divided
    edits.stale.add(node.inputs[1])


def _along(factors: Factors, axis: int, rank: int) -> Factors:
    shape = [1] * rank
    shape[axis] = -1
    return factors.reshape(shape)


class _Fold:
    """Factors of a tensor, taken in by the constants of what computes it. Nothing is changed before
    `keep`."""

    def __init__(self, graph: Graph, untouched: frozenset[str], edits: _Edits) -> None:
        self.graph = graph
        self.edits = edits
        self._untouched = untouched
        self._trial = _Edits(dict(edits.constants))

    def keep(self) -> None:
        """Change what was found."""
        self.edits.constants |= self._trial.constants
        self.edits.stale |= self._trial.stale

    def take_in(self, tensor: str, axis: int, factors: Factors) -> bool:
        """Whether constants can take in the factors of `tensor`, whose readers all want them.

        Args:
            axis: of the channels, counted from the end.
        """
        node = self.graph.producers.get(tensor)
        if node is None or node.domain or tensor in self.graph.outputs:
            return False
        if node.outputs[0] != tensor or any(node.outputs[1:]) or node.name in self._untouched:
            return False
        self._trial.stale.add(tensor)
        if node.op_type in _HOMOGENEOUS:
            return self._behind(node.inputs[0], axis, factors)
        if node.op_type in ("Transpose", "Flatten"):
            before = self._axis_before(node, axis)
            return before is not None and self._behind(node.inputs[0], before, factors)
        if node.op_type in _WEIGHTED:
            return self._weighted(node, axis, factors)
        if node.op_type in ("LayerNormalization", "BatchNormalization"):
            return self._normalization(node, axis, factors)
        if node.op_type in ("Add", "Sub", "Mul", "Div"):
            return self._elementwise(node, axis, factors)
        return False

    def _behind(self, tensor: str, axis: int, factors: Factors) -> bool:
        """Go on at what a node reads, where nobody else reads it."""
        alone = len(self.graph.consumers.get(tensor, ())) == 1
        return alone and self.take_in(tensor, axis, factors)

    def _axis_before(self, node: Node, axis: int) -> int | None:
        attributes = self.graph.attributes(node)
        if node.op_type == "Transpose":
            order = attributes.get("perm")
            if order is None:
                return None
            return int(order[axis + len(order)]) - len(order)
        shape = self.graph.shapes.get(node.inputs[0])
        flat = shape is not None and all(d == 1 for d in shape[2:]) and len(shape) > 1
        if not flat or shape is None or attributes.get("axis", 1) != 1 or axis != -1:
            return None
        return 1 - len(shape)

    def _multiply(
        self, node: Node, position: int, axis: int, factors: Factors, *, invert: bool = False
    ) -> bool:
        """Multiply a constant that a node reads, if it is one, along its axis from the end."""
        if position >= len(node.inputs) or not node.inputs[position]:
            return True  # an absent bias
        stored = self.graph.initializers.get(node.inputs[position])
        if stored is None or stored.data_type != onnx.TensorProto.FLOAT:
            return False
        value = _value(self.graph, self._trial, node, position)
        along = _along(1 / factors if invert else factors, 0, -axis)
        self._trial.constants[node.name, position] = value * along
        self._trial.stale.add(node.inputs[position])
        return True

    def _weighted(self, node: Node, axis: int, factors: Factors) -> bool:
        """Multiply a weight along its output channels, and the bias."""
        graph = self.graph
        if node.inputs[1] not in graph.initializers:
            return False
        rank = len(graph.initializers[node.inputs[1]].dims)
        attributes = graph.attributes(node)
        if node.op_type in ("Conv", "ConvTranspose"):
            grouped = node.op_type == "ConvTranspose" and attributes.get("group", 1) != 1
            if axis != 1 - rank or grouped:
                return False
            outputs = -rank if node.op_type == "Conv" else 1 - rank
            return self._multiply(node, 1, outputs, factors) and self._multiply(
                node, 2, -1, factors
            )
        if axis != -1 or rank < 2:
            return False
        transposed = node.op_type == "Gemm" and attributes.get("transB", 0)
        outputs = -2 if transposed else -1
        return self._multiply(node, 1, outputs, factors) and self._multiply(node, 2, -1, factors)

    def _normalization(self, node: Node, axis: int, factors: Factors) -> bool:
        last = node.op_type == "LayerNormalization"
        if last and (axis != -1 or len(self.graph.shapes.get(node.inputs[1], ())) != 1):
            return False
        if not last and self._rank(node.outputs[0]) + axis != 1:
            return False
        return self._multiply(node, 1, -1, factors) and self._multiply(node, 2, -1, factors)

    def _rank(self, tensor: str) -> int:
        return len(self.graph.shapes.get(tensor, ()))

    def _elementwise(self, node: Node, axis: int, factors: Factors) -> bool:
        """Of a sum both terms take the factors in, of a product one factor does."""
        fixed = [t in self.graph.initializers for t in node.inputs]
        if node.op_type in ("Mul", "Div"):
            if not any(fixed):
                return False
            place = fixed.index(True)
            return self._multiply(
                node, place, axis, factors, invert=node.op_type == "Div" and place == 1
            )
        if len(set(node.inputs)) < len(node.inputs):
            return False
        whole = self.graph.shapes.get(node.outputs[0])
        for position, tensor in enumerate(node.inputs):
            if fixed[position]:
                done = self._multiply(node, position, axis, factors)
            else:
                same = whole is not None and self.graph.shapes.get(tensor) == whole
                done = same and self._behind(tensor, axis, factors)
            if not done:
                return False
        return True


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
