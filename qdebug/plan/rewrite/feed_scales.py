"""Turn the scales of activations into inputs, so that one session can try any number of ranges."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import TensorProto, helper

from qdebug.network.graph import Graph
from qdebug.plan.rewrite.edit import check


def feed_scales(graph: Graph, tensors: Iterable[str]) -> tuple[onnx.ModelProto, dict[str, str]]:
    """`graph`, an INT8 model, with the scales of `tensors` as inputs, float32 of shape [].

    Returns:
        The model, and the name of the new input by tensor.

    Raises:
        PlanError: as `check`.
    """
    wanted = set(tensors)
    inputs = {
        node.inputs[0]: node.inputs[1]
        for node in graph.nodes
        if node.op_type == "QuantizeLinear" and node.inputs[0] in wanted
    }
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    fed = set(inputs.values())
    kept = [t for t in proto.graph.initializer if t.name not in fed]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in inputs.values()
    )
    return check(proto, "the model with scales as inputs"), inputs
