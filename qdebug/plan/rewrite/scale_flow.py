"""How factors of a tensor's channels spread through a network, until constants take them in.

Multiplying a tensor by positive factors changes nothing when whatever computes it takes them in,
and whatever reads it takes their inverse in: weights do, along their output and input channels.
Operations that commute with a product (Relu, pools, sums of what is multiplied alike, attention's
product of probabilities and values) pass the factors on to what they read and what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.qdq import weight_axis
from qdebug.plan.rewrite.weights import Factors, divided_weight, input_channels


@dataclass
class Edits:
    """What is to be changed: constants that nodes read, by node and position, and tensors whose
    values change with them."""

    constants: dict[tuple[str, int], npt.NDArray[np.float64]] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)

    def value(self, graph: Graph, node: Node, position: int) -> npt.NDArray[np.float64]:
        """A constant that a node reads, as changed so far."""
        known = self.constants.get((node.name, position))
        if known is not None:
            return known
        stored = graph.constant(node.inputs[position])
        assert stored is not None
        return stored.astype(np.float64)

    def change(self, node: Node, position: int, value: npt.NDArray[np.float64]) -> None:
        """Give a node another constant to read."""
        self.constants[node.name, position] = value
        self.stale.add(node.inputs[position])


class Flow:
    """Factors on their way. They are arrays that broadcast against a tensor's last axes: [C, 1, 1]
    for images.

    Attributes:
        edits: all that was changed before, and what the factors change.
        readers: the factors that the weights of layers are divided by, [input channels], by anchor.
        writers: those that they are multiplied by, [output channels].
    """

    def __init__(self, graph: Graph, edits: Edits, *, spread: bool) -> None:
        """
        Args:
            spread: pass factors on to other readers of a tensor too; else it may have none.
        """
        self.graph = graph
        self.edits = Edits(dict(edits.constants), set(edits.stale))
        self.readers: dict[str, Factors] = {}
        self.writers: dict[str, Factors] = {}
        self._spread = spread
        self._tensors: dict[str, Factors] = {}
        self._tied: dict[str, dict[str, Factors]] = {}

    def multiply(self, tensor: str, factors: Factors, done: Collection[str] = ()) -> bool:
        """Whether a tensor can be multiplied; `done` are readers that make up for it already."""
        factors = _trimmed(factors)
        known = self._tensors.get(tensor)
        if known is not None:
            return _equal(known, factors)
        if np.all(factors == 1):
            return True
        self._tensors[tensor] = factors
        node = self.graph.producers.get(tensor)
        if node is None or node.domain or tensor in self.graph.outputs:
            return False
        if node.outputs[0] != tensor or any(node.outputs[1:]):
            return False
        self.edits.stale.add(tensor)
        absorb = _PRODUCERS.get(node.op_type)
        taken = absorb is not None and absorb(self, node, factors)
        found = taken or self._pass_on(node, "", factors)
        others = [n for n in self.graph.consumers.get(tensor, ()) if n.name not in done]
        return found and all(self._reader(n, tensor, factors) for n in others)

    def _reader(self, node: Node, tensor: str, factors: Factors) -> bool:
        """Whether another reader of a tensor takes its factors in, or passes them on."""
        if node.name in self._tied:
            tied = self._tied[node.name].get(tensor)
            return tied is not None and _equal(tied, factors)
        if not self._spread or node.domain or list(node.reads).count(tensor) != 1:
            return False
        if input_channels(self.graph, node) is not None and node.inputs[0] == tensor:
            return self._divide(node, factors)
        if node.op_type in ("Mul", "Div") and self._constants(node):
            return self._product(node, 1 / factors)
        return self._pass_on(node, tensor, factors)

    def _pass_on(self, node: Node, tensor: str, factors: Factors) -> bool:
        """Give every tensor of an operation its factors; `tensor` is the one that has those given,
        "" for the output."""
        rule = _TIES.get(node.op_type)
        tied = None if rule is None else rule(self, node, tensor, factors)
        if tied is None:
            return False
        self._tied[node.name] = tied
        return all(self.multiply(t, each) for t, each in tied.items())

    # Constants that take factors in.

    def _constants(self, node: Node) -> list[int]:
        known = self.graph.initializers
        return [i for i, t in enumerate(node.inputs) if t in known]

    def _times(self, node: Node, position: int, factors: Factors) -> bool:
        """Multiply a constant that a node reads, if it is one."""
        if position >= len(node.inputs) or not node.inputs[position]:
            return True  # an absent bias
        stored = self.graph.initializers.get(node.inputs[position])
        if stored is None or stored.data_type != onnx.TensorProto.FLOAT:
            return False
        value = self.edits.value(self.graph, node, position)
        self.edits.change(node, position, value * factors)
        return True

    def _divide(self, node: Node, factors: Factors) -> bool:
        """Divide a weight along its input channels."""
        count = input_channels(self.graph, node)
        convolution = node.op_type in ("Conv", "ConvTranspose")
        rank = len(self.graph.initializers[node.inputs[1]].dims) - 1 if convolution else 1
        if factors.size != count or factors.shape[0] != count or factors.ndim != rank:
            return False
        each = factors.reshape(-1)
        weight = self.edits.value(self.graph, node, 1)
        self.edits.change(node, 1, divided_weight(self.graph, node, weight, each))
        self.readers[node.name] = each
        return True

    def _weighted(self, node: Node, factors: Factors) -> bool:
        """Multiply a weight along its output channels, and the bias."""
        graph, weight = self.graph, node.inputs[1]
        if weight not in graph.initializers:
            return False
        if node.op_type == "ConvTranspose" and graph.attributes(node).get("group", 1) != 1:
            return False
        shape, axis = graph.initializers[weight].dims, weight_axis(node, graph, weight)
        rank = len(shape) - 1 if node.op_type in ("Conv", "ConvTranspose") else 1
        if axis is None or factors.ndim != rank or factors.size != factors.shape[0]:
            return False
        each = factors.reshape(-1)
        if shape[axis] != each.size:
            return False
        self.writers[node.name] = each
        return self._times(node, 1, along(each, axis, len(shape))) and self._times(node, 2, each)

    def _normalized(self, node: Node, factors: Factors) -> bool:
        """Multiply the scale and the bias of a normalization."""
        rank = len(self.graph.shapes.get(node.inputs[1], ()))
        batch = node.op_type == "BatchNormalization"
        fits = self._is_second(node.outputs[0], factors) if batch else factors.ndim == rank == 1
        each = factors.reshape(-1)
        return fits and self._times(node, 1, each) and self._times(node, 2, each)

    def _product(self, node: Node, factors: Factors) -> bool:
        """One factor of a product, or a divisor, takes them in."""
        places = self._constants(node)
        if not places:
            return False
        divisor = node.op_type == "Div" and places[0] == 1
        return self._times(node, places[0], 1 / factors if divisor else factors)

    # Operations that pass factors on: those of each activation, given those of one of them.

    def _same(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        if tensor not in ("", node.inputs[0]):
            return None
        return {node.inputs[0]: factors, node.outputs[0]: factors}

    def _pool(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        """Channels are the second axis, and only they may differ."""
        second = self._is_second(node.outputs[0], factors)
        return self._same(node, tensor, factors) if second else None

    def _is_second(self, tensor: str, factors: Factors) -> bool:
        rank = len(self.graph.shapes.get(tensor, ()))
        return factors.ndim == rank - 1 and factors.size == factors.shape[0]

    def _transpose(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        order = self.graph.attributes(node).get("perm")
        if order is None or factors.ndim > len(order):
            return None
        whole = factors.reshape((1,) * (len(order) - factors.ndim) + factors.shape)
        if tensor:
            return {tensor: factors, node.outputs[0]: np.transpose(whole, order)}
        return {node.inputs[0]: np.transpose(whole, np.argsort(order)), node.outputs[0]: factors}

    def _reshape(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        names = node.inputs[0], node.outputs[0]
        if tensor not in ("", names[0]):
            return None
        here, there = names if tensor else names[::-1]
        other = self._reshaped(factors, here, there)
        return None if other is None else {here: factors, there: other}

    def _reshaped(self, factors: Factors, here: str, there: str) -> Factors | None:
        """In the last axes of another shape that hold as many values."""
        before, after = self.graph.shapes.get(here), self.graph.shapes.get(there)
        if before is None or after is None or factors.ndim > len(before):
            return None
        last = before[len(before) - factors.ndim :]
        if not all(isinstance(d, int) for d in last):
            return None
        every = np.broadcast_to(factors, [int(d or 0) for d in last])
        for axes in range(1, len(after) + 1):
            inner = after[-axes:]
            if not all(isinstance(d, int) for d in inner):
                return None
            sizes = [int(d or 0) for d in inner]
            if np.prod(sizes) == every.size:
                return _reduced(every.reshape(sizes))
        return None

    def _values(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        """Attention: the columns of the second operand are those of the product."""
        if node.inputs[0] == node.inputs[1] or tensor not in ("", node.inputs[1]):
            return None
        if node.inputs[0] in self.graph.initializers or self._constants(node):
            return None
        if factors.ndim > 1 and factors.shape[-2] != 1:
            return None
        ranks = {len(self.graph.shapes.get(t, ())) for t in (*node.inputs, *node.outputs)}
        return {node.inputs[1]: factors, node.outputs[0]: factors} if len(ranks) == 1 else None

    def _sum(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        """All terms are multiplied alike, constants too."""
        places = self._constants(node)
        if len(set(node.inputs)) < len(node.inputs):
            return None
        terms = [t for i, t in enumerate(node.inputs) if i not in places]
        shapes = [self.graph.shapes.get(t) for t in (*terms, node.outputs[0])]
        if shapes[0] is None or any(shape != shapes[0] for shape in shapes):
            return None
        if not all(self._times(node, place, factors) for place in places):
            return None
        return dict.fromkeys((*terms, node.outputs[0]), factors)

    def _gate(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        """Of a product of two activations, one carries the factors, the other none."""
        if node.inputs[0] == node.inputs[1] or self._constants(node):
            return None
        whole = self.graph.shapes.get(node.outputs[0])
        full = [t for t in node.inputs if whole is not None and self.graph.shapes.get(t) == whole]
        carriers = [t for t in full if t == tensor] if tensor else full
        if not carriers:
            return None
        return {carriers[0]: factors, node.outputs[0]: factors}

    def _concat(self, node: Node, tensor: str, factors: Factors) -> dict[str, Factors] | None:
        """Each piece has its own; of the others, where only one is known, all are 1."""
        rank = len(self.graph.shapes.get(node.outputs[0], ()))
        axis = int(self.graph.attributes(node)["axis"])
        axis = axis - rank if axis >= 0 else axis
        if not rank or self._constants(node) or len(set(node.inputs)) < len(node.inputs):
            return None
        sizes = [(self.graph.shapes.get(t) or (None,) * rank)[axis] for t in node.inputs]
        if not all(isinstance(d, int) for d in sizes) or factors.ndim > rank:
            return None
        counts = [int(d or 0) for d in sizes]
        if tensor:
            place = node.inputs.index(tensor)
            before, behind = sum(counts[:place]), sum(counts[place + 1 :])
            whole = _expanded(factors, axis, counts[place])
            edges = [(0, 0)] * whole.ndim
            edges[axis] = (before, behind)
            factors = np.pad(whole, edges, constant_values=1.0)
        whole = _expanded(factors, axis, sum(counts))
        pieces = np.split(whole, np.cumsum(counts)[:-1], axis)
        return {**dict(zip(node.inputs, pieces, strict=True)), node.outputs[0]: whole}


_PRODUCERS: Mapping[str, Callable[[Flow, Node, Factors], bool]] = {
    **dict.fromkeys(("Mul", "Div"), Flow._product),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), Flow._weighted),
    **dict.fromkeys(
        ("BatchNormalization", "LayerNormalization", "RMSNormalization"), Flow._normalized
    ),
}
"""Operations whose constants take in the factors of what they give."""

_TIES: Mapping[str, Callable[[Flow, Node, str, Factors], dict[str, Factors] | None]] = {
    **dict.fromkeys(("Relu", "LeakyRelu", "PRelu", "Identity"), Flow._same),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), Flow._pool),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), Flow._reshape),
    **dict.fromkeys(("Add", "Sub"), Flow._sum),
    "Transpose": Flow._transpose,
    "MatMul": Flow._values,
    "Mul": Flow._gate,
    "Concat": Flow._concat,
}
"""Operations that commute with positive factors."""


def _trimmed(factors: Factors) -> Factors:
    """Without leading axes of one value."""
    while factors.ndim > 1 and factors.shape[0] == 1:
        factors = factors[0]
    return factors


def _equal(one: Factors, other: Factors) -> bool:
    one, other = _trimmed(one), _trimmed(other)
    return one.shape == other.shape and bool(np.array_equal(one, other))


def _expanded(factors: Factors, axis: int, size: int) -> Factors:
    """With `size` values along an axis, counted from the end."""
    missing = -axis - factors.ndim
    whole = factors.reshape((1,) * max(0, missing) + factors.shape)
    shape = list(whole.shape)
    shape[axis] = size
    return np.broadcast_to(whole, shape)


def _reduced(factors: Factors) -> Factors:
    """With one value along each axis on which they are the same."""
    for axis in range(factors.ndim):
        first = factors.take([0], axis)
        if np.array_equal(np.broadcast_to(first, factors.shape), factors):
            factors = first
    return factors
