"""Bring a model to the form that rewrites need: plain operators, one opset, an IR that runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import helper, inliner, numpy_helper, version_converter

from qdebug.errors import ModelError
from qdebug.network.graph import opset_of
from qdebug.network.subgraphs import bodies, refill, rename_reads

_OLDEST_IR = 8
"""From 4 on, weights need not be inputs; 8 goes with opset 15."""


def inline_functions(path: Path, proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with calls of its own functions replaced by their bodies: the nodes inside are what
    is quantized, and neither the converter nor shape inference looks into functions.

    Raises:
        ModelError: it calls functions that cannot be inlined.
    """
    if not proto.functions:
        return proto
    try:
        return inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:  # the inliner raises RuntimeError and its own kinds
        raise ModelError(
            f"{path}: its functions cannot be inlined: {reason_in(error)}",
            "Export the model without local functions.",
            code="QD-MODEL-FUNCTIONS",
        ) from error


def convert_opset(path: Path, proto: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """`proto`, converted to `opset` when its own is older; its own IR version is set in place.
    Nodes that the converter adds have no names yet.

    Raises:
        ModelError: the converter refuses.
    """
    if opset_of(proto) < opset:
        proto.ir_version = max(proto.ir_version, _OLDEST_IR)  # weights are inputs no more
        sampled = dict(_sampling(proto.graph)) if opset_of(proto) < 11 else {}
        before = proto.graph
        try:
            proto = version_converter.convert_version(proto, opset)
        except Exception as error:  # the converter raises RuntimeError and its own kinds
            raise ModelError(
                f"{path}: cannot be converted from opset {opset_of(proto)} to {opset}, "
                f"which Q/DQ nodes need: {reason_in(error)}",
                f"Export the model again at opset {opset} or later.",
                code="QD-MODEL-CONVERT",
            ) from error
        _keep_names(before, proto.graph)
        _keep_sampling(proto.graph, sampled)
    # Not the file's own: onnx writes an IR that ONNX Runtime may not take yet, for any opset.
    needed = helper.find_min_ir_version_for(list(proto.opset_import), ignore_unknown=True)
    proto.ir_version = max(needed, _OLDEST_IR)
    return proto


def reason_in(error: Exception) -> str:
    """The part of a native error that says what is wrong."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _keep_names(before: onnx.GraphProto, after: onnx.GraphProto) -> None:
    """Give nodes that the converter replaced, an Upsample by a Resize say, their old names, and the
    tensors that they write: who reads these is the same node as before, at the same place."""
    old_reads = {node.name: node.input for node in before.node}
    makers = {t: node.name for node in before.node for t in node.output}
    written = {t for node in after.node for t in node.output}
    names = {
        now: was
        for node in after.node
        for was, now in zip(old_reads.get(node.name, ()), node.input, strict=False)
        if was in makers and was not in written and now in written and now not in makers
    }
    taken = {node.name for node in after.node}
    for node in after.node:
        rename_reads(node, names)
        node.output[:] = [names.get(t, t) for t in node.output]
        maker = next((makers[t] for t in node.output if t in names.values()), None)
        if maker and not node.name and maker not in taken:
            node.name = maker
    for value in after.value_info:
        value.name = names.get(value.name, value.name)


def _sampling(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Output -> nearest_mode, of every node that samples as opsets 9 and 10 do."""
    constants = {t.name: t for t in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}
    for node in graph.node:
        if node.op_type in ("Upsample", "Resize") and len(node.input) > 1:
            scales = constants.get(node.input[1])
            sizes = [1.0] if scales is None else numpy_helper.to_array(scales).ravel().tolist()
            shrinks = min(sizes) < 1 and max(sizes) <= 1
            yield node.output[0], "ceil" if shrinks else "floor"
        for body in bodies(node):
            yield from _sampling(body)


def _keep_sampling(graph: onnx.GraphProto, sampled: dict[str, str]) -> None:
    """Before opset 11 sampling was asymmetric, and nearest meant down (ONNX Runtime: up where it
    shrinks). The converter leaves Resize at its new default, half_pixel: other numbers."""
    for node in graph.node:
        nearest = sampled.get(node.output[0]) if node.op_type == "Resize" else None
        if nearest:
            modes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
            others = [a for a in node.attribute if a.name not in modes]
            refill(node.attribute, others + [helper.make_attribute(k, v) for k, v in modes.items()])
        for body in bodies(node):
            _keep_sampling(body, sampled)
