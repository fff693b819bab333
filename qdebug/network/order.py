"""The order of a graph's nodes: ONNX asks that each stands behind those whose outputs it reads."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

import onnx

from qdebug.network.graph import reads_of
from qdebug.network.subgraphs import bodies


def sort_nodes(graph: onnx.GraphProto) -> None:
    """Put the nodes of `graph`, and of the graphs inside of it, behind those that they read.

    ONNX Runtime sorts by itself and so loads files in any order, while onnx.checker, shape
    inference and ONNX Runtime with more outputs than the file has do not. Its own quantizer
    writes such files: it overlooks what the branches of an If read from outside of them. Nodes
    that are in order stay where they are, and nodes in a circle too: the checker names those.
    """
    reads = [frozenset(reads_of(node)) for node in graph.node]
    order = _order(reads, [tuple(node.output) for node in graph.node])
    if order != list(range(len(reads))):
        nodes = [graph.node[i] for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
    for node in graph.node:
        for inner in bodies(node):
            sort_nodes(inner)


def _order(reads: Sequence[frozenset[str]], writes: Sequence[tuple[str, ...]]) -> list[int]:
    """Positions in order; of those that may come next, always the first."""
    writer = {name: i for i, names in enumerate(writes) for name in names if name}
    waits = [{writer[name] for name in names if name in writer} for names in reads]
    readers: dict[int, list[int]] = defaultdict(list)
    for reader, before in enumerate(waits):
        for position in before:
            readers[position].append(reader)
    missing = [len(before) for before in waits]
    ready = [i for i, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(reads) else list(range(len(reads)))
