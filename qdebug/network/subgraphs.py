"""The subgraphs of nodes (If, Loop, Scan): what they are, the names in them, and what they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node (If, Loop, Scan)."""
    held = []
    for attribute in node.attribute:
        held += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    return held


def nodes_in(body: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a body and of the bodies in it, without constants."""
    for node in body.node:
        if node.op_type != "Constant":
            yield node
        for inner in bodies(node):
            yield from nodes_in(inner)


def size_of(body: onnx.GraphProto) -> int:
    """How many `nodes_in` a body there are."""
    return sum(1 for _ in nodes_in(body))


def own_names(body: onnx.GraphProto) -> set[str]:
    """The tensors that a graph defines itself, those in its bodies left out."""
    written = {t for node in body.node for t in node.output if t}
    return written | {t.name for t in body.initializer} | {v.name for v in body.input}


def outer_reads(node: onnx.NodeProto) -> Iterator[str]:
    """The tensors that the subgraphs of a node read from outside of them."""
    for body in bodies(node):
        own = own_names(body)
        inner = (t for n in body.node for t in reads_of(n))
        yield from (t for t in (*inner, *(v.name for v in body.output)) if t not in own)


def reads_of(node: onnx.NodeProto) -> list[str]:
    """Every tensor that a node depends on, those that its subgraphs read from outside included."""
    return [*(t for t in node.input if t), *outer_reads(node)]


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let `node` and the subgraphs in it read other tensors, by old name; in place."""
    node.input[:] = [names.get(t, t) for t in node.input]
    for body in bodies(node):
        own = own_names(body)
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename_reads(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def all_names(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """The names of all tensors and of all nodes, including subgraphs: ONNX forbids shadowing."""
    tensors, nodes = own_names(graph), set()
    for node in graph.node:
        tensors.update(node.input)
        nodes.add(node.name)
        for body in bodies(node):
            inner_tensors, inner_nodes = all_names(body)
            tensors |= inner_tensors
            nodes |= inner_nodes
    return tensors, nodes


def free_name(wanted: str, taken: set[str]) -> str:
    """`wanted`, with a number if it is taken; adds it to `taken`."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def made_up_name(node: onnx.NodeProto) -> str:
    """What a node without a name is called."""
    return f"{node.op_type}_{next((t for t in node.output if t), '')}"


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors in place, in subgraphs too: ONNX forbids them to shadow outer names."""
    for field in (graph.initializer, graph.input, graph.output, graph.value_info):
        for value in field:
            value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(t, t) for t in node.input]
        node.output[:] = [names.get(t, t) for t in node.output]
        for body in bodies(node):
            rename_tensors(body, names)


def refill(field: Any, messages: Iterable[Any]) -> None:
    """Let a repeated field of a message hold these, some of which may be its own; in place."""
    held = list(messages)
    del field[:]
    field.extend(held)


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Those of `nodes`, in execution order, that `outputs` depend on."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(reads_of(node))
            kept.append(node)
    return kept[::-1]


def prune(graph: onnx.GraphProto) -> None:
    """Drop, in place, nodes that no output depends on, and constants that nothing reads."""
    refill(graph.node, needed(graph.node, (v.name for v in graph.output)))
    read = {t for n in graph.node for t in reads_of(n)} | {v.name for v in graph.output}
    refill(graph.initializer, [t for t in graph.initializer if t.name in read])


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put the nodes of `graph`, and of the graphs inside of it, behind those that they read.

    ONNX Runtime sorts by itself and so loads files in any order, while onnx.checker, shape
    inference and ONNX Runtime with more outputs than the file has do not. Its own quantizer
    writes such files: it overlooks what the branches of an If read from outside of them. Nodes
    that are in order stay where they are, and nodes in a circle too: the checker names those.
    """
    writer = {t: i for i, node in enumerate(graph.node) for t in node.output if t}
    before = {
        i: {writer[t] for t in reads_of(node) if t in writer} for i, node in enumerate(graph.node)
    }
    if any(position <= max(others, default=-1) for position, others in before.items()):
        sorter = TopologicalSorter(before)
        with suppress(CycleError):
            refill(graph.node, [graph.node[i] for i in sorter.static_order()])
    for node in graph.node:
        for inner in bodies(node):
            sort_nodes(inner)
