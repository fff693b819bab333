"""What a quantized model shows by itself: scales that no quantizer should have written, and INT32
biases that saturate.

A quantizer stores the bias of a convolution in INT32, with the scale of the input times that of the
weight, for each channel. Where the weights of a channel are tiny, as those of a dead channel, so is
that scale, and an ordinary bias exceeds 2³¹ − 1 of its steps. It is cut there without a word. The
quantized model alone shows it: no bias ends at the end of INT32 by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.constants import spread
from qdebug.types import Array
from qdebug.wording import counted, option, printable

_END = 2.0**31
_NEAR = 256.0
"""Codes that were cut in float32 end so far from 2³¹ at the most."""
_FOLLOWED = ("Cast", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Identity")


@dataclass(frozen=True)
class SaturatedBias:
    """A bias of which some codes are at an end of INT32.

    Attributes:
        channels: which ones, of `count`.
        limits: the magnitudes that these are cut to, float64 [channels].
    """

    channels: tuple[int, ...]
    count: int
    limits: Array

    @property
    def what(self) -> str:
        """Which channels are cut, for people."""
        first = f"channel {self.channels[0]}"
        if len(self.channels) == 1:
            return f"{first} is cut at ±{self.limits[0]:.3g}"
        return (
            f"{len(self.channels)} of {counted(self.count, 'channel')}, first {first}, are cut, "
            f"there at ±{self.limits[0]:.3g}"
        )

    def exceeded(self, bias: Array) -> float:
        """How many times as large the scale has to be, at the least, for the values of `bias`,
        [channels], to fit; 1 where they do."""
        values = np.abs(np.asarray(bias, np.float64).reshape(-1))
        if values.size != self.count:
            return 1.0
        return max(1.0, float((values[list(self.channels)] / self.limits).max()))


def saturated_biases(graph: Graph) -> dict[str, SaturatedBias]:
    """The biases of a quantized model that saturate, by the node that reads each."""
    found: dict[str, SaturatedBias] = {}
    for node in graph.nodes:
        if node.op_type != "DequantizeLinear":
            continue
        codes, scale = (graph.constant(t) for t in node.inputs[:2])
        if codes is None or scale is None or codes.dtype != np.int32 or not codes.size:
            continue
        ends = np.abs(codes.astype(np.float64)) >= _END - _NEAR
        if ends.any():
            scales = spread(scale.astype(np.float64), codes, _axis(graph, node, codes), 0)
            limits = np.abs(np.broadcast_to(scales, codes.shape)[ends]) * (_END - 1)
            channels = tuple(int(k) for k in np.flatnonzero(ends.reshape(-1)))
            cut = SaturatedBias(channels, int(codes.size), limits)
            found |= dict.fromkeys(_readers(graph, node), cut)
    return found


def saturation_notes(biases: Mapping[str, SaturatedBias]) -> tuple[str, ...]:
    """What to say of them where the FP32 model is not given to compare with."""
    return tuple(
        f"The INT32 bias of '{name}' saturates: {bias.what}. Its values were larger: "
        f"{option('reference', 'FP32.onnx')} of compare shows what that costs, and what scale "
        "holds them."
        for name, bias in biases.items()
    )


def _axis(graph: Graph, node: Node, codes: Array) -> int:
    axis = int(graph.attributes(node).get("axis", 1))
    return axis if -codes.ndim <= axis < codes.ndim else 0


def _readers(graph: Graph, node: Node) -> Iterator[str]:
    for reader in graph.consumers.get(node.outputs[0], ()):
        if reader.op_type in _FOLLOWED:
            yield from _readers(graph, reader)
        else:
            yield reader.name


def invalid_scales(graph: Graph) -> dict[str, str]:
    """Scales that are not positive numbers, for people, by the node that reads what they dequantize
    (the DequantizeLinear where none does): "of 8 scales, 1 zero ('s')". Of blocks ONNX Runtime's
    quantizer writes negative ones, so that the code −8 stands for the value that is largest by
    magnitude, and 0 where a block is all 0."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 2:
            continue
        scales = graph.constant(node.inputs[1])
        if scales is None:
            continue
        values = np.asarray(scales, np.float64).ravel()
        kinds = {"not finite": int(np.sum(~np.isfinite(values)))}
        if "block_size" not in graph.attributes(node):
            kinds |= {"zero": int(np.sum(values == 0)), "negative": int(np.sum(values < 0))}
        told = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
        if told:
            readers = graph.consumers.get(node.outputs[0], ()) or (node,)
            name = printable(repr(node.inputs[1]))
            what = f"of {values.size} scales, {told} ({name})"
            if values.size == 1:
                what = f"its scale is {told.removeprefix('1 ')} ({name})"
            found |= {reader.name: what for reader in readers}
    return found


def scale_notes(graph: Graph) -> tuple[str, ...]:
    """What to say of them: ONNX Runtime computes with them, TensorRT refuses the model ("Scale
    coefficients must all be positive")."""
    return tuple(
        f"Layer {printable(repr(reader))}: {what}. TensorRT takes only positive scales; what "
        "is all 0 needs any scale above 0."
        for reader, what in invalid_scales(graph).items()
    )
