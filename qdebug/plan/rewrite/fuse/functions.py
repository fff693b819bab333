"""Find functions that are written out in single operators, and write them as ONNX operators."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx

from qdebug.network.graph import Graph
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.fuse.activation import activation
from qdebug.plan.rewrite.fuse.matching import WrittenOut, only_read_inside
from qdebug.plan.rewrite.fuse.norm import normalization
from qdebug.plan.rewrite.fuse.softmax import softmax


def written_out(graph: Graph) -> list[WrittenOut]:
    """Those of a network for which its opset has an operator, in execution order."""
    found: dict[str, WrittenOut] = {}
    places = {node.name: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.domain or len(node.outputs) != 1 or not graph.is_float(node.outputs[0]):
            continue
        whole = normalization(graph, node) or softmax(graph, node)
        whole = whole or activation(graph, node, places)
        if whole is not None and only_read_inside(graph, whole):
            for name in whole.inner:  # a larger function, such as Mish, has smaller ones in it
                found.pop(name, None)
            found[whole.last] = whole
    return list(found.values())


def fuse(graph: Graph, functions: Collection[WrittenOut]) -> onnx.ModelProto:
    """`graph` with one operator in place of each of these, under the name of the last node.

    Raises:
        PlanError: as `check`.
    """
    by_last = {whole.last: whole for whole in functions}
    inner = {name for whole in functions for name in whole.inner}
    editor = Editor(graph)
    for proto in graph.proto.graph.node:
        if proto.name in inner:
            continue
        node, whole = copy_node(proto), by_last.get(proto.name)
        if whole is not None:
            node.op_type = whole.op_type
            del node.input[:], node.attribute[:]
            node.input.append(whole.source)
            if whole.ones:
                ones = np.ones(whole.ones, np.float32)
                node.input.append(editor.initializer(ones, f"{proto.output[0]}_ones"))
            node.attribute.extend(
                onnx.helper.make_attribute(name, value) for name, value in whole.attributes.items()
            )
        editor.emit(node)
    return editor.finish("the network with whole operators")
