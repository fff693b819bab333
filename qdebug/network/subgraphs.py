"""The subgraphs of nodes (If, Loop, Scan): what they are, the names in them, and what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The subgraphs of a node (If, Loop, Scan)."""
    found = []
    for attribute in node.attribute:
        found += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    return found


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


def rename_reads(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Let `node` and the subgraphs in it read other tensors, by old name; in place."""
    for i, tensor in enumerate(node.input):
        node.input[i] = names.get(tensor, tensor)
    for body in bodies(node):
        own = {t.name for t in body.initializer} | {v.name for v in body.input}
        own |= {t for n in body.node for t in n.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            rename_reads(inner, outer)
        for value in body.output:
            value.name = outer.get(value.name, value.name)


def all_names(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """The names of all tensors and of all nodes, including subgraphs: ONNX forbids shadowing."""
    tensors = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    nodes = set()
    for node in graph.node:
        tensors.update(node.input)
        tensors.update(node.output)
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


def rename_tensors(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename tensors in place, in subgraphs too: ONNX forbids them to shadow outer names."""
    if not names:
        return
    for weight in graph.initializer:
        weight.name = names.get(weight.name, weight.name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(t, t) for t in node.input]
        node.output[:] = [names.get(t, t) for t in node.output]
        for body in bodies(node):
            rename_tensors(body, names)
