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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.fp16_emulation.sketch import Shape, Sketch
from qdebug.plan.rewrite.edit import attributes_of

BLOCK = 16
"""Products that are added before the accumulator is rounded."""

# As observed on Hopper; see above. NVIDIA does not document them.
ONE_BY_ONE = 4  # longest sum whose products are added one by one
_HALVED_FROM, _SPLIT_FROM, _PART = 1024, 2048, 512  # terms of a sum, and of each of its parts
_TILE, _SOME_TILES, _MOST_TILES = 64, 12, 16  # rows and columns of a tile; tiles of an output
_FEW_ROWS = 16
_MANY_COLUMNS = 512  # of a one-row Gemm whose products are not rounded

_AT_ONCE, _ROWS_AT_ONCE = 1 << 17, 32
"""Elements of the accumulator that are computed at once, which fit a core's cache (768 terms over
2048 x 3072 elements: 0.22 s in place of 0.36 s all at once), but rows enough for what each part
does anew, making FP32 of the right operand."""

Bounds = Sequence[tuple[int, int]]
"""First and past-the-end term of each block, in the order in which they are added."""


def matmul(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """The FP32 tensor that, rounded, is the node's output; None where a rank is unknown, or where
    there is nothing to sum."""
    left, right = shapes[:2]
    if left is None or right is None:
        return None
    sizes = _Sizes.of(left, right)
    return _product(sketch, node.input[0], node.input[1], sizes) if sizes.terms != 0 else None


def gemm(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See matmul."""
    given = attributes_of(node)
    left, right = node.input[:2]
    rows, columns = (shape or (None, None) for shape in shapes[:2])
    if given.get("transA", 0):
        left, rows = sketch.add("Transpose", left, perm=[1, 0]), rows[::-1]
    if given.get("transB", 0):
        right, columns = sketch.add("Transpose", right, perm=[1, 0]), columns[::-1]
    sizes = _Sizes.of(rows, columns)
    if sizes.rows == 1 and sizes.columns is not None and sizes.columns >= _MANY_COLUMNS:
        return None
    if sizes.terms == 0:
        return None
    total = _times(sketch, _product(sketch, left, right, sizes), given.get("alpha", 1.0))
    if len(node.input) > 2 and node.input[2]:
        total = sketch.rounded(total)
        bias = _times(sketch, sketch.wide(node.input[2]), given.get("beta", 1.0))
        total = sketch.add("Add", total, bias)
    return total


def einsum(sketch: Sketch, node: onnx.NodeProto, shapes: Sequence[Shape]) -> str | None:
    """See matmul; None where it is no product of two operands that sums over one index."""
    equation = attributes_of(node)["equation"].decode().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if not arrow or len(operands) != 2 or "." in equation or None in shapes:
        return None
    summed = (set(operands[0]) | set(operands[1])) - set(result)
    if len(summed) != 1 or any(len(set(part)) < len(part) for part in operands):
        return None
    (index,) = summed
    if not all(index in part for part in operands):
        return None
    places = [part.index(index) for part in operands]
    length = (shapes[0] or ())[places[0]]
    if not isinstance(length, int) or length == 0:
        return None
    wide = [sketch.wide(tensor) for tensor in node.input]
    if not sketch.sums_in_blocks:
        return sketch.add("Einsum", *wide, equation=equation)
    bounds = _blocks_of(range(length))
    starts, ends = (sketch.ints([[i] for i in b]) for b in zip(*bounds, strict=True))
    axes = [sketch.ints([place]) for place in places]

    def block(here: Sketch, number: str) -> str:
        start, end = (here.add("Gather", table, number) for table in (starts, ends))
        return here.add("Einsum", *_slices(here, wide, start, end, axes), equation=equation)

    return sum_of_blocks(sketch, len(bounds) - 1, block)


def sum_of_blocks(sketch: Sketch, more: int | str, block: Callable[[Sketch, str], str]) -> str:
    """A sum of blocks, in FP32, that is rounded to FP16 after each block.

    Args:
        sketch: where the nodes go.
        more: the number of blocks after the first, or the name of a scalar that holds it.
        block: makes the FP32 tensor of one block from its number, an int64 scalar.
    """
    first = block(sketch, sketch.ints(0))
    if more == 0:
        return sketch.rounded(first)
    body = sketch.inner()
    done, go_on, before = body.name(), body.name(), body.name()
    number = body.add("Add", done, body.ints(1))
    total = body.half(body.add("Add", body.wide(before), block(body, number)))
    value, kinds = helper.make_tensor_value_info, TensorProto
    graph = helper.make_graph(
        body.nodes,
        "blocks",
        [
            value(done, kinds.INT64, []),
            value(go_on, kinds.BOOL, []),
            value(before, kinds.FLOAT16, None),
        ],
        [value(body.add("Identity", go_on), kinds.BOOL, []), value(total, kinds.FLOAT16, None)],
    )
    times = sketch.ints(more) if isinstance(more, int) else more
    return sketch.wide(sketch.add("Loop", times, "", sketch.half(first), body=graph))


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a product, None where unknown, and the ranks of its operands."""

    rows: int | None
    terms: int | None
    columns: int | None
    left_rank: int
    right_rank: int

    @property
    def lifted(self) -> bool:
        """Whether one of two stacks of matrices lacks an axis, which TensorRT gives it."""
        return self.right_rank > 2 and 2 <= self.left_rank != self.right_rank

    @classmethod
    def of(cls, left: Sequence[int | str | None], right: Sequence[int | str | None]) -> _Sizes:
        """The sizes for operands as in `numpy.matmul`. Rows are counted over all leading axes where
        the right operand is a single matrix."""
        one_matrix = all(n == 1 for n in right[:-2])
        leading = left[:-1] if one_matrix else left[-2:-1]
        known = [n for n in leading if isinstance(n, int)]
        rows = math.prod(known) if len(known) == len(leading) else None
        both = (left[-1], right[-min(2, len(right))])
        terms = next((n for n in both if isinstance(n, int)), None)
        columns = right[-1] if len(right) > 1 else 1
        width = columns if isinstance(columns, int) else None
        return cls(rows, terms, width, len(left), len(right))

    @property
    def axis(self) -> int:
        """The axis of the right operand that is summed over."""
        return -min(2, self.right_rank)

    @property
    def by_rows(self) -> bool:
        """Whether rows can be computed some at a time: a stack of them, by one matrix."""
        if self.left_rank < 2 or self.right_rank != 2 or self.rows == 1 or self.parts() > 1:
            return False
        return (self.terms or 0) > ONE_BY_ONE and (self.columns or 0) > 1

    def parts(self) -> int:
        """The number of parts that a long sum is split into."""
        if self.terms is None or self.rows is None or self.columns is None:
            return 1
        tiles = -(-self.rows // _TILE) * -(-self.columns // _TILE)
        if self.terms < _HALVED_FROM or tiles > _MOST_TILES:
            return 1
        if tiles >= _SOME_TILES:
            return 2 if self.rows > _FEW_ROWS else 1
        return 1 if self.terms < _SPLIT_FROM else 1 << (self.terms // _PART).bit_length() - 1


def _product(sketch: Sketch, left: str, right: str, sizes: _Sizes) -> str:
    """[…, M, K] · […, K, N], or vectors, as in `numpy.matmul`: a rounded sum, in FP32."""
    wide = (sketch.wide(left), sketch.wide(right))
    if not sketch.sums_in_blocks:
        return sketch.rounded(sketch.add("MatMul", *wide))
    if sizes.by_rows:
        return _by_rows(sketch, left, right, sizes)
    if sizes.lifted and sizes.rows == 1:
        return sketch.rounded(sketch.add("MatMul", *wide))
    if (sizes.columns == 1 or sizes.rows == 1) and not sizes.lifted:
        return _of_a_vector(sketch, *wide, sizes)
    if sizes.terms is None:
        return _of_unknown_length(sketch, *wide, sizes.axis)
    if sizes.terms <= ONE_BY_ONE:
        return _in_blocks(sketch, *wide, sizes.axis, one_by_one(sizes.terms))
    cuts = np.linspace(0, sizes.terms // BLOCK, sizes.parts() + 1).astype(int) * BLOCK
    cuts[-1] = sizes.terms
    parts = [
        _in_blocks(sketch, *wide, sizes.axis, _blocks_of(range(first, last)))
        for first, last in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)
    ]
    return _folded(sketch, parts)


def _blocks_of(terms: range) -> Bounds:
    """Consecutive blocks of a range of terms."""
    return [(first, min(first + BLOCK, terms.stop)) for first in terms[::BLOCK]]


def one_by_one(terms: int) -> Bounds:
    """Blocks of one term each, the second first: of sums of at most `ONE_BY_ONE`."""
    order = [*range(terms)[1:2], 0, *range(2, terms)]
    return [(i, i + 1) for i in order]


def _in_blocks(sketch: Sketch, left: str, right: str, axis: int, bounds: Bounds) -> str:
    starts, ends = (sketch.ints([[i] for i in b]) for b in zip(*bounds, strict=True))
    axes = _axes(sketch, axis)

    def block(here: Sketch, number: str) -> str:
        start, end = (here.add("Gather", table, number) for table in (starts, ends))
        return here.add("MatMul", *_slices(here, (left, right), start, end, axes))

    return sum_of_blocks(sketch, len(bounds) - 1, block)


def _by_rows(sketch: Sketch, left: str, right: str, sizes: _Sizes) -> str:
    """As `_in_blocks`, for `sizes.by_rows`: rows are computed some at a time, and only the block of
    the right operand that is being added is in FP32, so weights in FP32 are never held.

    Rows are parted evenly, and zeros complete the last part: no part but that of a single row has a
    single one, which ONNX Runtime would sum in another order.
    """
    terms, columns = sizes.terms or 0, sizes.columns or 0
    blocks = -(-terms // BLOCK)
    one, number, width = sketch.ints([1]), sketch.ints([blocks, BLOCK]), sketch.ints([columns])

    def parted(whole: str, by: str) -> str:  # ⌈whole / by⌉, at least 1
        above = sketch.add("Div", sketch.add("Sub", whole, one), by)
        return sketch.add("Max", sketch.add("Add", above, one), one)

    flat = sketch.add("Reshape", sketch.wide(left), sketch.ints([-1, terms]))
    rows = sketch.add("Slice", sketch.add("Shape", flat), sketch.ints([0]), one)
    parts = parted(rows, sketch.ints([max(_ROWS_AT_ONCE, _AT_ONCE // columns)]))
    each = parted(rows, parts)
    missing = sketch.add("Sub", sketch.add("Mul", parts, each), rows)
    more = blocks * BLOCK - terms
    pads = sketch.add("Concat", sketch.ints([0, 0]), missing, sketch.ints([more]), axis=0)
    shape = sketch.add("Concat", parts, each, number, axis=0)
    stacked = sketch.add("Reshape", sketch.add("Pad", flat, pads), shape)
    stacked = sketch.add("Transpose", stacked, perm=[0, 2, 1, 3])
    zero = numpy_helper.from_array(np.zeros(1, np.float16))
    if more:
        filling = sketch.add("ConstantOfShape", sketch.ints([more, columns]), value=zero)
        right = sketch.add("Concat", right, filling, axis=0)
    weights = sketch.add("Reshape", right, sketch.add("Concat", number, width, axis=0))
    zeros = sketch.add("ConstantOfShape", sketch.add("Concat", each, width, axis=0), value=zero)

    body = sketch.inner()
    part = body.name()
    half = _sum_over_blocks(body, part, weights, zeros)
    value, kinds = helper.make_tensor_value_info, TensorProto
    graph = helper.make_graph(
        body.nodes,
        "rows",
        [value(part, kinds.FLOAT, None)],
        [value(half, kinds.FLOAT16, [None, columns])],
    )
    sums = sketch.add("Scan", stacked, body=graph, num_scan_inputs=1)
    sums = sketch.add("Reshape", sums, sketch.ints([-1, columns]))
    sums = sketch.add("Slice", sums, sketch.ints([0]), rows)
    return _unstacked(sketch, sketch.wide(sums), left, width)


def _unstacked(sketch: Sketch, rows: str, left: str, width: str) -> str:
    """[M, N] in the shape of the product of `left`, whose axes may be empty."""
    axes = sketch.add("Slice", sketch.add("Shape", left), sketch.ints([0]), sketch.ints([-1]))
    if sketch.opset >= 14:
        shape = sketch.add("Concat", axes, width, axis=0)
        return sketch.add("Reshape", rows, shape, allowzero=1)
    # There a 0 means an axis of the input: reshaped with one element for an empty axis.
    filled = sketch.add("Max", axes, sketch.ints([1]))
    needed = sketch.add("Sub", sketch.add("ReduceProd", filled), sketch.add("ReduceProd", axes))
    pads = sketch.add("Concat", sketch.ints([0, 0]), needed, sketch.ints([0]), axis=0)
    shape = sketch.add("Concat", filled, width, axis=0)
    whole = sketch.add("Reshape", sketch.add("Pad", rows, pads), shape)
    starts = sketch.add("Sub", axes, axes)
    return sketch.add("Slice", whole, starts, axes)


def _sum_over_blocks(sketch: Sketch, left: str, right: str, zeros: str) -> str:
    """The sum, in FP16, of [blocks, M, 16] in FP32 · [blocks, 16, N] in FP16, from `zeros` on."""
    body = sketch.inner()
    before, row, column = body.name(), body.name(), body.name()
    product = body.add("MatMul", row, body.wide(column))
    total = body.half(body.add("Add", body.wide(before), product))
    value, kinds = helper.make_tensor_value_info, TensorProto
    rank = [None, None]  # which Scan asks for
    graph = helper.make_graph(
        body.nodes,
        "blocks",
        [
            value(before, kinds.FLOAT16, rank),
            value(row, kinds.FLOAT, rank),
            value(column, kinds.FLOAT16, rank),
        ],
        [value(total, kinds.FLOAT16, rank)],
    )
    return sketch.add("Scan", zeros, left, right, body=graph, num_scan_inputs=2)


def _of_unknown_length(sketch: Sketch, left: str, right: str, axis: int) -> str:
    axes, size = _axes(sketch, axis), sketch.ints([BLOCK])

    def block(here: Sketch, number: str) -> str:
        start = here.add("Mul", number, size)
        end = here.add("Add", start, size)  # Slice ends where the axis does
        return here.add("MatMul", *_slices(here, (left, right), start, end, axes))

    last, one = sketch.ints(-1), sketch.ints(1)
    terms = sketch.add("Gather", sketch.add("Shape", left), last)
    above = sketch.add("Sub", terms, one)
    more = sketch.add("Div", above, sketch.ints(BLOCK))
    return sum_of_blocks(sketch, more, block)


def _axes(sketch: Sketch, axis: int) -> tuple[str, str]:
    first, second = (sketch.ints([a]) for a in (-1, axis))
    return first, second


def _slices(
    sketch: Sketch, operands: Iterable[str], start: str, end: str, axes: Iterable[str]
) -> list[str]:
    return [sketch.add("Slice", t, start, end, a) for t, a in zip(operands, axes, strict=True)]


def _of_a_vector(sketch: Sketch, left: str, right: str, sizes: _Sizes) -> str:
    """Products of one row, or of one column, each rounded, then summed in FP32."""
    if sizes.columns == 1:
        column = right
        if sizes.right_rank > 1:  # […, K, 1] → […, 1, K]
            column = _moved(sketch, right, -1, -2)
        products = sketch.rounded(sketch.add("Mul", left, column))
        both = min(sizes.left_rank, sizes.right_rank) > 1
        return sketch.reduced("ReduceSum", products, -1, keep=both)
    row = left
    if sizes.left_rank > 1:  # […, 1, K] → […, K, 1]
        row = _moved(sketch, left, -2, -1)
    else:
        row = sketch.add("Unsqueeze", left, sketch.ints([-1]))
    products = sketch.rounded(sketch.add("Mul", row, right))
    return sketch.reduced("ReduceSum", products, -2, keep=sizes.left_rank > 1)


def _moved(sketch: Sketch, tensor: str, old: int, new: int) -> str:
    """`tensor` with an axis of size 1 moved."""
    squeezed = sketch.add("Squeeze", tensor, sketch.ints([old]))
    return sketch.add("Unsqueeze", squeezed, sketch.ints([new]))


def _folded(sketch: Sketch, parts: list[str]) -> str:
    """The sum of parts, by halves: each is added to the one half of them further on."""
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        sums = [
            sketch.rounded(sketch.add("Add", a, b))
            for a, b in zip(parts[:half], parts[half:], strict=False)
        ]
        parts = sums + parts[len(sums) : half]
    return parts[0]


def block_sum(sketch: Sketch, left: str, right: str) -> str:
    """Matrices in FP32, multiplied: rounded after each block of 16 terms."""
    return _of_unknown_length(sketch, left, right, -2)


def rounded_terms(sketch: Sketch, left: str, right: str) -> str:
    """A row [1, K] times a matrix [K, N], in FP32: the terms are rounded, their sum is not."""
    column = sketch.add("Transpose", left, perm=[1, 0])
    terms = sketch.rounded(sketch.add("Mul", column, right))
    return sketch.reduced("ReduceSum", terms, -2)


def _times(sketch: Sketch, tensor: str, factor: float) -> str:
    return tensor if factor == 1 else sketch.add("Mul", tensor, sketch.constant(np.float32(factor)))
