"""The precision of a matrix product: what type its two operands are multiplied in."""

from __future__ import annotations

from qdebug.engine_info.compiled import Weight
from qdebug.engine_info.layers import EngineInfo, EngineLayer, OnnxNode, Role


def product_of(node: str, info: EngineInfo) -> tuple[EngineLayer | None, str]:
    """The layer that multiplies for a node, and the type that it multiplies in, as in
    `EngineTensor.dtype` or "tf32"; "" when the file does not tell.

    Args:
        node: name of a matrix product.
    """
    layers = info.of_node.get(node, ())
    matrix = _matrix_layers(node, info)
    named = [layer for layer in matrix if node in layer.own_names]
    free = [layer for layer in matrix if not _taken(layer, node, info)]
    computing = [layer for layer in layers if layer.role is Role.OTHER]
    if matrix and not named and not free and not computing:
        return matrix[0], ""  # one of several products in a kernel that names fewer
    # Others that name the node prepare what it reads, or finish what it writes.
    able = named[:1] or free or computing or layers[:1]
    found = {_precision(node, layer, info) for layer in able}
    return next(iter(able), None), found.pop() if len(found) == 1 else ""


def _taken(layer: EngineLayer, node: str, info: EngineInfo) -> bool:
    """Whether products before and after `node`, which have no other layer, are as many as a kernel
    multiplies; products side by side may be multiplied as one."""
    if layer.compiled is None:
        return not layer.own_names.isdisjoint(info.products - {node})
    others = [
        name
        for name in layer.onnx_nodes
        if name != node and name in info.products and _matrix_layers(name, info) == [layer]
        if _feeds(name, node, info) or _feeds(node, name, info)
    ]
    return len(others) >= layer.compiled.product_count


def _feeds(first: str, second: str, info: EngineInfo) -> bool:
    """Whether what a node computes reaches another."""
    pending, seen = [second], set()
    while pending:
        node = info.by_name.get(pending.pop())
        for tensor in node.inputs if node else ():
            maker = info.makers.get(tensor)
            if maker is not None and maker.name not in seen:
                seen.add(maker.name)
                pending.append(maker.name)
    return first in seen


def _matrix_layers(node: str, info: EngineInfo) -> list[EngineLayer]:
    return [layer for layer in info.of_node.get(node, ()) if layer.role is Role.MATRIX]


def _precision(node: str, layer: EngineLayer, info: EngineInfo) -> str:
    if layer.role is Role.MATRIX or layer.compiled is None:
        return layer.precision
    found = info.by_name.get(node)
    return layer.compiled.elementwise_precision(_weight(found, info) if found else None)


def _weight(node: OnnxNode, info: EngineInfo) -> Weight | None:
    operands = list(zip(node.inputs, node.input_shapes, strict=False))[:2]
    io = {t.name for t in info.io}
    known = [
        (t not in io and info.makers.get(t) is None, dims)
        for t, dims in operands[::-1]
        if dims is not None
    ]
    found = next((x for x in known if x[0]), next(iter(known), None))
    return Weight(found[1], found[0]) if found else None
