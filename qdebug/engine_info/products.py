"""The precision of a matrix product: what type its two operands are multiplied in."""

from __future__ import annotations

from collections.abc import Sequence

from qdebug.engine_info.compiled import Weight
from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode, Role


def product_of(node: str, info: EngineInfo) -> tuple[EngineLayer | None, str]:
    """The layer that multiplies for a node, and the type that it multiplies in, as in
    `EngineTensor.dtype` or "tf32"; "" when the file does not tell.

    Args:
        node: name of a matrix product.
    """
    layers = _candidates(node, info)
    found = {_precision(node, layer, info) for layer in layers}
    return next(iter(layers), None), found.pop() if len(found) == 1 else ""


def _candidates(node: str, info: EngineInfo) -> Sequence[EngineLayer]:
    """The layers that may do the work of `node`; others that name it prepare what it reads, or
    finish what it writes."""
    layers = info.of_node.get(node, ())
    matrix = [layer for layer in layers if layer.role is Role.MATRIX]
    named = [layer for layer in matrix if node in layer.own_names]
    free = [layer for layer in matrix if not _taken(layer, node, info)]
    computing = [layer for layer in layers if layer.role is Role.OTHER]
    return named[:1] or free or computing or layers[:1]


def _taken(layer: EngineLayer, node: str, info: EngineInfo) -> bool:
    """Whether other products, which have no other layer, are as many as a kernel multiplies."""
    if layer.compiled is None:
        return not layer.own_names.isdisjoint(info.products - {node})
    others = [
        name
        for name in layer.onnx_nodes
        if name != node and name in info.products and _matrix_layers(name, info) == [layer]
    ]
    return len(others) >= layer.compiled.product_count


def _matrix_layers(node: str, info: EngineInfo) -> list[EngineLayer]:
    return [layer for layer in info.of_node.get(node, ()) if layer.role is Role.MATRIX]


def _precision(node: str, layer: EngineLayer, info: EngineInfo) -> str:
    if layer.role is Role.MATRIX or layer.compiled is None:
        return layer.precision
    found = info.node(node)
    return layer.compiled.elementwise_precision(_weight(found, info) if found else None)


def _weight(node: OnnxNode, info: EngineInfo) -> Weight | None:
    operands = list(zip(node.inputs, node.input_shapes, strict=False))[:2]
    io = {t.name for t in info.io}
    known = [
        (t not in io and info.maker(t) is None, dims)
        for t, dims in operands[::-1]
        if dims is not None
    ]
    found = next((x for x in known if x[0]), next(iter(known), None))
    return Weight(found[1], found[0]) if found else None
