"""Compute what follows from constants alone: ONNX Runtime runs that part of a network, once."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

import numpy as np
import onnx

from qdebug.network.convert import reason_in
from qdebug.network.graph import Graph, Node
from qdebug.network.growth import constant_nodes
from qdebug.network.runtime import quiet_session
from qdebug.network.subgraphs import needed, prune, reads_of, refill
from qdebug.network.weights import renamed, tensor_of
from qdebug.types import Array

log = logging.getLogger(__name__)


def fold_constants(graph: Graph) -> onnx.ModelProto:
    """The model of `graph`, with its types and shapes inferred, in which what nodes compute from
    constants, and from axes of a known length, is constants itself. Where ONNX Runtime fails at
    them the model comes back as it is, and a warning is logged.

    Raises:
        StoreError: as of `weights.tensor_of`.
    """
    proto = deepcopy(graph.proto)
    outputs = frozenset(graph.outputs)
    written = {t for node in graph.nodes for t in node.outputs if node.op_type == "Constant"}
    constants = {t: renamed(graph.initializers[t], t) for t in written & graph.initializers.keys()}
    constants |= {t: tensor_of(values, t) for t, values in _lengths(graph)}
    constants = {t: constant for t, constant in sorted(constants.items()) if t not in outputs}
    proto.graph.initializer.extend(constants.values())
    refill(proto.graph.node, (n for n in proto.graph.node if constants.keys().isdisjoint(n.output)))
    computing = [
        node
        for node in constant_nodes(proto.graph)
        if not node.domain and outputs.isdisjoint(node.output)
    ]
    computed = {t for node in computing for t in node.output if t}
    others = [n for n in proto.graph.node if computed.isdisjoint(n.output)]
    read = {t for node in others for t in reads_of(node)} & computed
    try:
        proto.graph.initializer.extend(_values(proto, sorted(read)))
    except Exception as error:  # of ONNX Runtime's many kinds; without folding all still works
        log.warning("constants were not folded: %s", reason_in(error))
        return graph.proto
    refill(proto.graph.node, others)
    prune(proto.graph)
    return proto


def _values(proto: onnx.ModelProto, tensors: Sequence[str]) -> Iterator[onnx.TensorProto]:
    """What a model gives for tensors that follow from its constants, one after the other: they may
    be large."""
    if not tensors:
        return
    from onnxruntime import RunOptions

    nodes = needed(proto.graph.node, tensors)
    read = {t for node in nodes for t in node.input}
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    part.graph.name = "constants"
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(t for t in proto.graph.initializer if t.name in read)
    for tensor in tensors:
        part.graph.output.add(name=tensor)
    session, once = quiet_session(part), RunOptions()
    once.log_severity_level = 4
    once.only_execute_path_to_fetches = True
    for tensor in tensors:
        yield tensor_of(np.asarray(session.run([tensor], {}, once)[0]), tensor)


def _lengths(graph: Graph) -> Iterator[tuple[str, Array]]:
    """The tensors that hold nothing but axes of a known length, from a Shape or what is picked out
    of one: other axes of it may be free."""
    axes: dict[str, Array] = {}
    for node in graph.nodes:
        values = _picked(graph, node, axes)
        if values is not None and not node.domain:
            axes[node.outputs[0]] = values
            if all(isinstance(length, int) for length in values.flat):
                yield node.outputs[0], values.astype(np.int64)


def _picked(graph: Graph, node: Node, axes: Mapping[str, Array]) -> Array | None:
    """The lengths that a node gives, as an array of objects; None where it is no Shape, Gather or
    Slice of one."""
    attributes = graph.attributes(node)
    if node.op_type == "Shape" and node.inputs[0] in graph.shapes:
        cut = slice(attributes.get("start"), attributes.get("end"))
        return np.asarray(graph.shapes[node.inputs[0]][cut], object)
    if node.op_type not in ("Gather", "Slice") or node.inputs[0] not in axes:
        return None
    read, operands = axes[node.inputs[0]], [graph.constant(t) for t in node.inputs[1:]]
    constants = [values for values in operands if values is not None]
    if len(constants) < len(operands):
        return None
    if node.op_type == "Gather":
        inside = (abs(constants[0]) < read.size).all()
        return np.asarray(read.take(constants[0]), object) if inside else None
    start, stop, *axis_and_step = (int(values.item()) for values in constants)
    return read[start : stop : axis_and_step[1] if axis_and_step[1:] else 1]
