"""What graph rewrites share: an editable copy of a model, free names, checks before and after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper

from qdebug.errors import PlanError
from qdebug.model.graph import Graph
from qdebug.types import Array


class Editor:
    """A copy of a model whose nodes are emitted one by one, in execution order.

    A rewrite walks the old nodes, emits what each needs before it, then the node. So the new list
    is in execution order without sorting.
    """

    def __init__(self, graph: Graph) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(graph.proto)
        del self.proto.graph.node[:]
        # Types of tensors change: stale ones would contradict what the nodes now compute.
        del self.proto.graph.value_info[:]
        self._nodes: list[onnx.NodeProto] = []
        self._tensors = {*graph.initializers, *(s.name for s in graph.inputs), *graph.producers}
        self._node_names = {n.name for n in graph.nodes}

    def tensor_name(self, wanted: str) -> str:
        """A tensor name that is not taken, `wanted` if possible."""
        return _free(wanted, self._tensors)

    def emit(self, node: onnx.NodeProto) -> None:
        """Append a node that exists already."""
        self._nodes.append(node)

    def add(
        self, op_type: str, inputs: Iterable[str], output: str, name: str, **attributes: Any
    ) -> str:
        """Append a new node; return its output."""
        name = _free(name, self._node_names)
        self._nodes.append(
            helper.make_node(op_type, list(inputs), [output], name=name, **attributes)
        )
        return output

    def add_constant(self, values: Array, wanted: str) -> str:
        """Add an initializer; return its name."""
        name = self.tensor_name(wanted)
        self.proto.graph.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def finish(self) -> onnx.ModelProto:
        """The edited model without the constants that nothing reads any more."""
        graph = self.proto.graph
        graph.node.extend(self._nodes)
        used = set(Graph(self.proto).consumers) | {v.name for v in graph.output}
        kept = [t for t in graph.initializer if t.name in used]
        if len(kept) != len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(kept)
        return self.proto


def check(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Check that a rewritten model is valid ONNX.

    Raises:
        PlanError: it is not, which is a defect of the rewrite or of the model given.
    """
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        raise PlanError(
            f"{what} does not pass onnx.checker: {str(error).strip().splitlines()[0]}",
            "Check the original with onnx.checker; if it passes, report this as a defect.",
        ) from error
    return proto


def rename_reads(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Let `node`, and the subgraphs in it, read other tensors; in place."""
    for i, tensor in enumerate(node.input):
        node.input[i] = names.get(tensor, tensor)
    for attribute in node.attribute:
        bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for body in bodies:
            own = {t.name for t in body.initializer} | {v.name for v in body.input}
            own |= {t for n in body.node for t in n.output}
            outer = {old: new for old, new in names.items() if old not in own}
            for inner in body.node:
                rename_reads(inner, outer)
            for value in body.output:
                value.name = outer.get(value.name, value.name)


def copy_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy that may be edited."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def _free(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name
