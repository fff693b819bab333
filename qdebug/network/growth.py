"""How large a model becomes where functions are inlined and constants computed: a file of a few
kilobytes may ask for more than any machine has, and that is found before it is begun."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import helper

from qdebug.errors import ModelError
from qdebug.network.subgraphs import bodies
from qdebug.network.weights import place_of

_MOST_NODES = 250_000
_MANY_NODES, _MOST_CALLS = 10_000, 100
"""Where functions make more nodes than that, each node of the file may stand for so many of them: a
network of a hundred alike layers has fewer. `compare` took 4 s of CPU for 2048 such nodes, 10 s for
4096 and 24 s for 8192 (two cores, November 2026)."""
_MOST_BYTES = (1 << 31) - 1
"""Of a message."""
_MOST_TIMES = 16
"""A mask or a table of positions may be large. Casts of all weights are, where these are."""
_SMALL = 1 << 10
"""Elements of a constant that may be a shape."""


def check_inlined(path: Path, proto: onnx.ModelProto) -> None:
    """Find out how large a model becomes when its functions are inlined, which may call others.

    Raises:
        ModelError: it is too large.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    known: dict[tuple[str, str, str], tuple[int, int]] = {}
    open_calls: set[tuple[str, str, str]] = set()

    def called(key: tuple[str, str, str]) -> tuple[int, int]:
        if key not in known:
            if key in open_calls:  # calls itself: the inliner refuses it
                return 0, 0
            open_calls.add(key)
            known[key] = size(functions[key].node)
            open_calls.discard(key)
        return known[key]

    def size(nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        count = size_bytes = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            own = called(key) if key in functions else (1, node.ByteSize())
            inner = [size(body.node) for body in bodies(node)]
            count += own[0] + sum(n for n, _ in inner)
            size_bytes += own[1] + sum(n for _, n in inner)
        return count, size_bytes

    try:
        count, size_bytes = size(proto.graph.node)
    except RecursionError:
        count, size_bytes = _MOST_NODES + 1, 0
    written = len(proto.graph.node) + sum(len(f.node) for f in proto.functions)
    many = count > min(_MOST_NODES, max(_MANY_NODES, _MOST_CALLS * written))
    if many or size_bytes > _MOST_BYTES:
        large = f"{count:,} nodes" if many else f"{size_bytes / 1e9:,.0f} GB"
        raise ModelError(
            f"{path}: its functions call each other so often that inlining them gives {large}",
            "Export the model without local functions.",
            code="QD-MODEL-FUNCTIONS",
        )


def check_computed(path: Path, proto: onnx.ModelProto) -> None:
    """Find out how large the constants become that nodes compute from nothing but constants.

    Raises:
        ModelError: they are too large, and grow out of little.
    """
    found = computed_bytes(proto)
    if found <= _MOST_BYTES:
        return
    own = sum(_bytes(t.data_type, t.dims) for t in _constants(proto.graph).values())
    if found > _MOST_TIMES * own:
        raise ModelError(
            f"{path}: nodes that read nothing but constants compute {found / 1e9:,.1f} GB",
            "Compute less in the model, or make what they read an input.",
            code="QD-MODEL-CONSTANTS",
        )


def computed_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all that nodes compute from constants, as far as shapes tell without computing."""
    constants = _constants(proto.graph)
    known, nodes = set(constants), []
    for node in proto.graph.node:
        if node.output and node.output[0] in constants:
            continue
        if known.issuperset(filter(None, node.input)) and not bodies(node):
            known.update(node.output)
            nodes.append(node)
    if not nodes:
        return 0
    small = {n: t for n, t in constants.items() if math.prod(t.dims) <= _SMALL and not place_of(t)}
    typed = [
        helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
        for name, tensor in constants.items()
        if name not in small
    ]
    held = []
    for name, tensor in small.items():
        held.append(onnx.TensorProto())
        held[-1].CopyFrom(tensor)
        held[-1].name = name
    part = helper.make_model(
        helper.make_graph(nodes, "constants", typed, [], held),
        opset_imports=proto.opset_import,
        ir_version=proto.ir_version,
    )
    try:
        inferred = onnx.shape_inference.infer_shapes(part)  # not `data_prop`, which computes
    except Exception:  # what is wrong with a node is said where it is executed
        return 0
    return sum(map(_bytes_of_type, inferred.graph.value_info))


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    found = {t.name: t for t in graph.initializer}
    for node in graph.node:
        held = node.attribute[0] if len(node.attribute) == 1 and node.output else None
        if node.op_type == "Constant" and held is not None and held.HasField("t"):
            found[node.output[0]] = held.t
    return found


def _bytes_of_type(value: onnx.ValueInfoProto) -> int:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return 0
    axes = value.type.tensor_type.shape.dim
    return _bytes(value.type.tensor_type.elem_type, [a.dim_value for a in axes])


def _bytes(kind: int, shape: Iterable[int]) -> int:
    try:
        return math.prod(shape) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    except KeyError:  # no type that there is
        return 0
