"""What a layer's anchor computes, as products of matrices: what fits and rounding start from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.formats.base import FloatArray
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Product:
    """The anchor of a layer as `rows(x) @ matrix(weight)`, [groups, positions, unknowns] by
    [groups, unknowns, channels]. A convolution multiplies the windows of its input (im2col).

    Attributes:
        op_type: Conv, ConvTranspose, Gemm or MatMul.
        attributes: of the node; strings are bytes.
        shape: of the weight.
        left: the weight is the first operand.
    """

    op_type: str
    attributes: Mapping[str, Any]
    shape: tuple[int, ...]
    left: bool

    @property
    def groups(self) -> int:
        """How many products of matrices there are side by side."""
        return int(self.attributes.get("group", 1)) if self._conv else 1

    @property
    def unknowns(self) -> int:
        """Weights that one output channel has."""
        return self.matrix_shape[1]

    @property
    def matrix_shape(self) -> tuple[int, int, int]:
        """Groups, unknowns, and channels of a group."""
        if self.op_type == "Conv":
            return self.groups, math.prod(self.shape[1:]), self.shape[0] // self.groups
        if self.op_type == "ConvTranspose":
            kernel = math.prod(self.shape[2:])
            return self.groups, self.shape[0] // self.groups * kernel, self.shape[1]
        if len(self.shape) == 1:
            return 1, self.shape[0], 1
        first, second = self.shape
        return (1, second, first) if self._turned else (1, first, second)

    def matrix(self, weight: FloatArray) -> FloatArray:
        """A weight, or anything of its shape, as [groups, unknowns, channels]."""
        groups, unknowns, channels = self.matrix_shape
        if self.op_type == "Conv":
            return weight.reshape(groups, channels, unknowns).transpose(0, 2, 1)
        if self.op_type == "ConvTranspose":
            flipped = weight[(slice(None), slice(None), *self._flip)]
            split = flipped.reshape(groups, -1, channels, math.prod(self.shape[2:]))
            return split.transpose(0, 1, 3, 2).reshape(groups, unknowns, channels)
        if self._turned and len(self.shape) == 2:
            weight = weight.T
        return weight.reshape(groups, unknowns, channels)

    def weight(self, matrix: FloatArray) -> FloatArray:
        """The weight that has this matrix."""
        groups, _, channels = self.matrix_shape
        if self.op_type == "Conv":
            return np.ascontiguousarray(matrix.transpose(0, 2, 1)).reshape(self.shape)
        if self.op_type == "ConvTranspose":
            kernel = self.shape[2:]
            split = matrix.reshape(groups, -1, math.prod(kernel), channels).transpose(0, 1, 3, 2)
            flipped = split.reshape(self.shape)
            return np.ascontiguousarray(flipped[(slice(None), slice(None), *self._flip)])
        found = matrix[0].T if self._turned and len(self.shape) == 2 else matrix[0]
        return np.ascontiguousarray(found).reshape(self.shape)

    def columns(self, output: FloatArray, at: Positions | None = None) -> FloatArray:
        """The anchor's output as [groups, positions, channels]."""
        groups, _, channels = self.matrix_shape
        if self._conv:
            flat = np.moveaxis(output, 1, -1).reshape(-1, groups, channels)
            return (flat if at is None else flat[at]).transpose(1, 0, 2)
        if self.left and len(self.shape) == 2 and output.ndim > 1:
            output = np.swapaxes(output, -1, -2)
        flat = output.reshape(1, -1, channels)
        return flat if at is None else flat[:, at]

    def rows(self, x: FloatArray, at: Positions | None = None) -> FloatArray:
        """What the anchor multiplies by the weight, [groups, positions, unknowns]; `at` chooses
        positions, by their number in `columns`."""
        if self._conv:
            return self._windows(x, at)
        if self.op_type == "Gemm":
            flag = "transB" if self.left else "transA"
            turned = bool(self.attributes.get(flag, 0)) != self.left
            x = np.float32(self.attributes.get("alpha", 1.0)) * (x.T if turned else x)
        elif self.left and x.ndim > 1:
            x = np.swapaxes(x, -1, -2)
        flat = x.reshape(1, -1, self.unknowns)
        return flat if at is None else flat[:, at]

    @property
    def _conv(self) -> bool:
        return self.op_type in ("Conv", "ConvTranspose")

    @property
    def _turned(self) -> bool:
        """The weight is [channels, unknowns]."""
        if self.op_type == "Gemm":
            return bool(self.attributes.get("transA" if self.left else "transB", 0)) != self.left
        return self.left

    @property
    def _flip(self) -> tuple[slice, ...]:
        return (slice(None, None, -1),) * (len(self.shape) - 2)

    def _windows(self, x: FloatArray, at: Positions | None) -> FloatArray:
        kernel, rank = self.shape[2:], len(self.shape) - 2
        strides = tuple(self.attributes.get("strides", (1,) * rank))
        dilations = tuple(self.attributes.get("dilations", (1,) * rank))
        extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
        if self.op_type == "Conv":
            pads = _conv_pads(self.attributes, x.shape[2:], strides, extents)
        else:
            pads = _transposed_pads(self.attributes, x.shape[2:], strides, extents)
            x = _spread(x, strides)
            strides = (1,) * rank
        x = _padded(x, pads)
        spatial = tuple(range(2, rank + 2))
        windows = np.lib.stride_tricks.sliding_window_view(x, extents, axis=spatial)
        steps = (1, 1, *strides, *dilations)
        windows = windows[tuple(slice(None, None, step) for step in steps)]
        out = windows.shape[2 : 2 + rank]
        positions = np.arange(len(x) * math.prod(out)) if at is None else at
        batch, *place = np.unravel_index(positions, (len(x), *out))
        index: tuple[Any, ...] = (batch, slice(None), *place)
        found: FloatArray = windows[index]
        return found.reshape(len(positions), self.groups, self.unknowns).transpose(1, 0, 2)


def product_of(graph: Graph, layer: Layer) -> Product | None:
    """A layer with a weight as a product of matrices; None for a MatMul with a stack of weights."""
    node = graph.by_name[layer.name]
    assert layer.weight is not None
    shape = tuple(graph.initializers[layer.weight].dims)
    if node.op_type == "MatMul" and len(shape) > 2:
        return None
    return Product(node.op_type, graph.attributes(node), shape, layer.weight == node.inputs[0])


def channel_axis(graph: Graph, layer: Layer) -> int | None:
    """The axis of the output channels in the output of a layer's anchor; None where there is
    none."""
    assert layer.weight is not None
    node, rank = graph.by_name[layer.name], len(graph.initializers[layer.weight].dims)
    if node.op_type in ("Conv", "ConvTranspose"):
        return 1
    if rank < 2:
        return None
    matrix = len(graph.shapes.get(node.outputs[0], (0, 0))) > 1
    return -2 if matrix and layer.weight == node.inputs[0] else -1


Pads = list[tuple[int, int]]


def _conv_pads(
    attributes: Mapping[str, Any], size: Sequence[int], strides: Sequence[int], extents: list[int]
) -> Pads:
    mode = attributes.get("auto_pad", b"NOTSET")
    rank = len(extents)
    if mode not in (b"SAME_UPPER", b"SAME_LOWER"):
        given = attributes.get("pads", (0,) * 2 * rank) if mode == b"NOTSET" else (0,) * 2 * rank
        return list(zip(given[:rank], given[rank:], strict=True))
    pads = []
    for n, stride, extent in zip(size, strides, extents, strict=True):
        total = max(0, (math.ceil(n / stride) - 1) * stride + extent - n)
        pads.append(_halves(total, upper=mode == b"SAME_UPPER"))
    return pads


def _transposed_pads(
    attributes: Mapping[str, Any], size: Sequence[int], strides: Sequence[int], extents: list[int]
) -> Pads:
    """Those of the input with zeros between its values, for a convolution of stride 1."""
    rank = len(extents)
    mode = attributes.get("auto_pad", b"NOTSET")
    more = attributes.get("output_padding", (0,) * rank)
    wanted = attributes.get("output_shape")
    given = attributes.get("pads", (0,) * 2 * rank)
    pads = []
    for i, (n, stride, extent) in enumerate(zip(size, strides, extents, strict=True)):
        whole = stride * (n - 1) + more[i] + extent
        if wanted is not None or mode in (b"SAME_UPPER", b"SAME_LOWER"):
            out = n * stride if wanted is None else wanted[-rank:][i]
            cut = _halves(max(0, whole - out), upper=mode == b"SAME_UPPER")
        else:
            cut = (given[i], given[rank + i]) if mode == b"NOTSET" else (0, 0)
        pads.append((extent - 1 - cut[0], extent - 1 - cut[1] + more[i]))
    return pads


def _halves(total: int, *, upper: bool) -> tuple[int, int]:
    """`total` before and after, the larger half after where `upper`."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _spread(x: FloatArray, strides: Sequence[int]) -> FloatArray:
    """`x` with zeros between its values."""
    size = [s * (n - 1) + 1 for s, n in zip(strides, x.shape[2:], strict=True)]
    spread = np.zeros((*x.shape[:2], *size), x.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, s) for s in strides))] = x
    return spread


def _padded(x: FloatArray, pads: Pads) -> FloatArray:
    """`x` with zeros around it; negative pads cut."""
    if any(p < 0 for pair in pads for p in pair):
        keep = [
            slice(max(0, -low), x.shape[i + 2] - max(0, -high))
            for i, (low, high) in enumerate(pads)
        ]
        x = x[(slice(None), slice(None), *keep)]
    if not any(p > 0 for pair in pads for p in pair):
        return x
    return np.pad(x, [(0, 0), (0, 0), *((max(0, low), max(0, high)) for low, high in pads)])
