"""The blocks of transformers: attention and MLP, each with its matrix products, told by structure.

A block is what stands beside a residual connection: of an Add of two activations, of which one is
computed from the other, the nodes on the way. What only they read, such as the keys of a decoder
that another network's output gives, belongs to it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layers

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_ATTENTION = frozenset({"Softmax", "Attention", "MultiHeadAttention"})
_FEWEST = 2
"""Layers with a product: one alone is no block."""


@dataclass(frozen=True)
class Block:
    """Layers that belong together.

    Attributes:
        name: for people: what it is, and where, such as "attention 3 (/encoder/layer.2)".
        layers: those that may be quantized, in execution order.
    """

    name: str
    layers: tuple[str, ...]


def transformer_blocks(graph: Graph, layers: Layers) -> tuple[Block, ...]:
    """The blocks of a network, in execution order; none where it has no matrix products beside
    residual connections. No layer is in two of them."""
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    found = list[Block]()
    taken, numbers = set[str](), dict[str, int]()
    for end in graph.nodes:
        if end.op_type != "Add":
            continue
        nodes = _beside(graph, end, order)
        of = dict.fromkeys(layers.of_node[n.name].name for n in nodes if n.name in layers.of_node)
        names = tuple(name for name in of if layers.by_name[name].quantizable)
        products = [name for name in names if layers.by_name[name].op_type in _PRODUCTS]
        if len(products) < max(_FEWEST, len(names)) or not taken.isdisjoint(names):
            continue
        taken.update(names)
        kind = "attention" if any(n.op_type in _ATTENTION for n in nodes) else "MLP"
        numbers[kind] = numbers.get(kind, 0) + 1
        found.append(Block(f"{kind} {numbers[kind]}{_place(names)}", names))
    return tuple(found)


def _beside(graph: Graph, end: Node, order: dict[str, int]) -> list[Node]:
    """The nodes between the operands of an Add, the one computed from the other, in execution
    order; none where neither is."""
    for skip, branch in (end.inputs, end.inputs[::-1]):
        start = graph.producers.get(skip)
        first = -1 if start is None else order[start.name]
        if skip in graph.initializers or branch not in graph.producers:
            continue
        before = {node.name: node for node in _ancestors(graph, branch, skip, first, order)}
        if before:
            inside = {**before, **_only_read_there(graph, before)}
            return sorted(inside.values(), key=lambda node: order[node.name])
    return []


def _ancestors(
    graph: Graph, tensor: str, skip: str, first: int, order: dict[str, int]
) -> Iterator[Node]:
    """What a tensor is computed by, later than the node number `first`, without what is not
    computed from `skip`; in execution order."""
    waiting, seen = [tensor], dict[str, Node]()
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is not None and order[node.name] > first and node.name not in seen:
            seen[node.name] = node
            waiting += node.reads
    known = {skip}
    for node in sorted(seen.values(), key=lambda n: order[n.name]):
        if not known.isdisjoint(node.reads):
            known.update(node.outputs)
            yield node


def _only_read_there(graph: Graph, inside: dict[str, Node]) -> dict[str, Node]:
    """The nodes, by name, whose outputs only `inside` reads, directly or through others of
    these."""
    found = dict[str, Node]()
    waiting = [t for node in inside.values() for t in node.reads]
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is None or node.name in inside or node.name in found:
            continue
        readers = [n.name for t in node.outputs for n in graph.consumers.get(t, ())]
        if all(name in inside or name in found for name in readers) and not any(
            t in graph.outputs for t in node.outputs
        ):
            found[node.name] = node
            waiting += node.reads
    return found


def _place(names: Sequence[str]) -> str:
    """Where it is, by what the names of its layers begin with; "" where they share no scope."""
    shared = posixpath.commonpath([f"/{name.strip('/')}" for name in names]).strip("/")
    return f" ({shared})" if shared else ""
