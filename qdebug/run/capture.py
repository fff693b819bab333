"""Make tensors inside a model observable."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from qdebug.types import Skipped


def mark_outputs(
    proto: onnx.ModelProto, capture: Sequence[str]
) -> tuple[onnx.ModelProto, tuple[Skipped, ...]]:
    """A copy of `proto` with `capture` among its outputs, and those that it does not compute.

    The types of new outputs are left for the runtime to infer.
    """
    marked = onnx.ModelProto()
    marked.CopyFrom(proto)
    present = {v.name for v in marked.graph.output}
    computed = {t for n in marked.graph.node for t in n.output if t}
    skipped = []
    for name in dict.fromkeys(capture):
        if name in present:
            continue
        if name in computed:
            marked.graph.output.append(onnx.ValueInfoProto(name=name))
        else:
            skipped.append(Skipped(name, "no node of the model computes it"))
    return marked, tuple(skipped)
