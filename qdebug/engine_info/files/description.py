"""The network behind an engine, as far as the engine's file tells it."""

from __future__ import annotations

from dataclasses import replace

from qdebug.engine_info.layers import EngineInfo
from qdebug.plan.description import DescribedNode, DescribedTensor, Description

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})


def describe_engine(info: EngineInfo) -> Description:
    """The model that was built, where the file names its nodes, without Q/DQ pairs and constants;
    else the engine's own layers, as the nodes of a network. They read only what one of them
    computes or what is an input: the rest are constants, of which an engine's file tells nothing.
    """
    pairs = {n.outputs[0]: n.inputs[0] for n in info.nodes if n.op_type in _QDQ and n.inputs}

    def source(tensor: str) -> str:
        while tensor in pairs:
            tensor = pairs[tensor]
        return tensor

    nodes = [
        DescribedNode(n.name, n.op_type, tuple(map(source, n.inputs)), n.outputs, None, "")
        for n in info.nodes
        if n.op_type not in _QDQ and n.op_type != "Constant"
    ] or [
        DescribedNode(
            x.name,
            x.layer_type or x.role,
            tuple(t.name for t in x.inputs),
            tuple(t.name for t in x.outputs),
            None,
            x.name,
        )
        for x in info.working
    ]
    made = {tensor for node in nodes for tensor in node.outputs}
    shapes = {t.name: t.dims for x in info.working for t in x.outputs if not info.nodes}
    shapes |= {t: s for n in info.nodes for t, s in zip(n.outputs, n.output_shapes, strict=False)}
    # A file without bindings: what no layer computes comes from outside.
    read = [] if info.nodes else [t for node in nodes for t in node.inputs if t not in made]
    io = [source(tensor.name) for tensor in info.io] or read
    inputs = tuple(dict.fromkeys(t for t in io if t not in made))
    known = made.union(inputs)
    kept = (
        replace(n, inputs=tuple(t for t in dict.fromkeys(n.inputs) if t in known)) for n in nodes
    )
    tensors = (DescribedTensor(t, shape) for t, shape in shapes.items() if t in made)
    return Description(tuple(kept), inputs, tuple(t for t in io if t in made), tuple(tensors))
