"""A network executed node after node, on all samples: in FP32, and as quantized so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdebug.backends.base import Backend
from qdebug.formats.base import FloatArray, Format
from qdebug.network.graph import Graph, Node
from qdebug.network.weights import renamed
from qdebug.plan.rewrite.edit import copy_node
from qdebug.types import Array

Batches = list[FloatArray]
"""A tensor on all samples: one array for each execution."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class AtOnce(Protocol):
    """Does work on several items at once."""

    def __call__(
        self, work: Callable[[ItemT], ResultT], items: Sequence[ItemT], /
    ) -> list[ResultT]:
        """`work` of each item, in order."""
        ...


def in_turn(work: Callable[[ItemT], ResultT], items: Sequence[ItemT]) -> list[ResultT]:
    """Does work on one item after the other. See AtOnce."""
    return [work(item) for item in items]


class Operator:
    """A node as a model of its own, opened when it is first run. Constants are inputs where they
    are given a value, and as they are otherwise."""

    def __init__(self, backend: Backend, graph: Graph, node: Node) -> None:
        self.node = node
        self._backend, self._graph = backend, graph
        self._sessions: dict[frozenset[tuple[str, int]], Any] = {}
        self._opening = Lock()

    def run(self, given: Mapping[str, Array]) -> Any:
        """The first output."""
        return self.all(given)[self.node.outputs[0]]

    def all(self, given: Mapping[str, Array]) -> Mapping[str, Array]:
        """Every output, by name."""
        key = frozenset((name, array.ndim) for name, array in given.items())
        with self._opening:
            if key not in self._sessions:
                self._sessions[key] = self._backend.open(self._model(given), ())
        found: Mapping[str, Array] = self._sessions[key].run(given)
        return found

    def close(self) -> None:
        """Free the sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def _model(self, given: Mapping[str, Array]) -> onnx.ModelProto:
        graph, proto = self._graph, self._graph.proto
        constants = []
        for tensor in dict.fromkeys(self.node.reads):
            if tensor in graph.initializers and tensor not in given:
                constants.append(renamed(graph.initializers[tensor], tensor))
        kind = helper.np_dtype_to_tensor_dtype
        inputs = [
            helper.make_tensor_value_info(t, kind(a.dtype), [None] * a.ndim)
            for t, a in given.items()
        ]
        outputs = [onnx.ValueInfoProto(name=t) for t in self.node.outputs if t]
        for output in outputs:
            if output.name in graph.types:
                output.type.tensor_type.elem_type = graph.types[output.name]
        made = helper.make_graph(
            [copy_node(graph.protos[self.node.name])], "operator", inputs, outputs, constants
        )
        return helper.make_model(
            made, opset_imports=proto.opset_import, ir_version=proto.ir_version
        )


class Streams:
    """The activations that later nodes read: in FP32, and as quantized so far."""

    def __init__(
        self, feeds: Sequence[Mapping[str, Array]], readings: Counter[str], at_once: AtOnce
    ) -> None:
        self._left = Counter(readings)
        self._count = len(feeds)
        self.at_once = at_once
        self.exact: dict[str, list[Any]] = {
            name: [one[name] for one in feeds] for name in (feeds[0] if feeds else {})
        }
        self.rounded: dict[str, list[Any]] = dict(self.exact)

    def reference(self, operator: Operator) -> None:
        """Execute a node in FP32."""
        self._put(self.exact, operator, self._given(self.exact, operator.node, {}))

    def same(self, node: Node) -> None:
        """What a node gives is not quantized so far."""
        self.rounded |= {t: self.exact[t] for t in node.outputs if t in self.exact}

    def same_or_run(self, operator: Operator) -> None:
        """Execute a node that quantizes nothing on what is quantized so far."""
        node = operator.node
        if all(self.rounded.get(t) is self.exact.get(t) for t in node.reads):
            self.same(node)
        else:
            self.run(operator, {}, {}, None)

    def quantized(self, tensor: str, scale: FloatArray, form: Format) -> Batches:
        """A tensor as quantized so far, after Q/DQ."""
        return self.at_once(lambda x: form.quantize(x, scale), self.rounded[tensor])

    def run(
        self,
        operator: Operator,
        given: Mapping[str, Batches],
        fixed: Mapping[str, FloatArray],
        shift: npt.NDArray[np.float32] | None,
    ) -> None:
        """Execute a node on what is quantized so far, some operands replaced: `given` by batch,
        `fixed` for all; `shift` is added to its first output."""
        feeds = self._given({**self.rounded, **given}, operator.node, fixed)
        self._put(self.rounded, operator, feeds, shift)

    def release(self, node: Node) -> None:
        """Forget what no later node reads."""
        for tensor in dict.fromkeys(node.reads):
            self._left[tensor] -= 1
        for tensor in (*node.reads, *node.outputs):
            if self._left[tensor] <= 0:
                self.exact.pop(tensor, None)
                self.rounded.pop(tensor, None)

    def _given(
        self, stream: Mapping[str, list[Any]], node: Node, fixed: Mapping[str, FloatArray]
    ) -> list[dict[str, Array]]:
        reads = [t for t in dict.fromkeys(node.reads) if t in stream and t not in fixed]
        return [{**fixed, **{t: stream[t][i] for t in reads}} for i in range(self._count)]

    def _put(
        self,
        stream: dict[str, list[Any]],
        operator: Operator,
        feeds: list[dict[str, Array]],
        shift: npt.NDArray[np.float32] | None = None,
    ) -> None:
        found = self.at_once(operator.all, feeds)
        for number, tensor in enumerate(operator.node.outputs):
            if not tensor:
                continue
            values = [one[tensor] for one in found]
            if number == 0 and shift is not None:
                values = [one + shift for one in values]
            stream[tensor] = values


def readings(graph: Graph) -> Counter[str]:
    """How many nodes read each tensor."""
    return Counter(t for node in graph.nodes for t in dict.fromkeys(node.reads))
