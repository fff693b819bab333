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
        name: as in the file; it may be empty or shared with another node.
    """

    index: int
    name: str
    op_type: str


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
            node = self._nodes[index]
            # An old Softmax is prepared as Flatten, Softmax, Reshape: the Softmax decides.
            alike = [o for o in owners if self.model.graph.by_name[o].op_type == node.op_type]
            layer = self.layers.of_node.get((alike or owners)[0])
            if layer is not None:
                found[layer.name].append(self._file_node(index))
        return {name: tuple(nodes) for name, nodes in found.items()}

    @cached_property
    def absent(self) -> frozenset[str]:
        """Layers that no node of the file belongs to: they are inside a model-local function."""
        present = {name for owners in self._owners.values() for name in owners}
        return frozenset(x.name for x in self.layers if present.isdisjoint(x.nodes))

    @cached_property
    def tensors(self) -> frozenset[str]:
        """Names of the tensors and weights in the file."""
        return self._file.tensors

    @cached_property
    def computed(self) -> frozenset[str]:
        """Names of the tensors that nodes of the file write, except constants."""
        return frozenset(self._writers.keys() - self._file.initializers.keys())

    @cached_property
    def renamed(self) -> Mapping[int, str]:
        """A unique name for every node of the file that has none, by the node's index."""
        taken, renamed = set(self._count), {}
        for index, node in enumerate(self._nodes):
            if node.name and self._count[node.name] == 1:
                continue
            wanted = node.name or f"{node.op_type}_{next((t for t in node.outputs if t), index)}"
            renamed[index] = free_name(wanted, taken)
        return renamed

    def name_of(self, node: FileNode) -> str:
        """The node's own name where it is unique, else the one in `renamed`."""
        return self.renamed.get(node.index, node.name)

    def reads(self, node: FileNode) -> tuple[str, ...]:
        """The tensors that a node of the file reads."""
        return self._nodes[node.index].reads

    @cached_property
    def _file(self) -> Graph:
        return Graph(self.model.file.proto)

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return self._file.nodes

    @cached_property
    def _count(self) -> Counter[str]:
        return Counter(node.name for node in self._nodes)

    @cached_property
    def _writers(self) -> Mapping[str, int]:
        return {t: i for i, node in enumerate(self._nodes) for t in node.outputs if t}

    def _file_node(self, index: int) -> FileNode:
        node = self._nodes[index]
        return FileNode(index, node.name, node.op_type)

    @cached_property
    def _owners(self) -> Mapping[int, list[str]]:
        """Index of a file node -> the prepared nodes that it became part of."""
        owners: dict[int, list[str]] = {}
        names = {node.name: i for i, node in enumerate(self._nodes) if self._count[node.name] == 1}
        # prepare_model calls a node without a name the same.
        names |= {name: i for i, name in self.renamed.items() if not self._nodes[i].name}
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
            pending += [t for t in self._nodes[index].reads if t not in kept]

    @cached_property
    def _constant(self) -> frozenset[int]:
        """Nodes that depend on no input of the model."""
        constants, found = set(self._file.initializers), set()
        for index, node in enumerate(self._nodes):
            if constants.issuperset(node.reads):
                constants.update(node.outputs)
                found.add(index)
        return frozenset(found)
