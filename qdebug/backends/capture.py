"""Make tensors inside a model observable."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import onnx

from qdebug.types import Skipped


def mark_outputs(
    proto: onnx.ModelProto, capture: Sequence[str]
) -> tuple[onnx.ModelProto, tuple[Skipped, ...]]:
    """A copy of `proto` with `capture` among its outputs, and those that it does not compute.

    The types of new outputs are left for the runtime to infer.
    """
    added, skipped = _missing_outputs(proto, capture)
    marked = deepcopy(proto)
    marked.graph.output.extend(added)
    return marked, skipped


def encode_marked(
    proto: onnx.ModelProto, capture: Sequence[str]
) -> tuple[bytes, tuple[Skipped, ...]]:
    """`mark_outputs`, serialized, without copying the weights: two serialized messages,
    concatenated, are the serialization of both merged."""
    added, skipped = _missing_outputs(proto, capture)
    extension = onnx.ModelProto(graph=onnx.GraphProto(output=added))
    return proto.SerializeToString() + extension.SerializeToString(), skipped


def _missing_outputs(
    proto: onnx.ModelProto, capture: Sequence[str]
) -> tuple[list[onnx.ValueInfoProto], tuple[Skipped, ...]]:
    present = {v.name for v in proto.graph.output}
    computed = {t for n in proto.graph.node for t in n.output if t}
    wanted = [name for name in dict.fromkeys(capture) if name not in present]
    reason = "no node of the model computes it"
    return (
        [onnx.ValueInfoProto(name=name) for name in wanted if name in computed],
        tuple(Skipped(name, reason) for name in wanted if name not in computed),
    )
