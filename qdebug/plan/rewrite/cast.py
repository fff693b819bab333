"""Convert chosen nodes to FP16 or BF16: Casts where they meet other nodes, and their weights
converted.

Which inputs and outputs of a node change type is read from ONNX's operator schemas, so inputs that
an operator fixes to float (such as the scales of Resize) stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto, defs

from qdebug.formats.base import Format
from qdebug.formats.registry import BF16
from qdebug.network.graph import Graph, Node
from qdebug.network.subgraphs import rename_reads
from qdebug.plan.rewrite.edit import Editor, copy_node

FP32 = TensorProto.FLOAT


def cast_nodes(
    graph: Graph, nodes: Collection[str], form: Format, follow: Collection[str] = ()
) -> onnx.ModelProto:
    """`graph` with `nodes` in FP16 or BF16 where their operator allows it. Inputs and outputs stay
    FP32.

    Every tensor keeps its name, in the type of its producer. `follow` are nodes that take the type
    that their first input already has (QuantizeLinear).
    """
    forms = _Forms(graph, form)
    for proto in graph.proto.graph.node:
        node, view = copy_node(proto), graph.by_name[proto.name]
        narrow = view.name in nodes or (view.name in follow and view.inputs[0] in forms.born_narrow)
        roles = narrow_roles(view, graph, form) if narrow else None
        if roles is None:
            rename_reads(node, {t: forms.get(t, FP32) for t in view.reads})
            forms.editor.emit(node)
        else:
            _emit_narrow(forms, node, view, *roles)
    return forms.editor.finish(f"the model in {form.label}")


def narrow_roles(node: Node, graph: Graph, form: Format) -> tuple[list[int], list[int]] | None:
    """Positions of the inputs and outputs that become FP16 or BF16, or None if the node cannot.

    Only FP32 tensors change, and an output only where the schema ties its type to an input that
    changes: a ConstantOfShape or an If produces FP32 whatever it reads.
    """
    if form is BF16 and node.op_type in _NOT_IN_BF16 and not node.domain:
        return None
    try:
        schema = defs.get_schema(node.op_type, graph.opset, node.domain)
    except defs.SchemaError:
        return None
    if any(a.type == defs.OpSchema.AttrType.GRAPH for a in schema.attributes.values()):
        return None
    allowed = {
        c.type_param_str
        for c in schema.type_constraints
        if _TYPE_STRINGS[form.name] in c.allowed_type_strs
    }
    reads = [(i, t, _formal(schema.inputs, i)) for i, t in enumerate(node.inputs) if t]
    if any(kind in allowed and t not in graph.types for _, t, kind in reads):
        return None  # behind an operator unknown to ONNX, whose output cannot be cast blindly
    inputs = [i for i, t, kind in reads if graph.types.get(t) == FP32 and kind in allowed]
    tied = {kind for i, _, kind in reads if i in inputs}
    if node.op_type == "DequantizeLinear" and inputs:
        tied.add(_formal(schema.outputs, 0))  # it follows the scale, which opset 23 does not say
    outputs = [
        i
        for i, t in enumerate(node.outputs)
        if t and graph.types.get(t) == FP32 and _formal(schema.outputs, i) in tied
    ]
    makes_codes = node.op_type == "QuantizeLinear"
    return (inputs, outputs) if outputs or (makes_codes and inputs) else None


_NOT_IN_BF16 = frozenset({"HardSwish"})
"""Operators that ONNX has in BF16, and TensorRT's parser refuses (TensorRT for RTX 1.7.1: "Only
FLOAT, HALF or INT8 input is supported")."""

_TYPE_STRINGS = {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}
"""As ONNX's operator schemas name the types, by the format's name."""


def _formal(parameters: Sequence[defs.OpSchema.FormalParameter], index: int) -> str:
    return str(parameters[min(index, len(parameters) - 1)].type_str)


def _emit_narrow(
    forms: _Forms, node: onnx.NodeProto, view: Node, inputs: list[int], outputs: list[int]
) -> None:
    for i, tensor in enumerate(view.inputs):
        if tensor:
            node.input[i] = forms.get(tensor, forms.narrow if i in inputs else FP32)
    for i in outputs:
        node.output[i] = forms.bear_narrow(view.outputs[i])
    forms.editor.emit(node)
    for tensor in (view.outputs[i] for i in outputs):
        if tensor in forms.graph.outputs:
            forms.restore(tensor)


class _Forms:
    """The types in which each tensor exists so far, and its names."""

    def __init__(self, graph: Graph, form: Format) -> None:
        self.graph = graph
        self.editor = Editor(graph)
        self.form = form
        self.narrow = form.onnx_type
        self.born_narrow: set[str] = set()
        self._names: dict[tuple[str, int], str] = {}

    def bear_narrow(self, tensor: str) -> str:
        """Record that `tensor` is produced narrow; return the name it is produced under. A graph
        output leaves its name to the FP32 form that the caller of the model expects."""
        is_output = tensor in self.graph.outputs
        name = self.editor.tensor_name(f"{tensor}_{self.form.name}") if is_output else tensor
        self.born_narrow.add(tensor)
        self._names[tensor, self.narrow] = name
        return name

    def restore(self, output: str) -> None:
        """Cast a graph output that was produced narrow back to FP32, under its own name."""
        narrow = self._names[output, self.narrow]
        self.editor.add("Cast", narrow, output=output, name=f"{output}_to_fp32", to=FP32)
        self._names[output, FP32] = output

    def get(self, tensor: str, kind: int) -> str:
        """The name of `tensor` in the type wanted; adds a Cast or a converted constant, once."""
        if kind == FP32 and tensor not in self.born_narrow:
            return tensor
        key = (tensor, kind)
        if key not in self._names:
            self._names[key] = self._convert(tensor, kind)
        return self._names[key]

    def _convert(self, tensor: str, kind: int) -> str:
        suffix = "fp32" if kind == FP32 else self.form.name
        values = self.graph.constant(tensor)
        if values is not None:
            if self.form is BF16:  # which has the range of FP32, but for the last of its numbers
                ends = np.clip(values, self.form.lowest, self.form.largest)
                values = np.where(np.isfinite(values), ends, values)
            with np.errstate(over="ignore"):  # the user must see an overflow
                return self.editor.initializer(values.astype(self.form.dtype), f"{tensor}_{suffix}")
        source = self._names.get((tensor, self.narrow if kind == FP32 else FP32), tensor)
        output = self.editor.tensor_name(f"{tensor}_{suffix}")
        pair = self.graph.producers.get(tensor)
        if kind == FP32 and pair is not None and pair.op_type == "DequantizeLinear":
            # A Cast would separate the Q/DQ pair from the INT8 kernel that reads it, and TensorRT
            # would compute in FP32 (observed with TensorRT for RTX 1.7.1).
            name, given = f"{pair.name}_{suffix}", self.graph.attributes(pair)
            return self.editor.add(pair.op_type, *pair.inputs, output=output, name=name, **given)
        name = f"{tensor}_to_{suffix}"
        return self.editor.add("Cast", source, output=output, name=name, to=kind)
