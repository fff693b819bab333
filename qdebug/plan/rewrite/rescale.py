"""Multiply what a layer reads by one factor per channel, and divide its weight by the same: the
network computes what it computed, with other ranges between its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.scale_flow import Edits, Flow
from qdebug.plan.rewrite.weights import (
    Factors,
    channel_axis,
    divided_weight,
    input_channels,
)


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


def rescale_inputs(graph: Graph, factors: Mapping[str, Factors]) -> Rescaled:
    """`graph` with the first operand of some nodes multiplied by factors, and their weights divided
    by them. Nodes that read a tensor with the same factors share the product.

    The constants of what computes the tensor take the factors in, where nobody else reads it and
    only operations that commute with a product lie between. Elsewhere a Mul is inserted.

    Args:
        factors: by the name of the node, one for each of `input_channels`.

    Raises:
        PlanError: as `check`.
    """
    edits = Edits()
    for name, each in factors.items():
        _divide(graph, graph.by_name[name], each, edits)
    products: list[tuple[Factors, list[Node]]] = []
    for each, nodes in _shared(graph, factors):
        if not _folded(graph, each, nodes, edits):
            products.append((each, nodes))
    proto = _emit(graph, edits, products)
    return Rescaled(proto, frozenset(edits.stale), len(products))


def takes_in(graph: Graph, factors: Mapping[str, Factors]) -> bool:
    """Whether `rescale_inputs` would insert no product."""
    groups = _shared(graph, factors)
    return all(_folded(graph, each, nodes, Edits()) for each, nodes in groups)


@dataclass(frozen=True)
class Stream:
    """Channels that can only be multiplied together, by what computes and what reads them.

    Attributes:
        tensor: one of those that hold them.
        count: how many.
        readers: by anchor of a layer, the number of the channel that each of its input channels
            is, int [input channels], -1 for none of them.
        writers: so of output channels.
    """

    tensor: str
    count: int
    readers: Mapping[str, npt.NDArray[np.int64]]
    writers: Mapping[str, npt.NDArray[np.int64]]


def streams(graph: Graph) -> list[Stream]:
    """What can be multiplied in `graph` without a product, layer by layer in execution order; each
    layer is a reader in one of them at most."""
    found: list[Stream] = []
    known: set[str] = set()
    for node in graph.nodes:
        count = input_channels(graph, node)
        if count is None or node.name in known:
            continue
        flow = Flow(graph, Edits(), spread=True)
        numbers = (
            np.arange(count, dtype=np.float64) + 2
        )  # 1 is the factor of what is not multiplied
        if not flow.multiply(node.inputs[0], _on_input(graph, node, numbers)):
            continue
        sides = [
            {
                name: np.maximum(np.rint(each).astype(np.int64) - 2, -1)
                for name, each in side.items()
            }
            for side in (flow.readers, flow.writers)
        ]
        found.append(Stream(node.inputs[0], count, sides[0], sides[1]))
        known |= set(sides[0])
    return found


def rescale_streams(graph: Graph, factors: Sequence[tuple[Stream, Factors]]) -> Rescaled:
    """`graph` with the channels of streams multiplied by factors.

    Raises:
        PlanError: as `check`.
    """
    edits = Edits()
    for stream, each in factors:
        flow = Flow(graph, edits, spread=True)
        reader = next(n for n in graph.consumers[stream.tensor] if n.name in stream.readers)
        if flow.multiply(stream.tensor, _on_input(graph, reader, each)):
            edits = flow.edits
    return Rescaled(_emit(graph, edits, []), frozenset(edits.stale), 0)


def _on_input(graph: Graph, node: Node, factors: Factors) -> Factors:
    """Factors, as they multiply what a node reads."""
    return along(factors, 0, -channel_axis(graph, node))


def _shared(graph: Graph, factors: Mapping[str, Factors]) -> list[tuple[Factors, list[Node]]]:
    """Factors with the nodes that share them: they read the same tensor."""
    shared: dict[tuple[str, int, bytes], tuple[Factors, list[Node]]] = {}
    for name, each in factors.items():
        node = graph.by_name[name]
        values = np.asarray(each, np.float64)
        key = node.inputs[0], channel_axis(graph, node), values.tobytes()
        shared.setdefault(key, (values, []))[1].append(node)
    return list(shared.values())


def _folded(graph: Graph, factors: Factors, nodes: list[Node], edits: Edits) -> bool:
    """Whether what computes the tensor that `nodes` read takes the factors in; if so it does."""
    tensor = nodes[0].inputs[0]
    readers = {n.name for n in graph.consumers[tensor]}
    if readers != {n.name for n in nodes}:
        return False
    flow = Flow(graph, edits, spread=False)
    if not flow.multiply(tensor, _on_input(graph, nodes[0], factors), readers):
        return False
    edits.constants, edits.stale = flow.edits.constants, flow.edits.stale
    return True


def _divide(graph: Graph, node: Node, factors: Factors, edits: Edits) -> None:
    weight = edits.value(graph, node, 1)
    edits.change(node, 1, divided_weight(graph, node, weight, factors))


def _emit(
    graph: Graph, edits: Edits, products: list[tuple[Factors, list[Node]]]
) -> onnx.ModelProto:
    editor = Editor(graph)
    places = {n.name: i for i, (_, nodes) in enumerate(products) for n in nodes}
    made: dict[int, str] = {}
    for proto in graph.proto.graph.node:
        view = graph.by_name[proto.name]
        node = copy_node(proto)
        for position, tensor in enumerate(view.inputs):
            value = edits.constants.get((view.name, position))
            if value is not None:
                values = np.asarray(value, np.float32)
                node.input[position] = editor.initializer(values, f"{tensor}_rescaled")
        if view.name in places:
            number = places[view.name]
            each, _ = products[number]
            tensor = view.inputs[0]
            if number not in made:
                shape = along(each, 0, -channel_axis(graph, view))
                scale = editor.initializer(shape.astype(np.float32), f"{tensor}_factors")
                made[number] = editor.tensor_name(f"{tensor}_rescaled")
                name = editor.node_name(f"{tensor}_rescale")
                editor.add("Mul", tensor, scale, output=made[number], name=name)
            node.input[0] = made[number]
        editor.emit(node)
    return editor.finish("the rescaled network")
