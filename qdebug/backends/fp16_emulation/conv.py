"""Sums of FP16 convolutions as TensorRT's kernels compute them; see products.py.

A convolution is a product of matrices. Its terms run over tiles of 32 input channels, within a tile
over the positions of the kernel, and within a position over the tile's channels, in blocks of 16.
Observed on an H100 and an H200 with TensorRT for RTX 1.6.1: over 99 % of the elements are equal for
1 to 512 input channels, with these exceptions:

- With at most 32 output channels, kernels that read fewer than 32 channels (but not 16) continue
  from one position to the next without a gap; an odd number of channels is padded by one.
- With at most 32 output channels, 24 or 32 input channels are summed in another order: alternately
  4 in one block and 4 in the next.
- Kernels of more than 64 positions do the same, whatever the number of output channels, in one
  dimension (seen at 256), and never in two (9 x 9 to 16 x 16).
- Rounded once, with the bias: sums of at most 8 products over 2 positions or more (seen up to 5 in
  one dimension, up to 8 in two; 9 are summed in blocks), in one dimension kernels of 66 to 192
  positions of one channel, and a single pixel with at least 256 channels and 256 outputs.
- One position of at most 4 channels: added one by one, the second first, as in products.py.
- With up to 8 channels per group, sums are computed in FP32 and rounded before the bias is added;
  depthwise convolutions omit even that rounding. ConvTranspose sums in FP32 as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np
import onnx

from qdebug.backends.fp16_emulation.products import BLOCK, ONE_BY_ONE, one_by_one, sum_of_blocks
from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.plan.rewrite.edit import attributes_of

# All as observed; see above. NVIDIA does not document them.
_TILE = 32
_FEW_OUTPUTS = 32
_FP32_CHANNELS = 8
FEW_POSITIONS = 64
MANY_POSITIONS = 256
_SHORT = 8
_FULL = 256
_INTERLEAVED = (24, 32)
_END = np.iinfo(np.int64).max


def conv(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """The FP32 tensor that, rounded, is the node's output; None where that is the exact result, or
    where the window is not known beforehand."""
    window = _window_of(node, shapes)
    if window is None or (window.groups > 1 and window.channels == window.outputs == 1):
        return None
    if _rounds_once(window, shapes[0]):
        return None
    pixels, weights = sketch.wide(node.input[0]), sketch.wide(node.input[1])
    narrow = window.groups > 1 and window.channels <= _FP32_CHANNELS
    if narrow or not sketch.sums_in_blocks:
        total = sketch.rounded(sketch.add("Conv", pixels, weights, **attributes_of(node)))
    else:
        total = _summed(sketch, _padded(sketch, pixels, window), weights, window)
    if len(node.input) > 2 and node.input[2]:
        shape = sketch.ints([1, -1, *(1 for _ in window.kernel)])
        total = sketch.add("Add", total, sketch.wide(sketch.add("Reshape", node.input[2], shape)))
    return total


def _rounds_once(window: _Window, shape: Shape) -> bool:
    """Whether a kernel sums in FP32 and adds the bias before it rounds."""
    if window.groups > 1:
        return False
    if len(window.kernel) <= 2 and 1 < window.positions <= _SHORT // window.channels:
        return True
    if len(window.kernel) == 1 and window.channels == 1:
        return FEW_POSITIONS < window.positions < MANY_POSITIONS
    pixel = shape is not None and all(n == 1 for n in (shape[0], *shape[2:]))
    return pixel and window.positions == 1 and min(window.channels, window.outputs) >= _FULL


def _summed(sketch: Sketch, pixels: str, weights: str, window: _Window) -> str:
    """The convolution of padded pixels, rounded after each block of terms."""
    few = window.outputs <= _FEW_OUTPUTS
    if window.positions > FEW_POSITIONS:
        few = len(window.kernel) == 1
    interleaved = few and window.channels in _INTERLEAVED
    span = window.channels
    if few and span < _TILE and span % BLOCK:
        span += span % 2 if window.groups == 1 else 0
        pixels, weights = _flat(sketch, pixels, weights, window, span)
        ones = (1,) * len(window.kernel)
        terms = math.prod(window.kernel) * span
        window = replace(window, channels=terms, kernel=ones, strides=ones, dilations=ones)
    flat = len(window.kernel) <= 2 and window.positions == 1
    short = flat and window.channels <= ONE_BY_ONE
    tiles = _tiles(window.channels, interleaved)
    if short:
        tiles = [[[first] for first, _ in one_by_one(window.channels)]]
    order = [i for tile in tiles for block in tile for i in block]
    if order != list(range(window.channels)):
        weights = sketch.add("Gather", weights, sketch.ints(order), axis=1)
    if window.groups > 1:  # a block of one group lies next to those of the others
        groups, step = range(window.groups), window.groups * span
        blocks = [block for tile in tiles for block in tile]
        order = [i // span * step + g * span + i % span for b in blocks for g in groups for i in b]
    if order != list(range(len(order))):
        pixels = sketch.add("Gather", pixels, sketch.ints(order), axis=1)
    return _in_blocks(sketch, pixels, weights, window, tiles)


def _tiles(channels: int, interleaved: bool) -> list[list[list[int]]]:
    """The channels of each block of each tile, in the order in which they are added."""
    tiles = []
    for first in range(0, channels, _TILE):
        tile = range(first, min(first + _TILE, channels))
        blocks = [list(tile[i : i + BLOCK]) for i in range(0, len(tile), BLOCK)]
        if interleaved:
            blocks = [[i for i in tile if i // 4 % 2 == half] for half in (0, 1)]
        tiles.append([block for block in blocks if block])
    return tiles


def _flat(sketch: Sketch, pixels: str, weights: str, window: _Window, span: int) -> tuple[str, str]:
    """The same convolution with a kernel of one pixel, whose channels are those of all positions,
    `span` of each."""
    rank, spatial = len(window.kernel), range(2, 2 + len(window.kernel))
    if span > window.channels:
        pads = np.zeros((2, 2 + rank), np.int64)
        pads[1, 1] = span - window.channels
        more = sketch.ints(pads.ravel())
        pixels, weights = (sketch.add("Pad", tensor, more) for tensor in (pixels, weights))
    axes = sketch.ints(spatial)
    steps = sketch.ints(window.strides)
    seen = []
    for position in product(*map(range, window.kernel)):
        starts, ends = (sketch.ints(b) for b in window.slice_of(position))
        seen.append(sketch.add("Slice", pixels, starts, ends, axes, steps))
    last = sketch.add("Transpose", weights, perm=[0, *spatial, 1])
    weights = sketch.add("Unsqueeze", sketch.add("Flatten", last), axes)
    return sketch.add("Concat", *seen, axis=1), weights


def _in_blocks(
    sketch: Sketch, pixels: str, weights: str, window: _Window, tiles: list[list[list[int]]]
) -> str:
    """The sum of blocks, each a convolution with a kernel of one pixel."""
    rank, groups = len(window.kernel), window.groups
    moved = rank if window.moves else 0
    tables = [sketch.ints(table) for table in _tables(window, tiles, moved)]
    axes = sketch.ints(range(1, 2 + moved))
    steps = sketch.ints([1, *window.strides[:moved]])
    # By positions first: the weights of a block then lie in rows, which are fast to copy.
    outputs = groups * window.outputs
    rows = sketch.add("Transpose", weights, perm=[*range(2, 2 + rank), 0, 1])
    shape = sketch.ints([-1, outputs, window.channels])
    rows = sketch.add("Reshape", rows, shape)
    row_axes = sketch.ints([0, 2])
    kernel = sketch.ints([outputs, -1, *[1] * rank])

    def block(here: Sketch, number: str) -> str:
        start, end, first, last = (here.add("Gather", table, number) for table in tables)
        part = here.add("Slice", pixels, start, end, axes, steps)
        weight = here.add("Reshape", here.add("Slice", rows, first, last, row_axes), kernel)
        return here.add("Conv", part, weight, kernel_shape=[1] * rank, group=groups)

    blocks = sum(len(tile) for tile in tiles) * math.prod(window.kernel)
    return sum_of_blocks(sketch, blocks - 1, block)


def _tables(
    window: _Window, tiles: list[list[list[int]]], moved: int
) -> tuple[list[list[int]], ...]:
    """Starts and ends of each block's slices, [blocks, axes]: of pixels, and of rows of weights."""
    rows: tuple[list[list[int]], ...] = ([], [], [], [])
    first = 0
    for tile in tiles:
        bounds = list(pairwise(accumulate((len(block) for block in tile), initial=first)))
        first = bounds[-1][1]
        for k, position in enumerate(product(*map(range, window.kernel))):
            starts, ends = window.slice_of(position)
            for low, high in bounds:
                rows[0].append([low * window.groups, *starts[:moved]])
                rows[1].append([high * window.groups, *ends[:moved]])
                rows[2].append([k, low])
                rows[3].append([k + 1, high])
    return rows


@dataclass(frozen=True)
class _Window:
    """A kernel of [groups · outputs, channels, *kernel] and how it moves.

    Attributes:
        outputs, channels: of one group.
        kernel, strides, dilations: by spatial axis.
        pads: at the start of each spatial axis, then at the end of each.
    """

    groups: int
    outputs: int
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def positions(self) -> int:
        """Of the kernel."""
        return math.prod(self.kernel)

    @property
    def moves(self) -> bool:
        """Whether an output pixel reads anything other than the input pixel at its position."""
        return any(n > 1 for n in (*self.kernel, *self.strides))

    def slice_of(self, position: Sequence[int]) -> tuple[list[int], list[int]]:
        """Starts and ends, by spatial axis of the padded input, of the pixels that a position of
        the kernel reads; an end may count from the end of the axis."""
        each = list(zip(position, self.kernel, self.dilations, strict=True))
        return [p * d for p, _, d in each], [-d * (k - 1 - p) or _END for p, k, d in each]


def _window_of(node: onnx.NodeProto, shapes: Sequence[Shape]) -> _Window | None:
    """The window of a Conv; None where it depends on sizes that are unknown."""
    sizes, given = shapes[1], attributes_of(node)
    known = [n for n in sizes or () if isinstance(n, int)]
    if not known or len(known) != len(sizes or ()):
        return None
    ones = (1,) * len(known[2:])
    groups = given.get("group", 1)
    strides = tuple(given.get("strides", ones))
    dilations = tuple(given.get("dilations", ones))
    pads = _pads(given, known[2:], strides, dilations, shapes[0])
    if pads is None:
        return None
    return _Window(groups, known[0] // groups, known[1], tuple(known[2:]), strides, dilations, pads)


def _padded(sketch: Sketch, pixels: str, window: _Window) -> str:
    """The input, padded with the zeros that the window reads."""
    if not any(window.pads):
        return pixels
    rank = len(window.kernel)
    pads = (0, 0, *window.pads[:rank], 0, 0, *window.pads[rank:])
    return sketch.add("Pad", pixels, sketch.ints(pads))


def _pads(
    given: dict[str, Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    shape: Shape,
) -> tuple[int, ...] | None:
    """The pads given, or those of ONNX's auto_pad, which result in ⌈size / stride⌉ outputs."""
    how = given.get("auto_pad", b"NOTSET")
    if how not in (b"SAME_UPPER", b"SAME_LOWER"):
        return tuple(given.get("pads", ())) or (0, 0) * len(kernel)
    small, large = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        size = 1 if s == 1 else shape[axis] if shape else None
        if not isinstance(size, int):
            return None
        pad = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        small.append(pad // 2)
        large.append(pad - pad // 2)
    return (*small, *large) if how == b"SAME_UPPER" else (*large, *small)
