"""The tail of a model: what it computes from one of its tensors on.

Fed with another value of that tensor, and with those of the model itself for all that it reads
besides, it shows what the change does to the outputs, and costs only the nodes behind it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx
from onnx import helper

from qdebug.network.graph import Graph
from qdebug.network.weights import renamed, without_graph
from qdebug.plan.rewrite.edit import check


@dataclass(frozen=True)
class Tail:
    """The nodes that depend on a tensor.

    Attributes:
        proto: the model; its inputs are `tensor` and `reads`.
        tensor: where it begins.
        reads: other tensors of the model that it reads, activations and inputs.
        outputs: of the model's outputs, those that depend on the tensor; it is among them where it
            is an output itself, though not in the proto.
    """

    proto: onnx.ModelProto
    tensor: str
    reads: frozenset[str]
    outputs: tuple[str, ...]


def tail_of(graph: Graph, tensor: str, outputs: Collection[str]) -> Tail | None:
    """The tail of `graph` behind `tensor` as far as `outputs` need it; None where none of them but
    the tensor itself depends on it, and where the type of a tensor that is read is not known.

    Raises:
        PlanError: as `check`.
    """
    behind: dict[str, onnx.NodeProto] = {}
    changed = {tensor}
    for node in graph.nodes:
        if not changed.isdisjoint(node.reads):
            behind[node.name] = graph.protos[node.name]
            changed.update(t for t in node.outputs if t)
    ends = tuple(t for t in graph.outputs if t in changed and t in outputs)
    needed, wanted = {*ends} - {tensor}, list[onnx.NodeProto]()
    if not needed:
        return None
    for name, proto in reversed(behind.items()):
        if not needed.isdisjoint(proto.output):
            wanted.append(proto)
            needed.update(graph.by_name[name].reads)
    made = {t for proto in wanted for t in proto.output}
    constants = graph.initializers
    reads = {t for t in needed if t not in made and t not in constants and t != tensor}
    values = [_value(graph, t) for t in (tensor, *sorted(reads))]
    if None in values:
        return None
    model = without_graph(graph.proto)
    inner = model.graph
    inner.name = graph.proto.graph.name
    inner.node.extend(reversed(wanted))
    inner.initializer.extend(renamed(constants[t], t) for t in sorted(needed & set(constants)))
    inner.input.extend(v for v in values if v is not None)
    inner.output.extend(v for v in graph.proto.graph.output if v.name in ends and v.name != tensor)
    return Tail(check(model, f"the model behind '{tensor}'"), tensor, frozenset(reads), ends)


def _value(graph: Graph, tensor: str) -> onnx.ValueInfoProto | None:
    """What an input is declared as; None where its type is not known."""
    kind = graph.types.get(tensor)
    if kind is None or not graph.is_array(tensor):
        return None
    shape = None if tensor in graph.unsure_ranks else graph.shapes.get(tensor)
    return helper.make_tensor_value_info(tensor, kind, shape)
