"""What the output of a layer goes through before anything else reads it: its activation, mostly.

Behind a SiLU, a Relu or a Sigmoid most errors of most channels are gone, and what a layer is fitted
to should count what is left of them: Nagel et al., "Up or down? Adaptive rounding for post-training
quantization", 2020, section 4.2.
"""

from __future__ import annotations

from contextlib import ExitStack, closing

import numpy as np

from qdebug.backends.base import Backend
from qdebug.decide.remedies.streams import Operator
from qdebug.formats.base import FloatArray
from qdebug.network.graph import Graph, Node

_BY_ELEMENT = frozenset(
    {
        "Abs", "Add", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid",
        "HardSwish", "Identity", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mul", "Neg", "PRelu",
        "Pow", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Tanh",
        "ThresholdedRelu",
    }
)  # fmt: skip


class Activation:
    """What the values of a tensor go through, one by one, before anything else reads them: nothing
    for a tensor that is read as it is."""

    def __init__(
        self, backend: Backend, graph: Graph, tensor: str, channel_axis: int, *, whole: bool
    ) -> None:
        """
        Args:
            channel_axis: of the tensor, counted from the end, 0 where it has none: constants may
                differ along it.
            whole: values are given in the tensor's own shape, so that constants may differ from
                position to position, too.
        """
        self._tensor = tensor
        self._stack = ExitStack()
        self._operators = [
            self._stack.enter_context(closing(Operator(backend, graph, node)))
            for node in _behind(graph, tensor, channel_axis, whole)
        ]

    def close(self) -> None:
        """Free the sessions."""
        self._stack.close()

    @property
    def is_there(self) -> bool:
        """They go through something."""
        return bool(self._operators)

    def __call__(self, values: FloatArray) -> FloatArray:
        """What they become."""
        known, tensor = {self._tensor: values}, self._tensor
        for operator in self._operators:
            reads = operator.node.reads
            found = operator.run({t: known[t] for t in reads if t in known})
            tensor = operator.node.outputs[0]
            known[tensor] = found.reshape(values.shape)
        return known[tensor]

    def slope(self, values: FloatArray, step: FloatArray) -> FloatArray:
        """Between `values` less and more `step`, which broadcasts against them and is above 0."""
        return np.asarray((self(values + step) - self(values - step)) / (2 * step), np.float32)


def _behind(graph: Graph, tensor: str, channel_axis: int, whole: bool) -> list[Node]:
    """The nodes that compute, from a tensor and constants alone, the last tensor through which all
    that is read of it passes."""
    inside, nodes, passed = {tensor}, list[Node](), list[Node]()
    for node in graph.nodes:
        if inside.isdisjoint(node.reads) or node.op_type not in _BY_ELEMENT or node.domain:
            continue
        if not all(t in inside or _fits(graph, t, channel_axis, whole) for t in node.reads):
            continue
        nodes = [*nodes, node]
        inside.add(node.outputs[0])
        names = {n.name for n in nodes}
        leaving = [
            t
            for t in inside
            if t in graph.outputs or any(n.name not in names for n in graph.consumers.get(t, ()))
        ]
        if leaving == [node.outputs[0]]:
            passed = nodes
    return passed


def _fits(graph: Graph, tensor: str, channel_axis: int, whole: bool) -> bool:
    """Whether a tensor is a constant that does not differ between samples, nor, unless `whole`,
    between positions."""
    if tensor not in graph.initializers:
        return False
    shape = graph.initializers[tensor].dims
    along = len(shape) + channel_axis  # beyond all axes where there are no channels
    if whole:
        return along <= 1 and all(size == 1 for size in shape[:along])
    return all(size == 1 or i == along for i, size in enumerate(shape))
