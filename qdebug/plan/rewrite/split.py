"""Split channels of what layers read into parts, whose sum is what they were.

A channel is given several times, each time as a part of it, or with a part of the weight (Zhao et
al., "Improving neural network quantization without retraining using outlier channel splitting",
2019, arXiv:1901.09504). The numbers of parts are powers of two, so that each part is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from qdebug.model.graph import Graph, Node
from qdebug.plan.rewrite.edit import Editor, copy_node
from qdebug.plan.rewrite.weights import along, channel_axis

Parts = npt.NDArray[np.int64]
"""Into how many parts each channel is split, powers of two, [channels]."""


@dataclass(frozen=True)
class Split:
    """Channels that some layers read.

    Attributes:
        tensor: what they read.
        readers: the layers' anchors, each with a weight of its own and of one group.
        parts: of each channel.
        of_weight: the weight is given in parts; else the tensor is.
    """

    tensor: str
    readers: tuple[str, ...]
    parts: Parts
    of_weight: bool = False

    @property
    def added(self) -> float:
        """How many channels there are more, as a share."""
        return float(self.parts.sum() / len(self.parts) - 1)


@dataclass(frozen=True)
class SplitUp:
    """A network of the same function.

    Attributes:
        proto: the network.
        stale: tensors whose values are others now, weights included.
    """

    proto: onnx.ModelProto
    stale: frozenset[str]


def split_inputs(graph: Graph, splits: Sequence[Split]) -> SplitUp:
    """`graph` with channels split. A Gather repeats them, and a Mul divides them where it is the
    tensor that is given in parts.

    Raises:
        PlanError: as `check`.
    """
    by_reader = {name: split for split in splits for name in split.readers}
    editor = Editor(graph)
    made: dict[str, str] = {}
    stale: set[str] = set()
    for proto in graph.proto.graph.node:
        node, split = copy_node(proto), by_reader.get(proto.name)
        if split is not None:
            view = graph.by_name[proto.name]
            if split.tensor not in made:
                made[split.tensor] = _repeated(editor, graph, view, split)
            node.input[0] = made[split.tensor]
            weight = graph.constant(view.inputs[1])
            assert weight is not None
            wide = split_weight(graph, view, split, weight)
            node.input[1] = editor.initializer(wide, f"{view.inputs[1]}_split")
            stale.add(view.inputs[1])
        editor.emit(node)
    return SplitUp(editor.finish("the network with split channels"), frozenset(stale))


def _repeated(editor: Editor, graph: Graph, node: Node, split: Split) -> str:
    """The channels, each as often as it has parts."""
    axis, tensor = channel_axis(graph, node), split.tensor
    places = np.repeat(np.arange(len(split.parts)), split.parts)
    name = f"{tensor}_split"
    found = editor.add(
        "Gather",
        tensor,
        editor.initializer(places, f"{tensor}_channels"),
        output=editor.tensor_name(f"{tensor}_repeated" if not split.of_weight else name),
        name=f"{tensor}_repeat",
        axis=len(graph.shapes[tensor]) + axis,
    )
    if split.of_weight:
        return found
    shares = along(1 / np.repeat(split.parts, split.parts), 0, -axis).astype(np.float32)
    constant = editor.initializer(shares, f"{tensor}_shares")
    return editor.add(
        "Mul", found, constant, output=editor.tensor_name(name), name=f"{tensor}_divide"
    )


def split_weight(
    graph: Graph, node: Node, split: Split, weight: npt.NDArray[np.floating[Any]]
) -> npt.NDArray[np.float32]:
    """The weight of a layer, or another of its shape, for the channels as they are repeated."""
    axis = weight_input_axis(graph, node)
    wide = np.repeat(weight, split.parts, axis)
    if split.of_weight:
        shares = 1 / np.repeat(split.parts, split.parts)
        wide = wide * along(shares, axis, weight.ndim)
    return wide.astype(np.float32)


def weight_input_axis(graph: Graph, node: Node) -> int:
    """The axis of the weight along which a layer of one group sums over what it reads."""
    if node.op_type == "Gemm":
        return int(graph.attributes(node).get("transB", 0))
    if node.op_type == "MatMul":
        return len(graph.initializers[node.inputs[1]].dims) - 2
    return 1 if node.op_type == "Conv" else 0
