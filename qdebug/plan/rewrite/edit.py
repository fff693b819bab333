"""What graph rewrites share: a builder of nodes, an editable copy of a model, unused names, and the
check of every result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper, numpy_helper

from qdebug.errors import PlanError
from qdebug.network.graph import Graph
from qdebug.network.subgraphs import all_names, free_name
from qdebug.network.weights import tensor_of, without_external
from qdebug.types import Array


def make_node(
    op_type: str, inputs: Sequence[str], output: str, name: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node with one output, under names that the caller has made unique: the one place where
    the package makes nodes. `NodeBuilder` makes the names as well."""
    return helper.make_node(op_type, inputs, [output], name, **attributes)


class NodeBuilder:
    """Builds a list of nodes in execution order, whose tensors have unique names.

    Each method appends to `nodes` and returns the name of the tensor that the new node computes.
    """

    def __init__(self, opset: int, free: Callable[[str], str], hint: str) -> None:
        """`free` makes a unique tensor name from a wanted one; `hint` is the default of that."""
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.tensor_name = free
        self._hint = hint

    def add(
        self, op_type: str, *inputs: str, output: str = "", name: str = "", **attributes: Any
    ) -> str:
        """A node with one output: `output`, or a new tensor."""
        output = output or self.tensor_name(self._hint)
        self.nodes.append(make_node(op_type, inputs, output, name, **attributes))
        return output

    def constant(self, values: Any) -> str:
        """A constant, as a node."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(values)))

    def ints(self, values: Any) -> str:
        """A constant of int64: axes, sizes, tables of them."""
        return self.constant(np.asarray(values, np.int64))


class Editor(NodeBuilder):
    """A copy of a model whose nodes are emitted one by one, in execution order.

    A rewrite walks the old nodes and emits, for each, first what it needs and then the node. So the
    new list is in execution order without sorting. Every node gets a unique name.
    """

    def __init__(self, graph: Graph) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(graph.proto)
        del self.proto.graph.node[:]
        # Types of tensors change: stale ones would contradict what the nodes now compute.
        del self.proto.graph.value_info[:]
        tensors, self._node_names = all_names(graph.proto.graph)
        super().__init__(graph.opset, lambda wanted: free_name(wanted, tensors), "new")

    def emit(self, node: onnx.NodeProto) -> None:
        """Append a node that exists already."""
        self.nodes.append(node)

    def add(
        self, op_type: str, *inputs: str, output: str = "", name: str = "", **attributes: Any
    ) -> str:
        """A node with one output, named after it or `name`."""
        output = output or self.tensor_name(name)
        name = free_name(name or output, self._node_names)
        return super().add(op_type, *inputs, output=output, name=name, **attributes)

    def node_name(self, wanted: str) -> str:
        """A new name for a node."""
        return free_name(wanted, self._node_names)

    def initializer(self, values: Array, wanted: str) -> str:
        """A constant, as an initializer."""
        name = self.tensor_name(wanted)
        self.proto.graph.initializer.append(tensor_of(np.asarray(values), name))
        return name

    def finish(self, what: str) -> onnx.ModelProto:
        """The edited model, without constants that nothing reads any more.

        Args:
            what: the model, for the message.

        Raises:
            PlanError: as `check`.
        """
        graph = self.proto.graph
        graph.node.extend(self.nodes)
        used = set(Graph(self.proto).consumers) | {v.name for v in graph.output}
        nodes = [n for n in graph.node if n.op_type != "Constant" or n.output[0] in used]
        constants = [t for t in graph.initializer if t.name in used]
        if len(nodes) != len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)
        if len(constants) != len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(constants)
        return check(self.proto, what)


def check(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Check that a rewritten model is valid ONNX.

    Raises:
        PlanError: it is not, because of a bug in the rewrite or in the model given.
    """
    # The checker requires a rank even where it cannot be known, behind a Reshape to a computed one.
    unknown = [v for v in (*proto.graph.input, *proto.graph.output) if _has_no_shape(v)]
    for value in unknown:
        value.type.tensor_type.shape.SetInParent()
    try:
        checker.check_model(without_external(proto))
    except checker.ValidationError as error:
        raise PlanError(
            f"{what} does not pass onnx.checker: {str(error).strip().splitlines()[0]}",
            "Check the original with onnx.checker; if it passes, please report this as a bug.",
            code="QD-PLAN-INVALID-MODEL",
        ) from error
    finally:
        for value in unknown:
            value.type.tensor_type.ClearField("shape")
    return proto


def _has_no_shape(value: onnx.ValueInfoProto) -> bool:
    is_tensor = value.type.HasField("tensor_type")
    return is_tensor and not value.type.tensor_type.HasField("shape")


def copy_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """A copy that may be edited."""
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """The attributes that a node has, by name; strings are bytes."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
