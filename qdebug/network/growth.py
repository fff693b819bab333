"""How large a model becomes where functions are inlined and constants computed: a file of a few
kilobytes may ask for more than any machine has, and that is found before it is begun."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import onnx
from onnx import helper

from qdebug.errors import ModelError
from qdebug.network.subgraphs import bodies

_MOST_TIMES = 100
"""What a file may grow by, from these sizes on: a network of a hundred alike layers has fewer, and
casts of all weights are large where these are."""
MANY_NODES = 10_000
"""`compare` took 4 s of CPU for 2048 nodes of functions, 10 s for 4096 and 24 s for 8192 (two
cores, November 2026)."""
MANY_BYTES = (1 << 31) - 1
"""Of a message."""
_NODE_BYTES = 1 << 12


def outgrows(size: int, own: int, least: int) -> bool:
    """Whether it is more than a file may become that holds `own`, which may be `least` anyway."""
    return size > max(least, _MOST_TIMES * own)


def check_inlined(path: Path, proto: onnx.ModelProto) -> None:
    """Find out how many nodes a model has when its functions are inlined, which may call others.

    Raises:
        ModelError: they are too many.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    begun: set[tuple[str, str, str]] = set()

    @cache
    def called(key: tuple[str, str, str]) -> int:
        if key in begun:  # calls itself: the inliner refuses it
            return 0
        begun.add(key)
        return count(functions[key].node)

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += called(key) if key in functions else _size(node)
            total += sum(count(body.node) for body in bodies(node))
        return total

    written = sum(map(_size, (*proto.graph.node, *(n for f in proto.functions for n in f.node))))
    try:
        size = count(proto.graph.node)
    except RecursionError:
        size = (MANY_NODES + written) * _MOST_TIMES
    if outgrows(size, written, MANY_NODES):
        raise ModelError(
            f"{path}: its functions call each other so often that inlining them gives {size:,} "
            "nodes",
            "Export the model without local functions.",
            code="QD-MODEL-FUNCTIONS",
        )


def _size(node: onnx.NodeProto) -> int:
    """How many nodes it counts for: one that holds constants for more."""
    return 1 + node.ByteSize() // _NODE_BYTES


def check_computed(path: Path, proto: onnx.ModelProto) -> None:
    """Find out how large the constants become that nodes compute from nothing but constants.

    Raises:
        ModelError: they are too large, and grow out of little.
    """
    size = computed_bytes(proto)
    own = sum(_bytes(t.data_type, t.dims) for t in proto.graph.initializer)
    if outgrows(size, own, MANY_BYTES):
        raise ModelError(
            f"{path}: nodes that read nothing but constants compute {size / 1e9:,.1f} GB",
            "Compute less in the model, or make what they read an input.",
            code="QD-MODEL-CONSTANTS",
        )


def computed_bytes(proto: onnx.ModelProto) -> int:
    """Bytes of all that nodes compute from constants, as far as shapes tell without computing."""
    computed = {t for node in constant_nodes(proto.graph) for t in node.output}
    if not computed:
        return 0
    try:
        inferred = onnx.shape_inference.infer_shapes(proto)  # not `data_prop`, which computes
    except Exception:  # what is wrong with a node is said where it is executed
        return 0
    values = (*inferred.graph.value_info, *inferred.graph.output)
    kinds = [v.type.tensor_type for v in values if v.name in computed]
    return sum(_bytes(kind.elem_type, [a.dim_value for a in kind.shape.dim]) for kind in kinds)


def _bytes(kind: int, shape: Iterable[int]) -> int:
    try:
        return math.prod(shape) * helper.tensor_dtype_to_np_dtype(kind).itemsize
    except KeyError:  # no type that there is
        return 0


def constant_nodes(graph: onnx.GraphProto, known: Iterable[str] = ()) -> list[onnx.NodeProto]:
    """The nodes of a graph that compute the same whatever is fed, Constant nodes left out.

    Args:
        known: tensors that are constant besides initializers and Constant nodes.
    """
    constants, computing = {t.name for t in graph.initializer} | set(known), []
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update(node.output)
        elif (
            constants.issuperset(filter(None, node.input))
            and not bodies(node)
            and not _DRAWS.match(node.op_type)
        ):
            computing.append(node)
            constants.update(node.output)
    return computing


_DRAWS = re.compile("Random|Bernoulli|Multinomial")
