"""Refuse a Loop that cannot end in any reasonable time, before anything executes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from qdebug.errors import ModelError
from qdebug.network.subgraphs import bodies

MOST_ITERATIONS = 10_000_000
"""Of a Loop that nothing ends sooner: ONNX Runtime takes a minute for as many of an empty body, and
where each gives a tensor, gigabytes."""
_AS_IT_IS = frozenset({"Identity", "Cast"})


def check_loops(path: Path, graph: onnx.GraphProto) -> None:
    """Refuse a Loop whose trip count is a larger constant, where its condition is true throughout.

    Raises:
        ModelError: there is one.
    """
    for node, count in _endless(graph, {}):
        raise ModelError(
            f"{path}: node '{node.name or node.output[0]}' (Loop) makes {count} iterations; a Loop "
            f"whose condition cannot end it may make {MOST_ITERATIONS} at most",
            "See what its trip count should be, and export the model again.",
            code="QD-MODEL-ENDLESS-LOOP",
        )


def _endless(
    graph: onnx.GraphProto, outer: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[onnx.NodeProto, int]]:
    known = {**outer, **_constants(graph)}
    for node in graph.node:
        inner = bodies(node)
        if node.op_type == "Loop" and inner and len(node.input) > 1:
            count = _value(known, node.input[0])
            if count is not None and count > MOST_ITERATIONS and _goes_on(node, inner[0], known):
                yield node, count
        for body in inner:
            yield from _endless(body, known)


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            for attribute in node.attribute:
                if attribute.name == "value":
                    found[node.output[0]] = attribute.t
                elif attribute.name == "value_int":
                    found[node.output[0]] = numpy_helper.from_array(np.array(attribute.i))
        elif node.op_type in _AS_IT_IS and node.input and node.input[0] in found:
            found[node.output[0]] = found[node.input[0]]
    return found


def _value(known: Mapping[str, onnx.TensorProto], name: str) -> int | None:
    """A constant of one integer or truth value."""
    tensor = known.get(name)
    if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    if any(size != 1 for size in tensor.dims):
        return None
    value = numpy_helper.to_array(tensor)
    return int(value.reshape(())) if value.dtype.kind in "biu" else None


def _goes_on(
    loop: onnx.NodeProto, body: onnx.GraphProto, known: Mapping[str, onnx.TensorProto]
) -> bool:
    """Whether the condition is absent, or true at first and after each iteration."""
    if not loop.input[1]:
        return True  # then the body's is not looked at
    if not _value(known, loop.input[1]) or len(body.input) < 2 or not body.output:
        return False
    name, given = body.output[0].name, body.input[1].name
    makers = {node.output[0]: node for node in body.node if node.output}
    while (node := makers.get(name)) and node.op_type in _AS_IT_IS:
        name = node.input[0]
    return name == given or bool(_value({**known, **_constants(body)}, name))
