"""How FP16 rounds inside TensorRT's kernels, in float64 and term by term.

Written after the docstrings of `qdebug.backends.fp16_emulation`, without its code. Each rule
takes float64 arrays of FP16 values and returns float64 that FP16 holds. Where FP32 has all sums of
a block exactly, whatever their order, ONNX Runtime must give the very same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNIT = 2.0**-6


def half(values: Any) -> Array:
    """Rounded to FP16."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(np.float16).astype(np.float64)


def codes(rng: np.random.Generator, shape: Sequence[int], limit: int = 200) -> Array:
    """Multiples of UNIT: FP32 adds up 2²⁴ / limit² of their products exactly, FP16 does not."""
    return rng.integers(-limit, limit + 1, shape) * UNIT


def rounded_sum(blocks: Iterable[Array]) -> Array:
    """Rounded with each block."""
    total: Array = np.float64(0)
    with np.errstate(invalid="ignore"):
        for block in blocks:
            total = half(total + block)
    return total


def chunks(terms: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [terms[i : i + size] for i in range(0, len(terms), size)]


def matmul(left: Array, right: Array) -> Array:
    """`numpy.matmul`, of sizes that are known beforehand."""
    one_matrix = all(n == 1 for n in right.shape[:-2])
    rows = math.prod(left.shape[:-1]) if one_matrix else (1, *left.shape)[-2]
    columns = right.shape[-1] if right.ndim > 1 else 1
    lifted = right.ndim > 2 and 2 <= left.ndim != right.ndim
    if lifted and rows == 1:
        return half(left @ right)
    if (rows == 1 or columns == 1) and not lifted:
        return half(of_a_vector(left, right))
    terms = list(range(left.shape[-1]))
    if len(terms) <= 4:
        return in_blocks(left, right, [[i] for i in [*terms[1:2], 0, *terms[2:]]])
    tiles = math.ceil(rows / 64) * math.ceil(columns / 64)
    if len(terms) >= 1024 and 12 <= tiles <= 16 and rows > 16:
        return _split(left, right, chunks(terms, 16), 2)
    if len(terms) >= 2048 and tiles < 12:
        return _split(left, right, chunks(terms, 16), 2 ** int(math.log2(len(terms) // 512)))
    return in_blocks(left, right, chunks(terms, 16))


def in_blocks(left: Array, right: Array, blocks: Sequence[Sequence[int]]) -> Array:
    with np.errstate(invalid="ignore"):
        return rounded_sum(left[..., list(b)] @ right[..., list(b), :] for b in blocks)


def _split(left: Array, right: Array, blocks: Sequence[Sequence[int]], parts: int) -> Array:
    """Parts of like length; then those of the second half are added to those of the first."""
    full = [b for b in blocks if len(b) == 16]
    starts = [len(full) * i // parts for i in range(parts)]
    ends = [*starts[1:], len(blocks)]
    sums = [in_blocks(left, right, blocks[a:b]) for a, b in zip(starts, ends, strict=True)]
    while len(sums) > 1:
        first, second = sums[: (len(sums) + 1) // 2], sums[(len(sums) + 1) // 2 :]
        sums = [half(a + b) for a, b in zip(first, second, strict=False)] + first[len(second) :]
    return sums[0]


def of_a_vector(left: Array, right: Array) -> Array:
    """Products rounded, summed in FP32."""
    row = left[None] if left.ndim == 1 else left
    column = right[:, None] if right.ndim == 1 else right
    with np.errstate(invalid="ignore"):
        total = half(row[..., :, :, None] * column[..., None, :, :]).sum(-2)
    return total.reshape(np.matmul(np.zeros_like(left), np.zeros_like(right)).shape)


def gemm(
    left: Array,
    right: Array,
    bias: Array | None = None,
    *,
    alpha: float = 1,
    beta: float = 1,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Array:
    left, right = left.T if trans_a else left, right.T if trans_b else right
    rows, columns = len(left), right.shape[1]
    offset = 0 if bias is None else beta * bias
    if rows == 1 and columns >= 512:
        return half(alpha * (left @ right) + offset)
    total = of_a_vector(left, right) if 1 in (rows, columns) else matmul(left, right)
    return half(half(alpha * total) + offset)


def same_pads(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    *,
    upper: bool,
) -> list[int]:
    """What ONNX says of auto_pad: ⌈size / stride⌉ outputs; the odd pixel goes to the named side."""
    needed = [
        max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
    return [*small, *large] if upper else [*large, *small]


def conv(
    pixels: Array,
    weights: Array,
    bias: Array | None = None,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    group: int = 1,
) -> Array:
    kernel, channels = weights.shape[2:], weights.shape[1]
    rank, outputs = len(kernel), len(weights) // group
    around = [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)]
    wide = np.pad(pixels, around)
    spans = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    seen = {}
    for position in np.ndindex(*kernel):
        firsts = [p * d for p, d in zip(position, dilations, strict=True)]
        ends = [n - span + f for n, span, f in zip(wide.shape[2:], spans, firsts, strict=True)]
        window = (slice(*bounds) for bounds in zip(firsts, ends, strides, strict=True))
        part = wide[:, :, *window]
        seen[position] = part.reshape(len(part), group, channels, *part.shape[2:])
    split = weights.reshape(group, outputs, *weights.shape[1:])

    def block(terms: Iterable[tuple[tuple[int, ...], int]]) -> Array:
        with np.errstate(invalid="ignore"):
            products = (
                np.einsum("ng...,go->ngo...", seen[p][:, :, c], split[:, :, c, *p])
                for p, c in terms
            )
            total = sum(products, start=np.float64(0))
        return np.asarray(total).reshape(len(pixels), len(weights), *total.shape[3:])

    offset = 0 if bias is None else bias.reshape(-1, *(1 for _ in kernel))
    if group > 1 and channels <= 8:
        total = block((p, c) for p in seen for c in range(channels))
        depthwise = channels == outputs == 1
        return half((total if depthwise else half(total)) + offset)
    if group == 1 and rounds_once(pixels, channels, outputs, kernel):
        return half(block((p, c) for p in seen for c in range(channels)) + offset)
    order = conv_blocks(list(seen), channels, outputs, group)
    with np.errstate(invalid="ignore"):
        return half(rounded_sum(block(terms) for terms in order) + offset)


def rounds_once(pixels: Array, channels: int, outputs: int, kernel: Sequence[int]) -> bool:
    positions = math.prod(kernel)
    if len(kernel) < 3 and positions > 1 and channels * positions <= 8:
        return True
    if len(kernel) == 1 and channels == 1:
        return 64 < positions < 256
    pixel = pixels[:, :1].size == 1 and positions == 1
    return pixel and channels >= 256 and outputs >= 256


def conv_blocks(
    positions: Sequence[Any], channels: int, outputs: int, group: int
) -> list[list[tuple[Any, int]]]:
    """The terms of each block, (position, channel), in the order in which blocks are added."""
    few = outputs <= 32
    if len(positions) == 1 and len(positions[0]) < 3 and channels <= 4:
        (p,) = positions
        return [[(p, c)] for c in [*range(channels)[1:2], 0, *range(2, channels)]]
    if len(positions) > 64:
        few = len(positions[0]) == 1
    if few and channels < 32 and channels != 16:
        span = channels + (channels % 2 if group == 1 else 0)
        tiles = chunks([(p, c) for p in positions for c in range(span)], 32)
    else:
        tiles = [[(p, c) for c in tile] for tile in chunks(range(channels), 32) for p in positions]
    blocks: list[Any] = []
    for tile in tiles:
        if few and channels in (24, 32):
            fours = chunks(tile, 4)
            blocks += [[t for four in fours[first::2] for t in four] for first in (0, 1)]
        else:
            blocks += chunks(tile, 16)
    real = [[(p, c) for p, c in block if c < channels] for block in blocks]
    return [block for block in real if block]
