"""Outputs whose values lie in 0 to 1 by the operators that give them."""

from __future__ import annotations

from qdebug.network.graph import Graph, Node

_GIVING = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
_KEEPING = frozenset(
    {"Identity", "Cast", "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Expand"}
    | {"Slice", "Gather", "Split", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
    | {"QuantizeLinear", "DequantizeLinear"}
)
"""Their first input decides: they move values, or take the largest or the mean of some."""
_INTERPOLATING = frozenset({b"nearest", b"linear"})
"""Modes of Resize and Upsample; a cubic one overshoots."""


def share_outputs(graph: Graph) -> frozenset[str]:
    """The outputs whose values are shares of 0 to 1: of a Sigmoid, a Softmax or a Clip, which may
    be moved, joined, pooled or interpolated after that."""
    return frozenset(t for t in graph.outputs if _is_share(graph, t))


def _is_share(graph: Graph, output: str) -> bool:
    waiting, seen = [(output, False)], set[tuple[str, bool]]()
    while waiting:
        tensor, are_codes = at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        node = graph.producers.get(tensor)
        if node is None or node.domain or (node.op_type == "QuantizeLinear" and not are_codes):
            return False  # codes of 0 to 255, say
        if _keeps(graph, node):
            is_between = are_codes and node.op_type != "QuantizeLinear"
            waiting.append((node.inputs[0], is_between or node.op_type == "DequantizeLinear"))
        elif node.op_type in ("Concat", "Mul"):
            waiting += [(t, are_codes) for t in node.inputs]
        elif node.op_type not in _GIVING and not (node.op_type == "Clip" and _clips(graph, node)):
            return False
    return True


def _keeps(graph: Graph, node: Node) -> bool:
    if node.op_type in ("Resize", "Upsample"):
        return graph.attributes(node).get("mode", b"nearest") in _INTERPOLATING
    return node.op_type in _KEEPING


def _clips(graph: Graph, node: Node) -> bool:
    """Whether a Clip ends at 0 or above, and at 1 or below."""
    attributes = graph.attributes(node)
    ends = [attributes.get("min"), attributes.get("max")]
    for place, tensor in enumerate(node.inputs[1:3]):
        value = graph.constant(tensor) if tensor else None
        ends[place] = None if value is None else float(value.reshape(-1)[0])
    low, high = ends
    return low is not None and high is not None and low >= 0 and high <= 1
