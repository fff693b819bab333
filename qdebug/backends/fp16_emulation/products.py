"""Sums of FP16 products as TensorRT's kernels compute them.

A tensor core multiplies FP16 exactly and adds the products to an accumulator in blocks (Fasi et
al. 2021, doi 10.7717/peerj-cs.330), of 16 on Hopper. TensorRT keeps the accumulator of an FP16
layer in FP16, so a sum over K products is rounded ⌈K / 16⌉ times; a bias is added to the rounded
sum, which is rounded again. Observed on an H100 and an H200 with TensorRT for RTX 1.6.1: over 99 %
of the elements are equal for K from 5 to 2048, except where a sum is split.

Other kernels were observed as well. Up to 4 products are added one by one, the second first. With
one row or one column, products are rounded and summed in FP32; a one-row Gemm with many columns
does not even round them. Of two stacks of matrices, one of which lacks an axis, a single row does
not round them either, and a single column is summed in blocks.

A long K is split where the output has few tiles of 64 x 64: with 12 to 16 of them in two, with
fewer, from K = 2048 on, into parts of 512 terms, a power of 2 of them, whose sums are added by
halves. Of 216 shapes of 768 to 4096 terms, 64 to 1536 columns and 16 to 512 rows, 99 % of the
elements are equal up to K = 1536 in all but one, at 2048 and 4096 in most; at 3072 few of the
shapes with fewer tiles follow.

Products in BF16 are summed in FP32 and rounded once, before the bias is added.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from qdebug.backends.fp16_emulation.wide import Body, Wide, sum_of_blocks
from qdebug.formats.registry import BF16

BLOCK = 16
"""Products that are added before the accumulator is rounded."""

# As observed on Hopper; see above. NVIDIA does not document them.
ONE_BY_ONE = 4  # longest sum whose products are added one by one
_HALVED_FROM, _SPLIT_FROM, _PART = 1024, 2048, 512  # terms of a sum, and of each of its parts
_TILE, _SOME_TILES, _MOST_TILES = 64, 12, 16  # rows and columns of a tile; tiles of an output
_FEW_ROWS = 16
_MANY_COLUMNS = 512  # of a one-row Gemm whose products are not rounded


def matmul(left: Wide, right: Wide) -> Wide | None:
    """MatMul of matrices or stacks of them; None where a rank is unknown, of a vector, and where
    there is nothing to sum."""
    if min(len(left.shape or ()), len(right.shape or ())) < 2:
        return None
    return _product(left, right)


def gemm(
    left: Wide,
    right: Wide,
    bias: Wide | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Wide | None:
    """Gemm; see matmul."""
    left, right = (_matrix(x, turn) for x, turn in ((left, transA), (right, transB)))
    rows, _, columns = _sizes(left, right)
    if rows == 1 and (columns or 0) >= _MANY_COLUMNS:
        return None
    total = _product(left, right)
    if total is None:
        return None
    total = total if alpha == 1 else total * alpha
    if bias is None:
        return total
    return total.rounded() + (bias if beta == 1 else bias * beta)


def einsum(left: Wide, right: Wide, *more: Wide, equation: bytes) -> Wide | None:
    """Einsum; None where it is no product of two operands that sums over one index."""
    text = equation.decode().replace(" ", "")
    found = re.fullmatch(r"(\w+),(\w+)->(\w*)", text)
    if found is None or left.shape is None or right.shape is None:
        return None
    first, second, result = found.groups()
    summed = "".join({*first, *second} - {*result})
    unique = all(len(set(part)) == len(part) for part in (first, second))
    axes = (first.find(summed), second.find(summed))
    if not unique or len(summed) != 1 or min(axes) < 0 or left.shape[axes[0]] == 0:
        return None
    if left.body.format is BF16:
        return left.of("Einsum", right, equation=text)
    terms = left.shape[axes[0]]
    known = terms if isinstance(terms, int) else None
    return _in_blocks((left, right), axes, known, "Einsum", equation=text)


def _matrix(x: Wide, turn: int) -> Wide:
    """An operand of Gemm, transposed if that is its `turn`."""
    first, second = x.shape or (None, None)
    if not turn:
        return Wide(x.body, half=x.half, shape=(first, second))
    return Wide(x.body, half=x.body.add("Transpose", x.half, perm=[1, 0]), shape=(second, first))


def _sizes(left: Wide, right: Wide) -> tuple[int | None, int | None, int | None]:
    """Rows, terms and columns of a product, None where unknown. Rows are counted over all leading
    axes where the right operand is a single matrix."""
    first, second = left.shape or (), right.shape or ()
    leading = first[:-1] if all(n == 1 for n in second[:-2]) else first[-2:-1]
    known = [n for n in leading if isinstance(n, int)]
    rows = math.prod(known) if len(known) == len(leading) else None
    terms = next((n for n in (first[-1], second[-2]) if isinstance(n, int)), None)
    return rows, terms, second[-1] if isinstance(second[-1], int) else None


def _product(left: Wide, right: Wide) -> Wide | None:
    """[…, M, K] · […, K, N], as in `numpy.matmul`: a rounded sum; None where K is 0."""
    rows, terms, columns = _sizes(left, right)
    if terms == 0:
        return None
    # One of two stacks of matrices lacks an axis, which TensorRT gives it.
    lifted = len(right.shape or ()) > 2 and len(left.shape or ()) != len(right.shape or ())
    if left.body.format is BF16 or (lifted and rows == 1):
        return left.of("MatMul", right).rounded()
    if 1 in (rows, columns) and not lifted:
        terms_alone = left.of("Unsqueeze", [-1]) * right.of("Unsqueeze", [-3])
        return terms_alone.rounded().of("ReduceSum", [-2], keepdims=0)
    in_blocks = partial(_in_blocks, (left, right), (-1, -2), terms, "MatMul")
    if terms is not None and terms <= ONE_BY_ONE:
        return in_blocks(size=1, order=[*range(terms)[1:2], 0, *range(2, terms)])
    count = _parts(rows, terms, columns)
    if terms is None or count == 1:
        return in_blocks()
    cuts = [*(terms // BLOCK * i // count for i in range(count)), -(-terms // BLOCK)]
    parts = [in_blocks(order=range(*ends)) for ends in pairwise(cuts)]
    while len(parts) > 1:  # a power of 2
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        parts = [(a + b).rounded() for a, b in zip(first, second, strict=True)]
    return parts[0]


def _parts(rows: int | None, terms: int | None, columns: int | None) -> int:
    """The number of parts that a long sum is split into."""
    if terms is None or rows is None or columns is None:
        return 1
    tiles = -(-rows // _TILE) * -(-columns // _TILE)
    if terms < _HALVED_FROM or tiles > _MOST_TILES:
        return 1
    if tiles >= _SOME_TILES:
        return 2 if rows > _FEW_ROWS else 1
    return 1 if terms < _SPLIT_FROM else 1 << (terms // _PART).bit_length() - 1


def _in_blocks(
    operands: Sequence[Wide],
    axes: Sequence[int],
    terms: int | None,
    op_type: str,
    *,
    size: int = BLOCK,
    order: Sequence[int] = (),
    **given: Any,
) -> Wide:
    """A product whose sum over one axis of each operand is rounded after each block.

    Args:
        terms: the length of these axes; None where it is unknown.
        op_type, given: the operator and its attributes.
        size: terms of a block.
        order: numbers of the blocks that are summed, in this order; all of them by default.
    """
    body = operands[0].body
    count: int | str = len(order) or (-(-terms // size) if terms is not None else "")
    stacks = []
    for x, axis in zip(operands, axes, strict=True):
        stack, blocks = _stacked(x, axis, terms, size)
        count = count or body.add("Squeeze", blocks, body.ints([0]))
        stacks.append(body.add("Gather", stack, body.ints(order)) if len(order) else stack)

    def block(here: Body, number: str) -> Wide:
        left, right = (Wide(here, half=here.add("Gather", x, number)) for x in stacks)
        return left.of(op_type, right, **given)

    return sum_of_blocks(body, count, block)


def _stacked(x: Wide, axis: int, terms: int | None, size: int) -> tuple[str, str]:
    """An operand with an axis in blocks, [blocks, …, size, …], of which zeros complete the last;
    and the number of blocks, an int64 tensor of one."""
    body, rank = x.body, len(x.shape or ())
    axis %= rank
    sizes = body.add("Shape", x.half)
    length = body.add("Gather", sizes, body.ints([axis])) if terms is None else body.ints([terms])
    whole = x.half
    if terms is None or terms % size:
        missing = body.add("Mod", body.add("Neg", length), body.ints([size]))
        length = body.add("Add", length, missing)
        before, after = (body.ints([0] * n) for n in (rank + axis, rank - 1 - axis))
        whole = body.add("Pad", whole, body.add("Concat", before, missing, after, axis=0))
    blocks = body.add("Div", length, body.ints([size]))
    outer, inner = (
        body.add("Slice", sizes, body.ints([first]), body.ints([end]))
        for first, end in ((0, axis), (axis + 1, rank))
    )
    shape = body.add("Concat", outer, blocks, body.ints([size]), inner, axis=0)
    perm = [axis, *(i for i in range(rank + 1) if i != axis)]
    return body.add("Transpose", body.add("Reshape", whole, shape), perm=perm), blocks
