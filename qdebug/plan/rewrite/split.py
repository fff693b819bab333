"""Split channels between layers into parts, whose sum is what they were.

The layer that computes a channel gives it several times, each time as a part of it, and the layers
that read it have its weight as often; or it is given as it is, and the weight in parts (Zhao et
al., "Improving neural network quantization without retraining using outlier channel splitting",
2019, arXiv:1901.09504). The numbers of parts are powers of two, so that each part is exact;
channels of zeros fill the last tile of a kernel. Only operations that treat all channels alike may
lie between: nothing is added to the network but channels. (To repeat channels by a Gather is no
way: before one of 16 products of an encoder it took 9 % of the time on an H200.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.formats.base import along
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.weights import input_channels

Parts = npt.NDArray[np.int64]
"""Into how many parts each channel is split, powers of two, [channels]."""
Values = npt.NDArray[np.floating[Any]]

_TILE = 32
"""Channels that kernels take at once. On an H200 one channel more than 1024 took 65 % more of the
time of an encoder's two layers, 32 more took 9 %."""
_HOMOGENEOUS = frozenset({"AveragePool", "Identity", "LeakyRelu", "MaxPool", "Relu"})
"""What gives a part of its result for a part of its operand."""
_ALIKE = _HOMOGENEOUS | frozenset(
    {"Clip", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Selu", "Sigmoid"}
    | {"Softplus", "Softsign", "Tanh"}
)
"""What treats all channels alike."""


@dataclass(frozen=True)
class Way:
    """What lies between the layer that computes some channels and those that read them.

    Attributes:
        tensor: what is read.
        writer: the anchor of the layer that computes it.
        readers: anchors, each with a weight of its own, of one group.
        between: nodes, from the last to the first.
        homogeneous: a part of the channel stays a part of it.
    """

    tensor: str
    writer: str
    readers: tuple[str, ...]
    between: tuple[str, ...]
    homogeneous: bool


@dataclass(frozen=True)
class Split:
    """Channels that are split.

    Attributes:
        parts: of each channel.
        of_weight: the weights that read them are given in parts; else the channels are.
    """

    way: Way
    parts: Parts
    of_weight: bool = False

    @property
    def added(self) -> float:
        """How much work there is more for each of the layers, as a share: kernels compute with
        whole tiles of channels."""
        return float(_in_tiles(int(self.parts.sum())) / _in_tiles(len(self.parts)) - 1)

    def repeated(self, values: Values, axis: int, *, divided: bool) -> Values:
        """Values of the channels along an axis, for the channels as they are repeated; `divided`:
        by the numbers of parts. Zeros fill the last tile."""
        wide: Values = np.repeat(values, self.parts, axis)
        if divided:
            wide = wide * along(1 / np.repeat(self.parts, self.parts), axis, wide.ndim)
        edges = [(0, 0)] * wide.ndim
        edges[axis] = (0, _in_tiles(wide.shape[axis]) - wide.shape[axis])
        return np.pad(wide, edges)


def _in_tiles(channels: int) -> int:
    return _TILE * math.ceil(channels / _TILE)


@dataclass(frozen=True)
class SplitUp:
    """A network of the same function.

    Attributes:
        proto: the network.
        stale: tensors whose values are others now, weights included.
    """

    proto: onnx.ModelProto
    stale: frozenset[str]


def way_to(graph: Graph, tensor: str) -> Way | None:
    """How the channels of a tensor could be split; None where they cannot."""
    readers = graph.consumers.get(tensor, ())
    kinds = {reader.op_type == "Conv" for reader in readers}
    if len(kinds) != 1 or not all(_reads(graph, reader, tensor) for reader in readers):
        return None
    between: list[str] = []
    here, homogeneous = tensor, True
    while here not in graph.outputs:
        node = graph.producers.get(here)
        if node is None or node.domain or len(node.outputs) != 1:
            return None
        if input_channels(graph, node) is not None:
            fits = (node.op_type == "Conv") in kinds and _writes(graph, node)
            names = tuple(reader.name for reader in readers)
            return Way(tensor, node.name, names, tuple(between), homogeneous) if fits else None
        conv_bias = node.op_type == "Add" and True in kinds
        source = None if conv_bias else _passes(graph, node)
        if source is None or len(graph.consumers[source]) != 1:
            return None
        homogeneous = homogeneous and (node.op_type in _HOMOGENEOUS or node.op_type == "Add")
        between.append(node.name)
        here = source
    return None


def split_channels(graph: Graph, splits: Sequence[Split]) -> SplitUp:
    """`graph` with channels split.

    Raises:
        PlanError: as `check`.
    """
    reading = {name: split for split in splits for name in split.way.readers}
    writing = {split.way.writer: split for split in splits}
    shifting = {name: split for split in splits for name in split.way.between}
    editor = Editor(graph)
    stale: set[str] = set()
    for proto in graph.proto.graph.node:
        node, view = copy_node(proto), graph.by_name[proto.name]
        split = writing.get(proto.name) or shifting.get(proto.name)
        for position in _constants(graph, view):
            tensor = view.inputs[position]
            value = graph.constant(tensor)
            assert value is not None
            weighted = input_channels(graph, view) is not None
            wide = value
            if position == 1 and weighted and proto.name in reading:
                wide = split_input(graph, view, reading[proto.name], wide)
            if split is not None and (weighted or value.size == len(split.parts)):
                wide = split_output(graph, view, split, wide)
            if wide is not value:
                stale.add(tensor)
                values = wide.astype(np.float32)
                node.input[position] = editor.initializer(values, f"{tensor}_split")
        if split is not None:
            stale.add(view.outputs[0])
        editor.emit(node)
    return SplitUp(editor.finish("the network with split channels"), frozenset(stale))


def split_input(graph: Graph, node: Node, split: Split, weight: Values) -> Values:
    """The weight of a reader, or another of its shape, for the channels as they are repeated."""
    axis = 1 if node.op_type == "Conv" else weight.ndim - 2
    if node.op_type == "Gemm":
        axis = int(graph.attributes(node).get("transB", 0))
    return split.repeated(weight, axis, divided=split.of_weight)


def split_output(graph: Graph, node: Node, split: Split, values: Values) -> Values:
    """A constant of what computes the channels, its weight or what it adds, for these."""
    axis = next(i for i, size in enumerate(values.shape) if size == len(split.parts))
    if input_channels(graph, node) is not None and values.ndim > 1:
        axis = 0 if node.op_type == "Conv" else values.ndim - 1
        if node.op_type == "Gemm":
            axis = 0 if graph.attributes(node).get("transB", 0) else 1
    return split.repeated(values, axis, divided=not split.of_weight)


def _reads(graph: Graph, node: Node, tensor: str) -> bool:
    return _one_group(graph, node) and node.inputs[0] == tensor and node.reads.count(tensor) == 1


def _writes(graph: Graph, node: Node) -> bool:
    """Whether the channels of a product, and only they, come from its constants."""
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    value = graph.constant(bias) if bias else None
    channels = graph.shapes.get(node.outputs[0], (None,))[1 if node.op_type == "Conv" else -1]
    return _one_group(graph, node) and (
        not bias or (value is not None and value.ndim == 1 and value.size == channels)
    )


def _one_group(graph: Graph, node: Node) -> bool:
    """Whether a node is a product with a weight that nothing else reads, each output channel of
    which reads every input channel."""
    if input_channels(graph, node) is None or node.op_type == "ConvTranspose":
        return False
    alone = len(graph.consumers[node.inputs[1]]) == 1
    return alone and graph.attributes(node).get("group", 1) == 1


def _passes(graph: Graph, node: Node) -> str | None:
    """What a node gives channel by channel; None for one that does not."""
    constants = _constants(graph, node)
    sources = [t for i, t in enumerate(node.inputs) if t and i not in constants]
    if len(sources) != 1:
        return None
    if node.op_type in _ALIKE:
        numbers = all(graph.initializers[node.inputs[i]].dims in ([], [1]) for i in constants)
        return sources[0] if numbers else None
    if node.op_type != "Add":
        return None
    shape = graph.shapes.get(node.outputs[0], ())
    (place,) = constants
    value = graph.constant(node.inputs[place])
    return sources[0] if value is not None and _is_bias(value.shape, shape) else None


def _is_bias(dims: tuple[int, ...], shape: Sequence[int | str | None]) -> bool:
    """Whether a constant has one value for each channel of what computes with matrices: for its
    last axis."""
    return len(dims) == 1 and bool(shape) and dims[0] == shape[-1] and len(shape) != 4


def _constants(graph: Graph, node: Node) -> list[int]:
    return [i for i, t in enumerate(node.inputs) if t in graph.initializers]
