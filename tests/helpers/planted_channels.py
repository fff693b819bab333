"""Channels of unequal range in activations and weights, undone by what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper
from planted_network import Fault, Network, first, int8_fault, outputs_of, spread

from qdebug.network.graph import Graph, Node
from qdebug.network.layers import Layer
from qdebug.plan.plan import PrecisionPlan, TensorRange
from qdebug.types import Array, Precision

# --- weights --------------------------------------------------------------------------------


def unequal_channels(network: Network, most: int = 3, factor: float = 64.0) -> Iterator[Fault]:
    """One channel `factor` times as large, undone by the weights of all that read it."""
    planted = []
    for tensor in network.quantized():
        edit = ChannelEdit(network.model)
        if edit.scale(tensor, factor) and network.readers(tensor):
            planted.append((tensor, edit.model))
    for tensor, model in spread(planted, most):
        after = outputs_of(model, first(network.calibration, 4))
        before = [a[:4] for a in network.calibration_outputs]
        if not all(
            np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(before, after, strict=True)
        ):
            raise AssertionError(f"{network.name}: {tensor}: another function")
        yield int8_fault(
            network,
            "channel-times-64",
            tensor,
            culprits=network.readers(tensor),
            labels={"coarse-step"},
            model=model,
            plan=PrecisionPlan(Precision.INT8),
            calib_data=network.calibration,
        )


_PASS = frozenset(
    {"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Dropout"}
)
"""Operators that a positive factor of one channel passes through."""


class ChannelEdit:
    """A model in which one channel of a tensor is scaled and what reads it undoes that."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = Graph(model)
        self._constants = {t.name: t for t in self.model.graph.initializer}
        self._scaled: set[str] = set()

    def scale(self, tensor: str, factor: float) -> bool:
        """Scale the middle channel; False where the network has no place to undo it."""
        node = self.graph.producers.get(tensor)
        while node is not None and node.op_type in _PASS:
            tensor = node.inputs[0]
            node = self.graph.producers.get(tensor)
        if node is None or tensor in self.graph.outputs:
            return False
        return self._source(node, tensor, factor) and self._readers(tensor, 1 / factor)

    def _source(self, node: Node, tensor: str, factor: float) -> bool:
        """Scale the channel where `node` makes it."""
        kind = node.op_type
        if kind == "Add":
            constant, other = _constant_of(self.graph, node)
            producer = self.graph.producers.get(other)
            alone = len(self.graph.consumers.get(other, ())) == 1
            if not (constant and producer and alone and self._is_vector(constant)):
                return False
            return self._source(producer, other, factor) and self.scale_constant(
                constant, -1, factor
            )
        if kind in ("Mul", "LayerNormalization"):
            names = [t for t in node.inputs if t in self._constants]
            known = kind == "LayerNormalization" or self.graph.consumers[tensor]
            if not known or not names or not all(self._is_vector(t) for t in names):
                return False
            return all(self.scale_constant(t, -1, factor) for t in names)
        if kind not in ("Conv", "MatMul", "Gemm") or node.inputs[1] not in self._constants:
            return False
        axis = output_axis(self.graph, node, len(self._constants[node.inputs[1]].dims))
        parts = [self.scale_constant(node.inputs[1], axis, factor)]
        parts += [self.scale_constant(t, -1, factor) for t in node.inputs[2:]]
        return all(parts)

    def _readers(self, tensor: str, factor: float) -> bool:
        """Undo the channel in everything that reads it."""
        readers = self.graph.consumers.get(tensor, ())
        return bool(readers) and all(self._undo(n, tensor, factor) for n in readers)

    def _undo(self, node: Node, tensor: str, factor: float) -> bool:
        if node.op_type in _PASS:
            return node.outputs[0] not in self.graph.outputs and self._readers(
                node.outputs[0], factor
            )
        if node.op_type not in ("Conv", "MatMul", "Gemm") or node.inputs[0] != tensor:
            return False
        weight = node.inputs[1]
        if weight not in self._constants:
            return False
        axis = {"Conv": 1, "MatMul": -2, "Gemm": -2}[node.op_type]
        if node.op_type == "Gemm" and self.graph.attributes(node).get("transB"):
            axis = 1
        if node.op_type == "Conv" and self._constants[weight].dims[1] == 1:
            axis = 0  # depthwise
        return self.scale_constant(weight, axis, factor)

    def value(self, name: str) -> Array:
        """Of a constant; it may be changed and set again."""
        return numpy_helper.to_array(self._constants[name]).copy()

    def set(self, name: str, values: Array) -> None:
        """Change a constant."""
        self._constants[name].CopyFrom(numpy_helper.from_array(values, name))

    def is_alone(self, name: str) -> bool:
        """Whether it is a constant that a single node reads."""
        return name in self._constants and len(self.graph.consumers[name]) == 1

    def _is_vector(self, name: str) -> bool:
        return sum(d != 1 for d in self._constants[name].dims) == 1

    def scale_constant(self, name: str, axis: int, factor: float) -> bool:
        """Scale the middle channel of a constant, once."""
        if name in self._scaled or not self.is_alone(name):
            return False
        values = self.value(name)
        if values.ndim < abs(axis) or values.shape[axis] < 4:
            return False
        along = np.moveaxis(values, axis, 0)
        along[values.shape[axis] // 2] *= np.float32(factor)
        self.set(name, values)
        self._scaled.add(name)
        return True


def _constant_of(graph: Graph, node: Node) -> tuple[str, str]:
    """The constant operand of a binary node, "" for none, and the other one."""
    a, b = node.inputs
    return (b, a) if b in graph.initializers else (a, b) if a in graph.initializers else ("", a)


def output_axis(graph: Graph, node: Node, rank: int) -> int:
    """Where the output channels of a weight of so many axes are."""
    if node.op_type == "Gemm" and graph.attributes(node).get("transB"):
        return 0
    return {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, rank - 1)


def one_scale(network: Network, most: int = 3, factor: float = 64.0) -> Iterator[Fault]:
    """A weight with one scale, one channel of which is `factor` times as large; a product behind
    the layer undoes it. With a scale for each channel it would do no harm."""
    layers = [x for x in network.layers if x.quantizable and x.weight and len(x.nodes) == 1]
    for layer in spread(layers, most):
        found = with_large_channel(network, layer, factor)
        if found is None or layer.weight is None:
            continue
        model, weight, _ = found
        yield int8_fault(
            network,
            "one-weight-scale",
            layer.name,
            culprits={layer.name},
            labels={"weight-range"},
            model=model,
            plan=replace(
                network.plan,
                tensors={
                    **network.plan.tensors,
                    layer.weight: TensorRange(float(np.abs(weight).max())),
                },
            ),
        )


def with_large_channel(
    network: Network, layer: Layer, factor: float, undo: str = "Mul"
) -> tuple[onnx.ModelProto, Array, int] | None:
    """The network with the middle channel of a weight `factor` times as large, and a Mul or a
    BatchNormalization behind the layer that undoes it; the weight; the axis of its channels."""
    graph = Graph(network.model)
    node = graph.by_name[layer.name]
    known = layer.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm")
    if not known or layer.weight is None or layer.weight != node.inputs[1]:
        return None
    edit = ChannelEdit(network.model)
    if not edit.is_alone(layer.weight):
        return None
    rank = edit.value(layer.weight).ndim
    axis = output_axis(graph, node, rank)
    biases = [t for t in node.inputs[2:] if t]
    if not edit.scale_constant(layer.weight, axis, factor):
        return None
    if not all(edit.scale_constant(t, -1, factor) for t in biases):
        return None
    weight = edit.value(layer.weight)
    channels = weight.shape[axis]
    small = np.ones(channels, np.float32)
    small[channels // 2] = 1 / factor
    if undo == "BatchNormalization":
        rest = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
        insert_after(edit.model, node.outputs[0], undo, small, *rest, np.ones_like(small))
    else:
        images = layer.op_type.startswith("Conv")
        shape = (-1, *[1] * (rank - 2)) if images else (-1,)
        insert_after(edit.model, node.outputs[0], undo, small.reshape(shape))
    return edit.model, weight, axis


def insert_after(model: onnx.ModelProto, tensor: str, kind: str, *constants: Array) -> None:
    """`kind` with constants between `tensor`'s producer and all that read it; the result keeps the
    name `tensor`."""
    raw = f"{tensor}_raw"
    names = [f"{tensor}_undo{k or ''}" for k in range(len(constants))]
    nodes = list(model.graph.node)
    position = next(i for i, n in enumerate(nodes) if tensor in n.output)
    producer = nodes[position]
    producer.output[list(producer.output).index(tensor)] = raw
    model.graph.initializer.extend(map(numpy_helper.from_array, constants, names))
    node = helper.make_node(kind, [raw, *names], [tensor], f"{producer.name}_{kind.lower()}")
    model.graph.node.insert(position + 1, node)
    kept = [v for v in model.graph.value_info if v.name != raw]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
