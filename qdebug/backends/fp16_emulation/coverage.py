"""Of which FP16 nodes the simulation predicts the error that they have in an engine.

Those whose kernels were observed to round as they are simulated; the modules beside this one say
how, and what was observed. Of others the simulation rounds the output only, which may be better or
worse than an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx

from qdebug.backends.fp16_emulation.conv import FEW_POSITIONS, MANY_POSITIONS
from qdebug.backends.fp16_emulation.recurrent import RECURRENT, is_usual
from qdebug.backends.fp16_emulation.rounding import SELECTING, WRITTEN_OUT, is_written_out
from qdebug.network.graph import Graph, Node
from qdebug.types import Fp16Kernels

_MOVING = frozenset(
    {"Cast", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"}
    | {"Identity", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth"}
    | {"Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"}
)
"""Operators whose results are values of their operands in other places."""

_ROUND_ONCE = frozenset(
    {"Abs", "Add", "AveragePool", "ConvTranspose", "Cos", "Div", "Dropout", "Erf", "Exp"}
    | {"GlobalAveragePool", "GlobalMaxPool", "Log", "Mul", "Neg", "PRelu", "Reciprocal"}
    | {"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}
    | {"Resize", "Sigmoid", "Sin", "Sqrt", "Sub", "Tanh", "ThresholdedRelu", "Where"}
)
"""Operators that were observed to round their results alone; so is Pow with the exponents below."""

_EXPONENTS = (2.0, 0.5)
_LONG_SUM = 1000
"""Terms from which on a product of matrices may be split."""

_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "ReduceMean"})
_SIGMOIDS = frozenset({"Clip", "HardSigmoid", "Sigmoid"})
"""What ends a gate; Clip where HardSigmoid is written out."""

FEW_SAMPLES = 4
"""Samples below which nothing behind a gate or a recurrent layer is predicted. With one, 85 % of
the tensors below 60 dB behind gates are within 1 dB of an engine, with eight 93 % of those of
three networks with gates, before and behind them (docs/validation/fp16.md)."""


def predicted(graph: Graph, node: str, kernels: Fp16Kernels) -> bool:
    """Whether the simulation rounds a node with FP16 outputs as an engine's kernel is known to.

    Args:
        graph: a lowered model, with types and shapes.
        kernels: how the simulation rounds inside of an operator.
    """
    view = graph.by_name[node]
    if view.domain:
        return False
    kind = view.op_type
    if kind == "Pow":
        exponent = graph.constant(view.inputs[1])
        return exponent is not None and bool(np.isin(exponent, _EXPONENTS).all())
    if kind in _MOVING or kind in _ROUND_ONCE or kind in SELECTING:
        return True
    if kernels is not Fp16Kernels.TENSORRT:
        return False
    if kind in RECURRENT:
        return is_usual(graph.protos[node])
    limit = _LIMITS.get(kind)
    if limit is not None and not limit(graph, view):
        return False
    return kind in WRITTEN_OUT and (kind in _EXACT_TOO or _is_simulated(graph, view))


def behind_few_values(graph: Graph) -> frozenset[str]:
    """The nodes whose values depend on a gate as squeeze and excitation has it (a mean over all
    places that went through a sigmoid, by which what is at each place is multiplied) or on the
    states of a recurrent layer. In one sample a gate has a value for each channel only, and a state
    one for each unit, which each step hands on; all that follows inherits what these few are
    rounded to."""
    fixed, pooled, gates, behind = set(graph.initializers), set[str](), set[str](), set[str]()
    found = []
    for node in graph.nodes:
        reads, outputs = {t for t in node.inputs if t} - fixed, node.outputs
        gated = node.op_type == "Mul" and bool(reads & gates) and not reads <= pooled
        if reads & behind or gated or node.op_type in RECURRENT:
            behind.update(outputs)
            found.append(node.name)
        if not reads:
            fixed.update(outputs)
        elif node.op_type in _POOLS or reads <= pooled:
            pooled.update(outputs)
            if reads & gates or (reads <= pooled and node.op_type in _SIGMOIDS):
                gates.update(outputs)
    return frozenset(found)


def _is_simulated(graph: Graph, node: Node) -> bool:
    proto: onnx.NodeProto = graph.protos[node.name]
    return is_written_out(proto, [graph.shapes.get(t) for t in node.inputs], graph.opset)


def _short_sum(graph: Graph, node: Node) -> bool:
    """By the operand whose sizes are known: behind a recurrent layer they are the weight's."""
    transposed = {a.name for a in graph.protos[node.name].attribute if a.i}
    left, right = (graph.shapes.get(t) for t in node.inputs[:2])
    terms = left[0 if "transA" in transposed else -1] if left else None
    if not isinstance(terms, int) and right and len(right) > 1:
        terms = right[-1 if "transB" in transposed else -2]
    return isinstance(terms, int) and terms < _LONG_SUM


def _known_product(graph: Graph, node: Node) -> bool:
    """A short sum, and not of one row with a constant stack of matrices that has another rank:
    kernels of both kinds were seen for that."""
    left, right = (graph.shapes.get(t) for t in node.inputs[:2])
    if not left or not right or not _short_sum(graph, node):
        return False
    lifted = len(right) > 2 and 2 <= len(left) != len(right)
    return not (lifted and left[-2] == 1 and graph.constant(node.inputs[1]) is not None)


def _known_window(graph: Graph, node: Node) -> bool:
    """Not a long sum over one pixel of the input, and in one dimension no kernel of a length that
    was not tried."""
    shape = graph.shapes.get(node.inputs[1])
    sizes = [n for n in shape or () if isinstance(n, int)]
    if not shape or len(sizes) != len(shape):
        return False
    positions = math.prod(sizes[2:])
    if positions == 1:
        return sizes[1] < _LONG_SUM
    between = FEW_POSITIONS < positions < MANY_POSITIONS
    return not (len(sizes) == 3 and between and sizes[1] > 1)


_EXACT_TOO = frozenset({"Conv", "Gemm"})
"""Operators that also have kernels which round once, in sizes that are known."""

_LIMITS: Mapping[str, Callable[[Graph, Node], bool]] = {
    "Conv": _known_window,
    "Gemm": _short_sum,
    "MatMul": _known_product,
}
