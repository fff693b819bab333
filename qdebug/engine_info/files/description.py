"""The network behind an engine, as far as the engine's file tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdebug.engine_info.layers import EngineInfo, Role
from qdebug.plan.description import DescribedNode, DescribedTensor, Description

_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
_LEFT_OUT = _QDQ | {"Constant"}

Shapes = Mapping[str, tuple[int, ...] | None]


def describe_engine(info: EngineInfo) -> Description:
    """The model that was built, where the file names its nodes; else the engine's own layers, as
    the nodes of a network."""
    return _of_nodes(info) if info.nodes else _of_layers(info)


def _of_nodes(info: EngineInfo) -> Description:
    """Without Q/DQ pairs and constants."""
    rounded = {n.outputs[0]: n.inputs[0] for n in info.nodes if n.op_type in _QDQ and n.inputs}

    def source(tensor: str) -> str:
        while tensor in rounded:
            tensor = rounded[tensor]
        return tensor

    shown = [node for node in info.nodes if node.op_type not in _LEFT_OUT]
    nodes = [
        DescribedNode(n.name, n.op_type, tuple(map(source, n.inputs)), n.outputs, None, "")
        for n in shown
    ]
    shapes = {t: s for n in shown for t, s in zip(n.outputs, n.output_shapes, strict=False)}
    return _joined(nodes, [source(tensor.name) for tensor in info.io], shapes)


def _of_layers(info: EngineInfo) -> Description:
    shown = [layer for layer in info.layers if layer.role is not Role.CONTROL]
    nodes = [
        DescribedNode(
            layer.name,
            layer.layer_type or layer.role,
            tuple(t.name for t in layer.inputs),
            tuple(t.name for t in layer.outputs),
            None,
            layer.name,
        )
        for layer in shown
    ]
    shapes = {t.name: t.dims for layer in shown for t in layer.outputs}
    made = set(shapes)
    read = dict.fromkeys(t for node in nodes for t in node.inputs)
    # A file without bindings: what no layer computes comes from outside.
    io = [t.name for t in info.io] or [t for t in read if t not in made]
    return _joined(nodes, io, shapes)


def _joined(nodes: Sequence[DescribedNode], io: Sequence[str], shapes: Shapes) -> Description:
    """The network of `nodes`, which read only what one of them computes or what is in `io`: the
    rest are constants, of which an engine's file tells nothing."""
    made = {tensor for node in nodes for tensor in node.outputs}
    inputs = tuple(dict.fromkeys(t for t in io if t not in made))
    known = made.union(inputs)
    kept = tuple(
        DescribedNode(
            node.name,
            node.op,
            tuple(dict.fromkeys(t for t in node.inputs if t in known)),
            node.outputs,
            None,
            node.layer,
        )
        for node in nodes
    )
    tensors = tuple(DescribedTensor(tensor, shape) for tensor, shape in shapes.items())
    return Description(kept, inputs, tuple(t for t in io if t in made), tensors)
