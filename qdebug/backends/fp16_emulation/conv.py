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
from dataclasses import dataclass
from itertools import product

import numpy as np

from qdebug.backends.fp16_emulation.products import BLOCK, ONE_BY_ONE
from qdebug.backends.fp16_emulation.wide import Body, Shape, Wide, sum_of_blocks
from qdebug.formats.registry import BF16

# All as observed; see above. NVIDIA does not document them.
_TILE, _FEW_OUTPUTS = 32, 32
_FP32_CHANNELS = 8
_FEW_POSITIONS, _MANY_POSITIONS = 64, 256
_SHORT, _FULL = 8, 256
_INTERLEAVED = (24, 32)
_END = np.iinfo(np.int64).max
_ZERO = -1  # in place of a channel: zeros


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
    def reads(self) -> list[tuple[list[int], list[int]]]:
        """Of each position of the kernel, starts and ends of the pixels that it reads, by spatial
        axis of the padded input; an end may count from the end of the axis."""
        found = []
        for position in product(*map(range, self.kernel)):
            each = list(zip(position, self.kernel, self.dilations, strict=True))
            ends = [-d * (k - 1 - p) or _END for p, k, d in each]
            found.append(([p * d for p, _, d in each], ends))
        return found


def conv(
    pixels: Wide,
    weights: Wide,
    bias: Wide | None = None,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: bytes = b"NOTSET",
    kernel_shape: Sequence[int] = (),
) -> Wide | None:
    """Conv; None where that is the exact result, or where the window is not known beforehand."""
    sizes = weights.shape or (None,)
    if not all(isinstance(n, int) for n in sizes):
        return None
    outputs, channels, *kernel = (n for n in sizes if isinstance(n, int))
    ones = (1,) * len(kernel)
    moves = (tuple(kernel), tuple(strides) or ones, tuple(dilations) or ones)
    upper, lower = (auto_pad == how for how in (b"SAME_UPPER", b"SAME_LOWER"))
    same = _same_pads(*moves, pixels.shape, upper=upper) if upper or lower else ()
    if same is None:
        return None
    padded = same or tuple(pads) or (0, 0) * len(kernel)
    window = _Window(group, outputs // group, channels, *moves, padded)
    if _rounds_once(window, pixels.shape):
        return None
    if pixels.body.format is BF16 or (group > 1 and channels <= _FP32_CHANNELS):
        given = {"strides": window.strides, "dilations": window.dilations, "pads": window.pads}
        total = pixels.of("Conv", weights, group=group, **given).rounded()
    else:
        total = _summed(pixels, weights, window)
    return total if bias is None else total + bias.of("Unsqueeze", list(range(1, 1 + len(kernel))))


def _rounds_once(window: _Window, shape: Shape) -> bool:
    """Whether a kernel sums in FP32 and adds the bias before it rounds."""
    rank, positions, channels = len(window.kernel), window.positions, window.channels
    short = rank <= 2 and 1 < positions <= _SHORT // channels
    long = rank == channels == 1 and _FEW_POSITIONS < positions < _MANY_POSITIONS
    pixel = positions == 1 and shape is not None and all(n == 1 for n in (shape[0], *shape[2:]))
    full = pixel and min(channels, window.outputs) >= _FULL
    depthwise = window.groups > 1 and channels == window.outputs == 1
    return depthwise or (window.groups == 1 and (short or long or full))


def _same_pads(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    shape: Shape,
    *,
    upper: bool,
) -> tuple[int, ...] | None:
    """The pads of ONNX's auto_pad, which result in ⌈size / stride⌉ outputs; None where they depend
    on a size that is unknown."""
    needed = []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        size = 1 if s == 1 else shape[axis] if shape else None
        if not isinstance(size, int):
            return None
        needed.append(max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size))
    small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
    return (*small, *large) if upper else (*large, *small)


def _summed(pixels: Wide, weights: Wide, window: _Window) -> Wide:
    """The convolution, rounded after each block of terms."""
    rank, channels, groups = len(window.kernel), window.channels, window.groups
    few = window.outputs <= _FEW_OUTPUTS if window.positions <= _FEW_POSITIONS else rank == 1
    if any(window.pads):
        pixels = pixels.of("Pad", [0, 0, *window.pads[:rank], 0, 0, *window.pads[rank:]])
    terms = list(range(channels))
    if few and channels < _TILE and channels % BLOCK:
        more = [_ZERO] * (channels % 2 if groups == 1 else 0)
        firsts = range(0, window.positions * channels, channels)
        terms = [i for first in firsts for i in (*range(first, first + channels), *more)]
        pixels, weights = _flat(pixels, weights, window)
        ones = (1,) * rank
        seen = window.positions * channels
        window = _Window(groups, window.outputs, seen, ones, ones, ones, window.pads)
    if few and channels in _INTERLEAVED:
        tiles = [terms[i : i + _TILE] for i in range(0, len(terms), _TILE)]
        halves = [[i for i in tile if i // 4 % 2 == half] for tile in tiles for half in (0, 1)]
        blocks = [half for half in halves if half]
    elif rank <= 2 and window.positions == 1 and window.channels <= ONE_BY_ONE:
        blocks = [[i] for i in (*terms[1:2], 0, *terms[2:])]
    else:
        blocks = [terms[i : i + BLOCK] for i in range(0, len(terms), BLOCK)]
    size = len(blocks[0])
    blocks = [[*b, *[_ZERO] * (size - len(b))] for b in blocks]
    # A block of one group lies next to those of the others; `_flat` has positions outermost.
    across = [
        i if i == _ZERO else (i // channels * groups + g) * channels + i % channels
        for b in blocks
        for g in range(groups)
        for i in b
    ]
    pixels = _in_order(pixels, across, groups * window.channels)
    weights = _in_order(weights, [i for b in blocks for i in b], window.channels)
    return _in_blocks(pixels, weights, window, len(blocks), size)


def _flat(pixels: Wide, weights: Wide, window: _Window) -> tuple[Wide, Wide]:
    """The same convolution with a kernel of one pixel, of the channels of all positions."""
    body, rank = pixels.body, len(window.kernel)
    axes = body.ints(range(2, 2 + rank))
    first, *others = (
        pixels.of("Slice", starts, ends, axes, list(window.strides))
        for starts, ends in window.reads
    )
    last = weights.of("Transpose", perm=[0, *range(2, 2 + rank), 1])
    return first.of("Concat", *others, axis=1), last.of("Flatten").of("Unsqueeze", axes)


def _in_order(x: Wide, order: Sequence[int], channels: int) -> Wide:
    """The channels of a tensor in an order, in which `_ZERO` stands for one that it lacks."""
    if list(order) == list(range(channels)):
        return x
    if _ZERO in order:
        zeros = x.of("Slice", [0], [1], [1]).of("Shape").of("ConstantOfShape")
        x = x.of("Concat", zeros, axis=1)
    return x.of("Gather", list(order), axis=1)


def _in_blocks(pixels: Wide, weights: Wide, window: _Window, count: int, size: int) -> Wide:
    """The sum of blocks, each a convolution with a kernel of one pixel."""
    body, rank, positions = pixels.body, len(window.kernel), window.positions
    outputs = window.groups * window.outputs
    # [outputs, channels, *kernel] -> [blocks · positions, outputs, channels of a block, 1, …]
    parts = (
        weights.of("Reshape", [outputs, count, size, positions])
        .of("Transpose", perm=[1, 3, 0, 2])
        .of("Reshape", [-1, outputs, size, *[1] * rank])
    )
    tiles = [range(count)[i : i + 2] for i in range(0, count, 2)]
    order = [(i, k) for tile in tiles for k in range(positions) for i in tile]
    step, reads = size * window.groups, window.reads
    tables = [
        body.ints([i * positions + k for i, k in order]),
        body.ints([[i * step, *reads[k][0]] for i, k in order]),
        body.ints([[i * step + step, *reads[k][1]] for i, k in order]),
    ]
    axes, steps = body.ints(range(1, 2 + rank)), body.ints([1, *window.strides])

    def block(here: Body, number: str) -> Wide:
        at, start, end = (here.add("Gather", table, number) for table in tables)
        part = Wide(here, name=here.add("Slice", str(pixels), start, end, axes, steps))
        kernel = here.add("Gather", str(parts), at)
        return part.of("Conv", kernel, kernel_shape=[1] * rank, group=window.groups)

    return sum_of_blocks(body, len(order), block)
