"""Layers: the groups of nodes that TensorRT fuses into one, and the unit that can be pinned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from qdebug.network.graph import Graph, Node

QUANTIZABLE_OPS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_ACTIVATIONS = frozenset(
    {"Relu", "Clip", "LeakyRelu", "PRelu", "Elu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish"}
)
_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SELF_GATES = frozenset({"Sigmoid", "HardSigmoid", "Softplus", "Tanh"})


@dataclass(frozen=True)
class Layer:
    """Nodes that compute as one.

    Attributes:
        name: the name of the anchor node, which does the work.
        op_type: of the anchor.
        nodes: names of all nodes, anchor first, in execution order.
        output: the tensor that the layer's error is measured at: its last node's first float
            output.
        quantizable: there is an INT8 kernel for the anchor.
        quantized_inputs: tensors that get Q/DQ when the layer runs in INT8: activations of the
            anchor and the other branch of a residual Add.
        weight: the constant second operand of the anchor, if it has one.
        weight_in_blocks: the weight may be quantized in blocks along what is summed over: it is the
            right operand of a product of matrices.
    """

    name: str
    op_type: str
    nodes: tuple[str, ...]
    output: str
    quantizable: bool
    quantized_inputs: tuple[str, ...] = ()
    weight: str | None = None
    weight_in_blocks: bool = False


@dataclass(frozen=True)
class Layers:
    """All layers of a graph in execution order. Every float node belongs to exactly one."""

    graph: Graph
    all: tuple[Layer, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Layer]:
        """Layers by name."""
        return {layer.name: layer for layer in self.all}

    @cached_property
    def of_node(self) -> Mapping[str, Layer]:
        """The layer each node belongs to."""
        return {node: layer for layer in self.all for node in layer.nodes}

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.all)


def find_layers(graph: Graph) -> Layers:
    """Group the nodes of `graph` as TensorRT's fusions do: Conv or MatMul with the bias Add, the
    activation and the residual Add that follow it; every other float node is its own layer."""
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    grouped: dict[str, list[Node]] = {}
    taken: set[str] = set()
    # Backwards: of two convolutions that meet in an Add, the later one is fused with it.
    for node in reversed(graph.nodes):
        if node.op_type in QUANTIZABLE_OPS and not node.domain and _is_float_node(graph, node):
            group = [node, *_followers(graph, node, order, taken)]
            taken.update(n.name for n in group)
            grouped[node.name] = group
    layers = []
    for node in graph.nodes:
        if node.name in grouped:
            layers.append(_quantizable_layer(graph, grouped[node.name]))
        elif node.name not in taken and _is_float_node(graph, node):
            output = next(t for t in node.outputs if t and graph.is_float(t))
            layers.append(Layer(node.name, node.op_type, (node.name,), output, False))
    return Layers(graph, tuple(layers))


def _is_float_node(graph: Graph, node: Node) -> bool:
    if node.op_type == "Constant":
        return False
    return any(t and graph.is_float(t) for t in node.outputs)


def _followers(graph: Graph, anchor: Node, order: Mapping[str, int], taken: set[str]) -> list[Node]:
    """The chain of nodes after `anchor` that a fused kernel takes in: at most one bias Add, one
    residual Add and one activation."""
    chain: list[Node] = []
    seen: set[str] = set()
    tensor = anchor.outputs[0]
    while tensor not in graph.outputs:
        step = _next_step(graph, tensor)
        if step is None or any(n.name in taken for n in step):
            break
        kind = _kind(graph, step, tensor)
        if kind is None or kind in seen or (kind != "activation" and "activation" in seen):
            break
        if kind == "residual" and not _is_last_branch(graph, step[0], tensor, order, anchor):
            break
        seen.add(kind)
        chain += step
        tensor = step[-1].outputs[0]
    return chain


def _next_step(graph: Graph, tensor: str) -> list[Node] | None:
    """The one reader of `tensor`, or the gate and product of x · sigmoid(x)."""
    readers = graph.consumers.get(tensor, ())
    if len(readers) == 1:
        return [readers[0]] if readers[0].outputs[0] else None
    if len(readers) == 2 and readers[0].op_type in _SELF_GATES and readers[1].op_type == "Mul":
        gate, product = readers
        if set(product.inputs) == {tensor, gate.outputs[0]}:
            only = graph.consumers.get(gate.outputs[0], ()) == (product,)
            hidden = gate.outputs[0] not in graph.outputs
            return [gate, product] if only and hidden else None
    return None


def _kind(graph: Graph, step: list[Node], tensor: str) -> str | None:
    node = step[0]
    if any(n.domain for n in step):
        return None
    if len(step) == 2:
        return "activation"
    if node.op_type in _ACTIVATIONS:
        return "activation" if node.inputs[0] == tensor else None
    if node.op_type == "BatchNormalization":
        return "normalization" if node.inputs[0] == tensor else None
    if node.op_type == "Add":
        other = _other(node, tensor)
        if other in graph.initializers:
            return "bias" if _is_per_channel(graph.initializers[other].dims) else None
        shape = graph.shapes.get(tensor)
        return "residual" if shape is not None and graph.shapes.get(other) == shape else None
    return None


def _is_per_channel(shape: Sequence[int]) -> bool:
    """One value, or one per channel; a table of positions is not a bias."""
    return sum(size != 1 for size in shape) <= 1


def _other(add: Node, tensor: str) -> str:
    return add.inputs[1] if add.inputs[0] == tensor else add.inputs[0]


def _is_last_branch(
    graph: Graph, add: Node, tensor: str, order: Mapping[str, int], anchor: Node
) -> bool:
    """Whether the other branch is ready before `anchor` runs, so that nothing waits on it. A Q/DQ
    pair of its own is where its values come from, wherever the model lists it."""
    other = _other(add, tensor)
    if other == tensor:
        return False
    producer = graph.producers.get(other)
    while producer is not None and producer.op_type in _PAIR:
        producer = graph.producers.get(producer.inputs[0])
    return producer is None or order[producer.name] < order[anchor.name]


def _quantizable_layer(graph: Graph, nodes: list[Node]) -> Layer:
    anchor = nodes[0]
    operands = anchor.inputs[:2]
    weight = next((t for t in operands if t in graph.initializers), None)
    inside = {t for n in nodes for t in n.outputs}
    activations = [t for t in operands if t not in graph.initializers]
    # Two constants multiplied: nothing flows through it, so there is nothing to quantize.
    quantizable = bool(activations)
    for node in nodes[1:]:
        if node.op_type == "Add" and quantizable:
            others = [t for t in node.inputs if t not in inside and t not in graph.initializers]
            activations += others
    unique = tuple(dict.fromkeys(activations))
    names = tuple(n.name for n in nodes)
    matrix = (
        anchor.op_type in ("Gemm", "MatMul")
        and weight == operands[1]
        and len(graph.initializers[operands[1]].dims) > 1
    )
    return Layer(
        anchor.name,
        anchor.op_type,
        names,
        nodes[-1].outputs[0],
        quantizable,
        unique,
        weight,
        matrix,
    )
