"""Which nodes of the user's ONNX file belong to each layer.

Other tools read the user's file, not the prepared graph: BatchNorm is still there, and nodes may
have no name or share one. Nodes are found by the tensors they write, which are unique in ONNX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layers
from qdebug.network.prepare import Model
from qdebug.network.subgraphs import free_name


@dataclass(frozen=True)
class FileNode:
    """A node of the user's file.

    Attributes:
        index: its position in the file.
        name: a unique one: its own where that is, else one that is made up.
        node: as in the file, where its name may be empty or shared with another node.
    """

    index: int
    name: str
    node: Node


@dataclass(frozen=True)
class FileNodes:
    """The nodes of the user's file that compute something, and the layers they belong to."""

    model: Model
    layers: Layers

    @cached_property
    def by_layer(self) -> Mapping[str, tuple[FileNode, ...]]:
        """The nodes of each layer, in the file's order."""
        found: dict[str, list[FileNode]] = {layer.name: [] for layer in self.layers}
        for index, owners in sorted(self._owners.items()):
            # An old Softmax is prepared as Flatten, Softmax, Reshape: the Softmax decides.
            op_type = self._nodes[index].node.op_type
            alike = [o for o in owners if self.model.graph.by_name[o].op_type == op_type]
            layer = self.layers.of_node.get((alike or owners)[0])
            if layer is not None:
                found[layer.name].append(self._nodes[index])
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def absent(self) -> frozenset[str]:
        """Layers that no node of the file belongs to: they are inside a model-local function."""
        present = {name for owners in self._owners.values() for name in owners}
        return frozenset(x.name for x in self.layers if present.isdisjoint(x.nodes))

    @property
    def tensors(self) -> frozenset[str]:
        """Names of the tensors and weights in the file."""
        return self._file.tensors

    @property
    def computed(self) -> frozenset[str]:
        """Names of the tensors that nodes of the file write, except constants."""
        return frozenset(self._writers.keys() - self._file.initializers.keys())

    @property
    def renamed(self) -> dict[int, str]:
        """The names that are made up, by the node's index."""
        return {n.index: n.name for n in self._nodes if n.name != n.node.name}

    @cached_property
    def _file(self) -> Graph:
        return Graph(self.model.file.proto)

    @cached_property
    def _nodes(self) -> tuple[FileNode, ...]:
        count = Counter(node.name for node in self._file.nodes)
        taken, found = set(count), []
        for index, node in enumerate(self._file.nodes):
            name = node.name
            if not name or count[name] > 1:
                output = next((t for t in node.outputs if t), index)
                name = free_name(name or f"{node.op_type}_{output}", taken)
            found.append(FileNode(index, name, node))
        return tuple(found)

    @cached_property
    def _writers(self) -> Mapping[str, int]:
        return {t: n.index for n in self._nodes for t in n.node.outputs if t}

    @cached_property
    def _owners(self) -> Mapping[int, list[str]]:
        """Index of a file node -> the prepared nodes that it became part of."""
        owners: dict[int, list[str]] = {}
        # prepare_model calls a node without a name the same.
        names = {n.name: n.index for n in self._nodes if n.node.name in ("", n.name)}
        for node in self.model.graph.nodes:
            indices = set(self._behind(node))
            origins = (names.get(name) for name in self.model.origins.get(node.name, ()))
            indices |= {i for i in origins if i is not None}
            for index in indices:
                owners.setdefault(index, []).append(node.name)
        return owners

    def _behind(self, node: Node) -> Iterator[int]:
        """The file nodes that write what `node` writes, and those before them whose outputs the
        prepared graph no longer has."""
        kept, pending, seen = self.model.graph.producers, list(node.outputs), set[int]()
        while pending:
            index = self._writers.get(pending.pop())
            if index is None or index in seen or index in self._constant:
                continue
            seen.add(index)
            yield index
            pending += [t for t in self._nodes[index].node.reads if t not in kept]

    @cached_property
    def _constant(self) -> frozenset[int]:
        """Nodes that depend on no input of the model."""
        constants, found = set(self._file.initializers), set()
        for index, node in enumerate(self._file.nodes):
            if constants.issuperset(node.reads):
                constants.update(node.outputs)
                found.add(index)
        return frozenset(found)
