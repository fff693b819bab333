"""How much work each layer is, for the shapes that the samples really have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qdebug.network.graph import Graph, Node, undeclared
from qdebug.network.layers import QUANTIZABLE_OPS, Layer, Layers
from qdebug.network.samples.subset import SampleSubset

Shape = Sequence[int | str | None]
Shapes = Mapping[str, Shape]
_RECURRENT = ("LSTM", "GRU", "RNN")
OTHER_WORK = (*_RECURRENT, "Einsum", "Attention", "If", "Loop", "Scan")
"""Operators that multiply too, and whose work is not that of quantizable layers."""
_NEVER_QUANTIZED = frozenset((*_RECURRENT, "Einsum", "Attention"))
"""Of these, those that are one layer each and get no Q/DQ pairs."""
_DEQUANTIZES = "DequantizeLinear"
_MUCH = 0.1
"""A share of the multiply-accumulates that is worth a sentence."""


@dataclass(frozen=True)
class Work:
    """What one execution of a layer computes.

    Attributes:
        macs: multiply-accumulates of Conv, ConvTranspose, Gemm and MatMul; 0 for other layers.
        elements: values it writes.
    """

    macs: float
    elements: float


def work_of(layers: Layers, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Work]:
    """The work of every layer, by name, when the model is fed arrays of these shapes.

    An axis that stays unknown counts as 1.
    """
    shapes = shapes_of_inputs(layers.graph, input_shapes)
    return {layer.name: _work(layers.graph, layer, shapes) for layer in layers}


def macs_per_sample(layers: Layers, subset: SampleSubset) -> float:
    """Multiply-accumulates of one sample, by the first execution."""
    work = work_of(layers, _first_inputs(subset))
    return sum(layer.macs for layer in work.values()) / subset.batches[0].count


def _first_inputs(subset: SampleSubset) -> Mapping[str, Sequence[int]]:
    batch = subset.batches[0]
    feeds = subset.samples.feeds(batch.start, batch.count)
    return {name: array.shape for name, array in feeds.items()}


def shapes_of_first(graph: Graph, subset: SampleSubset) -> Shapes:
    """Shapes in the first execution."""
    return shapes_of_inputs(graph, _first_inputs(subset))


def tensor_bytes(graph: Graph, subset: SampleSubset) -> dict[str, int]:
    """Bytes of each tensor in one execution, as far as its shape is inferred."""
    sizes = {t: _size(shape) for t, shape in shapes_of_first(graph, subset).items()}
    return {t: 4 * size for t, size in sizes.items() if size is not None}


def shapes_per_sample(graph: Graph) -> Shapes:
    """Shapes where the leading axis of the inputs, if it is dynamic, is 1, and so are all axes of
    its name. What follows from other dynamic axes stays dynamic."""
    unknown = {s.shape[0] for s in graph.inputs if s.shape and not isinstance(s.shape[0], int)}
    if not unknown:
        return graph.shapes
    named = unknown - {None, "?"}
    return shapes_of_inputs(
        graph,
        {
            spec.name: [
                1 if axis in named or (i == 0 and not isinstance(axis, int)) else axis
                for i, axis in enumerate(spec.shape)
            ]
            for spec in graph.inputs
        },
    )


def shapes_of_inputs(graph: Graph, input_shapes: Mapping[str, Shape]) -> Shapes:
    """Shapes inferred anew from those of the inputs; the weights stay behind."""
    proto = undeclared(graph.proto)
    for value in proto.graph.input:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, input_shapes.get(value.name, ()), strict=False
        ):
            if isinstance(size, int):
                dim.dim_value = size
    return Graph.inferred(proto).shapes


def _work(graph: Graph, layer: Layer, shapes: Shapes) -> Work:
    anchor = graph.by_name[layer.name]
    left, right, out = (
        [n if isinstance(n, int) and n > 0 else 1 for n in shapes.get(t, ())]
        for t in (*(*anchor.inputs, "", "")[:2], anchor.outputs[0])
    )
    multiplies = layer.op_type in QUANTIZABLE_OPS and not anchor.domain
    macs = known_macs(layer.op_type, left, right, out) if multiplies else None
    return Work(float(macs or 0), float(math.prod(out)))


def known_macs(
    op_type: str, left: Shape | None, right: Shape | None, out: Shape | None
) -> float | None:
    """Multiply-accumulates of a Conv, ConvTranspose, Gemm or MatMul with operands and output of
    these shapes; None where a shape, or an axis that counts, is unknown."""
    if left is None or right is None or out is None:
        return None
    factors = {
        "Conv": (out, right[1:]),  # the weight is [out, in / groups, kernel …]
        "ConvTranspose": (left, right[1:]),
        "MatMul": (out, left[-1:]),
    }
    sizes = [_size(shape) for shape in factors.get(op_type, (left, right, out))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    product = float(math.prod(known))
    # Either operand of a Gemm may be transposed: √(|A|·|B|·|Y|) is what it multiplies.
    return product if op_type in factors else math.sqrt(product)


def _size(shape: Shape) -> int | None:
    """How many values a shape has; None where an axis is free."""
    sizes = [n for n in shape if isinstance(n, int) and n >= 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None


@dataclass(frozen=True)
class UnquantizedWork:
    """Layers that multiply, and that stay in FP32 since there are no Q/DQ pairs for them.

    Attributes:
        counts: how many there are, by operator.
        share: their part of the multiply-accumulates, 0 to 1; None where a shape is not known or an
            operator's work is not counted.
    """

    counts: Mapping[str, int]
    share: float | None

    @property
    def sentence(self) -> str:
        """What to say of it; "" where there is none, or little."""
        if not self.counts or (self.share is not None and self.share < _MUCH):
            return ""
        many = sum(self.counts.values()) > 1
        told = (
            f"{listed_work(self.counts)} {'stay' if many else 'stays'} in FP32: "
            f"{'such layers get' if many else 'such a layer gets'} no Q/DQ pairs."
        )
        if self.share is None:
            return f"{told} {'Their' if many else 'Its'} part of the work is not known."
        part = f"{100 * self.share:.3g}%"
        return (
            f"{told} {'They do' if many else 'It does'} {part} of the multiply-accumulates, "
            "and quantization speeds up only the rest."
        )


def listed_work(counts: Mapping[str, int]) -> str:
    """Operators with their numbers, for people: "2 GRU, 1 Einsum"."""
    return ", ".join(f"{n} {op}" for op, n in counts.items())


def unquantized_work(
    graph: Graph, shapes: Shapes, among: Collection[str] | None = None
) -> UnquantizedWork:
    """The work of the nodes that nothing quantizes.

    Args:
        shapes: of the tensors of `graph`, such as those of `shapes_of_inputs`.
        among: the names of the nodes that may count; None for all.
    """
    nodes = [n for n in graph.nodes if not n.domain]
    left = [
        n
        for n in nodes
        if n.op_type in _NEVER_QUANTIZED
        and (among is None or n.name in among)
        and not any(
            graph.producers[t].op_type == _DEQUANTIZES for t in n.reads if t in graph.producers
        )
    ]
    counts = Counter(n.op_type for n in left)
    own = [_recurrent_macs(n, shapes) for n in left]
    others = [
        known_macs(n.op_type, *(shapes.get(t) for t in (*n.inputs[:2], n.outputs[0])))
        for n in nodes
        if n.op_type in QUANTIZABLE_OPS
    ]
    if not left or None in own or None in others:
        return UnquantizedWork(counts, None)
    work = sum(filter(None, own))
    total = work + sum(filter(None, others))
    return UnquantizedWork(counts, work / total if total else None)


def _recurrent_macs(node: Node, shapes: Shapes) -> float | None:
    """Multiply-accumulates of a recurrent layer: each step of each sequence multiplies its input
    and its state with the weights of all gates and directions. None where they are not known."""
    if node.op_type not in _RECURRENT:
        return None
    sequences, *weights = ([*shapes.get(t, (None,))] for t in node.inputs[:3])
    sizes = [_size(shape) for shape in (sequences[:-1], *weights)]
    if not all(sizes):
        return None
    steps, *operands = sizes
    return float(steps or 0) * sum(filter(None, operands))
