"""MatMul and Gemm sum in FP16 as TensorRT's kernels do, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from half_rules import chunks, codes, gemm, half, in_blocks, matmul
from half_runs import half_model, is_left_alone, run_model, run_node
from hypothesis import given, settings
from onnx import helper

from qdebug.types import Fp16Kernels

Array = np.ndarray[Any, Any]
MATMUL = helper.make_node("MatMul", ["x", "w"], ["y"])
LENGTHS = st.one_of(st.integers(1, 5), st.integers(5, 90))

MATRICES = {
    "x:MK w:KN": ("MK", "KN"),
    "x:BMK w:KN": ("BMK", "KN"),
    "x:B1K w:KN": ("B1K", "KN"),
    "x:BMK w:BKN": ("BMK", "BKN"),
    "x:MK w:BKN": ("MK", "BKN"),
    "x:BAMK w:AKN": ("BAMK", "AKN"),
    "x:1AMK w:BAKN": ("1AMK", "BAKN"),
}
VECTORS = {
    "x:1K w:KN": ("1K", "KN"),
    "x:1K w:K1": ("1K", "K1"),
    "x:11K w:KN": ("11K", "KN"),
    "x:B1K w:BKN": ("B1K", "BKN"),
    "x:1K w:BKN": ("1K", "BKN"),
    "x:MK w:K1": ("MK", "K1"),
    "x:BMK w:BK1": ("BMK", "BK1"),
    "x:MK w:BK1": ("MK", "BK1"),
}


def shaped(axes: str, length: int) -> list[int]:
    return [{"K": length, "M": 3, "N": 5, "A": 2, "B": 4, "1": 1}[axis] for axis in axes]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(MATRICES)), LENGTHS, st.booleans(), st.integers(0, 999))
def test_a_product_of_matrices_is_rounded_with_every_16_terms(
    kind: str, length: int, constant: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = (codes(rng, shaped(axes, length)) for axes in MATRICES[kind])
    feeds, weights = ({"x": x}, {"w": w}) if constant else ({"x": x, "w": w}, {})
    np.testing.assert_array_equal(run_node(MATMUL, feeds, weights), matmul(x, w))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(VECTORS)), LENGTHS, st.booleans(), st.integers(0, 999))
def test_products_with_a_vector_are_rounded_one_by_one_and_summed_in_fp32(
    kind: str, length: int, constant: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = (codes(rng, shaped(axes, length)) for axes in VECTORS[kind])
    feeds, weights = ({"x": x}, {"w": w}) if constant else ({"x": x, "w": w}, {})
    found, expected = run_node(MATMUL, feeds, weights), matmul(x, w)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(MATRICES)), LENGTHS, st.integers(0, 999))
def test_a_length_that_is_not_known_beforehand(kind: str, length: int, seed: int) -> None:
    """Then even 4 terms are one block."""
    rng = np.random.default_rng(seed)
    x, w = (codes(rng, shaped(axes, length)) for axes in MATRICES[kind])
    shapes = {"x": [*x.shape[:-1], None], "w": [*w.shape[:-2], None, w.shape[-1]]}
    found = run_node(MATMUL, {"x": x, "w": w}, shapes=shapes)
    np.testing.assert_array_equal(found, in_blocks(x, w, chunks(range(length), 16)))


@pytest.mark.parametrize("unknown", ["x", "w"])
def test_a_length_that_one_operand_tells(unknown: str) -> None:
    rng = np.random.default_rng(0)
    x, w = codes(rng, (3, 4)), codes(rng, (4, 5))
    shapes = {"x": {"x": [3, None]}, "w": {"w": [None, 5]}}[unknown]
    found = run_node(MATMUL, {"x": x, "w": w}, shapes=shapes)
    np.testing.assert_array_equal(found, matmul(x, w))


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_that_are_not_known_beforehand_are_taken_for_many(batch: int) -> None:
    rng = np.random.default_rng(batch)
    x, w = codes(rng, (batch, 40)), codes(rng, (40, 5))
    found = run_node(MATMUL, {"x": x}, {"w": w}, shapes={"x": ["batch", 40]})
    np.testing.assert_array_equal(found, in_blocks(x, w, chunks(range(40), 16)))


@pytest.mark.parametrize(
    ("rows", "length", "columns"),
    [
        (2, 2047, 3),
        (2, 2048, 3),
        (128, 2570, 2),
        (2, 3600, 130),
        (17, 1023, 1024),
        (17, 1024, 1024),  # 16 tiles: in two
        (17, 1024, 1025),  # 17: not split
        (16, 1024, 1024),  # few rows: not split
        (17, 1024, 704),  # 11: not split, but from 2048 on
        (2, 5000, 3),
    ],
)
def test_a_long_sum_is_split_and_its_parts_are_added_by_halves(
    rows: int, length: int, columns: int
) -> None:
    rng = np.random.default_rng(length)
    x, w = codes(rng, (rows, length), 90), codes(rng, (length, columns), 90)
    np.testing.assert_array_equal(run_node(MATMUL, {"x": x}, {"w": w}), matmul(x, w))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("rows", "length", "columns"),
    [
        ((71,), 40, 8192),  # three parts of 24 rows, of which the last has 23
        ((33,), 16, 8192),  # 17 and 16
        ((3, 11), 33, 8192),
        ((33,), 20, (1 << 17) + 1),  # no row fits
        ((0,), 40, 5),
        ((2, 0), 40, 5),
    ],
)
@pytest.mark.parametrize(("op_type", "opset"), [("MatMul", 13), ("MatMul", 17), ("Gemm", 17)])
def test_many_elements_are_computed_in_parts(
    op_type: str, opset: int, rows: tuple[int, ...], length: int, columns: int, known: bool
) -> None:
    rows = rows if op_type == "MatMul" else (math.prod(rows),)
    rng = np.random.default_rng(columns)
    x, w = codes(rng, (*rows, length)), codes(rng, (length, columns))
    shapes = None if known else {"x": [*(f"d{i}" for i in range(len(rows))), length]}
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    found = run_node(node, {"x": x}, {"w": w}, shapes=shapes, opset=opset)
    np.testing.assert_array_equal(found, matmul(x, w))


def test_operands_of_unknown_rank_are_multiplied_exactly() -> None:
    rng = np.random.default_rng(0)
    x, w = codes(rng, (3, 90)), codes(rng, (90, 3))
    for name in ("x", "w"):
        found = run_node(MATMUL, {"x": x, "w": w}, shapes={name: None})
        np.testing.assert_array_equal(found, half(x @ w))


BIASES = {"none": None, "N": (4,), "1N": (1, 4), "M1": (3, 1), "MN": (3, 4), "scalar": ()}


@settings(max_examples=100, deadline=None)
@given(
    st.tuples(st.booleans(), st.booleans()),
    st.tuples(st.sampled_from([1, 0.5, -2]), st.sampled_from([1, 0.25, 3])),
    st.sampled_from(sorted(BIASES)),
    LENGTHS,
    st.integers(0, 999),
)
def test_gemm_adds_its_bias_to_the_rounded_sum(
    trans: tuple[bool, bool], factors: tuple[float, float], kind: str, length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x, w = codes(rng, (3, length)), codes(rng, (length, 4))
    x, w = x.T if trans[0] else x, w.T if trans[1] else w
    shape = BIASES[kind]
    weights = {"w": w} | ({} if shape is None else {"b": np.asarray(codes(rng, shape))})
    given = dict(zip(("transA", "transB"), map(int, trans), strict=True))
    given |= dict(zip(("alpha", "beta"), map(float, factors), strict=True))
    node = helper.make_node("Gemm", ["x", *weights], ["y"], **given)
    expected = gemm(
        x,
        w,
        weights.get("b"),
        alpha=factors[0],
        beta=factors[1],
        trans_a=trans[0],
        trans_b=trans[1],
    )
    np.testing.assert_array_equal(run_node(node, {"x": x}, weights), expected)


@pytest.mark.parametrize(
    ("rows", "columns", "trans"),
    [(1, 4, 0), (3, 1, 0), (1, 1, 1), (1, 511, 0), (1, 512, 0), (1, 700, 1), (2, 700, 0)],
)
def test_gemm_of_one_row_or_column(rows: int, columns: int, trans: int) -> None:
    """Summed in FP32: products are rounded before, but not by a Gemm of 512 columns and more."""
    rng = np.random.default_rng(columns)
    x, w, b = (codes(rng, shape) for shape in ((rows, 50), (50, columns), (columns,)))
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=trans)
    found = run_node(node, {"x": x}, {"w": w.T if trans else w, "b": b})
    np.testing.assert_array_equal(found, gemm(x, w, b))


def test_gemm_of_unknown_sizes_is_summed_in_blocks() -> None:
    rng = np.random.default_rng(0)
    x, w = codes(rng, (3, 40)), codes(rng, (40, 4))
    node = helper.make_node("Gemm", ["x", "w"], ["y"])
    found = run_node(node, {"x": x, "w": w}, shapes={"x": None, "w": [None, None]})
    np.testing.assert_array_equal(found, in_blocks(x, w, chunks(range(40), 16)))


def test_a_partial_sum_that_overflows_stays_inf() -> None:
    """60000 + 60000 − 60000 − 60000, in one block of 16 each: 0, but Inf on the way."""
    x = np.zeros((2, 64))
    x[:, ::16] = [[60000, 60000, -60000, -60000], [60000, -60000, 60000, -60000]]
    w = np.ones((64, 2))
    found = run_node(MATMUL, {"x": x}, {"w": w})
    np.testing.assert_array_equal(found, [[np.inf, np.inf], [0, 0]])
    exact = run_node(MATMUL, {"x": x}, {"w": w}, kernels=Fp16Kernels.EXACT)
    np.testing.assert_array_equal(exact, 0)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([*sorted(MATRICES.values()), ("1K", "KN"), ("MK", "K1")]),
    st.sampled_from([3, 40]),
    st.integers(0, 999),
)
def test_nan_and_inf_go_through_as_in_numpy(kind: tuple[str, str], length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = (codes(rng, shaped(axes, length)) for axes in kind)
    for array in (x, w):
        array.flat[rng.integers(array.size)] = rng.choice([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(run_node(MATMUL, {"x": x, "w": w}), matmul(x, w))


def test_what_is_rounded_is_not_fused_with_what_follows() -> None:
    """MatMul → Add → Mul: ONNX Runtime would make a Gemm of it, and fold the factor."""
    rng = np.random.default_rng(0)
    x, w, b = codes(rng, (3, 90)), codes(rng, (90, 4)), codes(rng, (4,))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Mul", ["a", "k"], ["y"]),
    ]
    proto = half_model(nodes, {"x": x.shape}, {"w": w, "b": b, "k": np.array(3.0)})
    assert not is_left_alone(proto)
    np.testing.assert_array_equal(run_model(proto, {"x": x}), half(half(matmul(x, w) + b) * 3))


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_nothing_to_add_up(op_type: str) -> None:
    node = helper.make_node(op_type, ["x", "w"], ["y"])
    found = run_node(node, {"x": np.zeros((3, 0))}, {"w": np.zeros((0, 5))})
    np.testing.assert_array_equal(found, np.zeros((3, 5)))
