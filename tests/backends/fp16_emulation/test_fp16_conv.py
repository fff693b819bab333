"""Convolutions sum in FP16 as TensorRT's kernels do, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from half_rules import UNIT, codes, conv, conv_blocks, half, same_pads
from half_runs import half_model, is_left_alone, run_node
from hypothesis import given, settings
from onnx import helper

from qdebug.types import Fp16Kernels

Array = np.ndarray[Any, Any]
FEW, MANY = st.sampled_from([1, 3, 32]), st.sampled_from([33, 40])


def node_of(inputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node("Conv", inputs, ["y"], **attributes)


def compared(
    pixels: Array, weights: Array, bias: Array | None = None, **attributes: Any
) -> tuple[Array, Array]:
    """What ONNX Runtime computes, and the rule."""
    rank = weights.ndim - 2
    full = {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank} | attributes
    constants = {"w": weights} | ({} if bias is None else {"b": bias})
    found = run_node(node_of(["x", *constants], **attributes), {"x": pixels}, constants)
    return found, conv(pixels, weights, bias, **full)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 999))
def test_windows_of_one_to_three_axes(data: st.DataObject, rank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def each(low: int, high: int) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    kernel, dilations = each(1, 3), each(1, 2)
    given = {"strides": each(1, 3), "dilations": dilations, "pads": each(0, 2) + each(0, 2)}
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = [span + more for span, more in zip(spans, each(0, 3), strict=True)]
    channels = data.draw(st.sampled_from([1, 3, 8, 16, 20, 24, 32, 40]))
    pixels, weights = codes(rng, (2, channels, *sizes)), codes(rng, (3, channels, *kernel))
    bias = codes(rng, (3,)) if data.draw(st.booleans()) else None
    found, expected = compared(pixels, weights, bias, **given)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 70), st.one_of(FEW, MANY), st.sampled_from([1, 2, 3]), st.integers(0, 999))
def test_any_number_of_channels(channels: int, outputs: int, kernel: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = codes(rng, (1, channels, 4, 3))
    weights = codes(rng, (outputs, channels, kernel, kernel))
    found, expected = compared(pixels, weights, codes(rng, (outputs,)))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("channels", [1, 2, 3, 8, 16, 20, 33])
@pytest.mark.parametrize("length", [64, 65, 100])
def test_kernels_of_many_positions(channels: int, length: int) -> None:
    """From 65 on they go from one position to the next without a gap."""
    rng = np.random.default_rng(channels)
    weights = codes(rng, (40, channels, length))
    found, expected = compared(codes(rng, (2, channels, length + 3)), weights, strides=[2])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel"),
    [
        *((1, 40, (8,)), (1, 40, (9,)), (2, 40, (4,)), (1, 40, (100,)), (2, 40, (100,))),
        *((1, 40, (2, 4)), (2, 40, (2, 2)), (1, 40, (3, 3)), (3, 40, (2, 2)), (1, 4, (2, 2, 2))),
        *((256, 256, (1, 1)), (256, 40, (1, 1)), (40, 256, (1, 1)), (3, 4, (9, 9))),
    ],
)
def test_what_is_rounded_once(channels: int, outputs: int, kernel: tuple[int, ...]) -> None:
    """And their neighbours, which are not."""
    rng = np.random.default_rng(channels)
    sizes = kernel if channels > 20 else [n + 2 for n in kernel]
    weights = codes(rng, (outputs, channels, *kernel))
    found, expected = compared(codes(rng, (1, channels, *sizes)), weights, codes(rng, (outputs,)))
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 3),
    st.sampled_from([1, 2, 7, 8, 9, 12, 16, 17, 24, 32, 40]),
    st.sampled_from([1, 2, 33]),
    st.booleans(),
    st.integers(0, 999),
)
def test_groups(groups: int, channels: int, outputs: int, moves: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = (3, 2) if moves else (1, 1)
    pixels = codes(rng, (2, groups * channels, 5, 4))
    weights = codes(rng, (groups * outputs, channels, *kernel))
    more = {"strides": [2, 1], "pads": [1, 0, 1, 1]} if moves else {}
    bias = codes(rng, (groups * outputs,))
    found, expected = compared(pixels, weights, bias, group=groups, **more)
    np.testing.assert_array_equal(found, expected)


def test_the_order_of_the_terms_as_it_is_written_down() -> None:
    """Two positions, a and b."""
    assert conv_blocks("ab", 20, 64, 1) == [
        [("a", i) for i in range(16)],
        [("a", i) for i in range(16, 20)],
        [("b", i) for i in range(16)],
        [("b", i) for i in range(16, 20)],
    ]
    assert conv_blocks("ab", 9, 8, 1) == [
        [*(("a", i) for i in range(9)), *(("b", i) for i in range(6))],
        [("b", i) for i in range(6, 9)],
    ]
    fours = [
        [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19],
        [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23],
    ]
    assert conv_blocks("a", 24, 8, 1) == [[("a", i) for i in block] for block in fours]


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    st.tuples(st.integers(5, 9), st.integers(5, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([3, 33]),
)
def test_auto_pad(
    how: str,
    sizes: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    channels: int,
) -> None:
    rng = np.random.default_rng(sum(sizes))
    pixels, weights = codes(rng, (1, channels, *sizes)), codes(rng, (2, channels, *kernel))
    node = node_of(["x", "w"], auto_pad=how, strides=strides)
    found = run_node(node, {"x": pixels}, {"w": weights})
    pads = [0] * 4
    if how != "VALID":
        pads = same_pads(sizes, kernel, strides, (1, 1), upper=how == "SAME_UPPER")
    expected = conv(pixels, weights, strides=strides, dilations=(1, 1), pads=pads)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("how", ["SAME_UPPER", "SAME_LOWER"])
def test_what_rounds_nowhere_is_onnx_runtimes_own_convolution(how: str, group: int) -> None:
    """Small whole numbers: FP16 holds all sums, so only the pixels that are read matter."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(-2, 3, (2, 20 * group, 7, 6)).astype(float)
    weights = rng.integers(-2, 3, (4, 20, 3, 4)).astype(float)
    for strides in ((1, 1), (2, 3)):
        node = node_of(["x", "w"], auto_pad=how, strides=strides, group=group)
        found, exact = (
            run_node(node, {"x": pixels}, {"w": weights}, kernels=k)
            for k in (Fp16Kernels.TENSORRT, Fp16Kernels.EXACT)
        )
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("channels", [5, 24, 40])
@pytest.mark.parametrize("stride", [1, 2])
def test_batch_and_sizes_that_are_not_known_beforehand(channels: int, stride: int) -> None:
    rng = np.random.default_rng(channels)
    pixels, weights = codes(rng, (3, channels, 7, 6)), codes(rng, (2, channels, 3, 2))
    node = node_of(["x", "w"], strides=[stride] * 2, pads=[1, 0, 1, 1], dilations=[2, 1])
    full = {"strides": [stride] * 2, "pads": [1, 0, 1, 1], "dilations": [2, 1]}
    expected = conv(pixels, weights, **full)
    for shape in (["N", channels, "H", "W"], [None] * 4, None):
        found = run_node(node, {"x": pixels}, {"w": weights}, shapes={"x": shape})
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("stride", "known"), [(1, True), (2, False)])
def test_auto_pad_of_sizes_that_are_not_known_beforehand(stride: int, known: bool) -> None:
    """With strides, what is padded depends on the size: then sums are exact."""
    rng = np.random.default_rng(0)
    pixels, weights = codes(rng, (2, 40, 7, 6)), codes(rng, (2, 40, 3, 3))
    node = node_of(["x", "w"], auto_pad="SAME_UPPER", strides=[stride] * 2)
    shape = ["N", 40, "H", "W"]
    assert is_left_alone(half_model([node], {"x": shape}, {"w": weights})) != known
    if known:
        found = run_node(node, {"x": pixels}, {"w": weights}, shapes={"x": shape})
        expected = conv(pixels, weights, strides=[1, 1], dilations=[1, 1], pads=[1] * 4)
        np.testing.assert_array_equal(found, expected)


def test_weights_that_are_an_input() -> None:
    rng = np.random.default_rng(0)
    pixels, weights = codes(rng, (1, 40, 4, 4)), codes(rng, (2, 40, 3, 3))
    found = run_node(node_of(["x", "w"]), {"x": pixels, "w": weights})
    expected = conv(pixels, weights, strides=[1, 1], dilations=[1, 1], pads=[0] * 4)
    np.testing.assert_array_equal(found, expected)
    for shape in (None, [2, 40, None, None]):
        inputs = {"x": pixels.shape, "w": shape}
        assert is_left_alone(half_model([node_of(["x", "w"])], inputs))


def test_depthwise_is_left_alone() -> None:
    node = node_of(["x", "w", "b"], group=4, pads=[1] * 4)
    weights = {"w": np.ones((4, 1, 3, 3)), "b": np.ones(4)}
    assert is_left_alone(half_model([node], {"x": [1, 4, 5, 5]}, weights))
    twofold = {"w": np.ones((8, 1, 3, 3)), "b": np.ones(8)}
    assert not is_left_alone(half_model([node], {"x": [1, 4, 5, 5]}, twofold))


def test_a_partial_sum_that_overflows_stays_inf() -> None:
    pixels = np.zeros((1, 64, 1, 1))
    pixels[0, ::16, 0, 0] = [60000, 60000, -60000, -60000]
    weights = np.ones((1, 64, 1, 1))
    found, expected = compared(pixels, weights)
    assert found.item() == expected.item() == np.inf
    exact = run_node(node_of(["x", "w"]), {"x": pixels}, {"w": weights}, kernels=Fp16Kernels.EXACT)
    assert exact.item() == 0


@pytest.mark.parametrize("channels", [5, 24, 40])
def test_nan_and_inf_go_through_as_in_numpy(channels: int) -> None:
    """Padding times Inf is NaN."""
    rng = np.random.default_rng(channels)
    pixels, weights = codes(rng, (2, channels, 6, 6)), codes(rng, (4, channels, 3, 3))
    pixels[0, 1, 2, 3], pixels[1, 0, 4, 4] = np.nan, -np.inf
    weights[2, 3, 0, 1], weights[3, 4, 1, 1] = np.inf, np.nan
    bias = np.array([0, np.inf, UNIT, 0])
    found, expected = compared(pixels, weights, bias, pads=[1] * 4)
    assert np.isnan(expected).any() and np.isinf(expected).any() and np.isfinite(expected).any()
    np.testing.assert_array_equal(found, expected)


def test_the_bias_is_added_to_the_rounded_sum() -> None:
    """Of 40 channels: 2049 is rounded to 2048 before 1 is added; in FP32 it would be 2050."""
    pixels, weights = np.zeros((1, 40, 1, 1)), np.ones((1, 40, 1, 1))
    pixels[0, :2, 0, 0] = 2048, 1
    for group in (1, 2):
        x, w = np.repeat(pixels, group, 1), np.repeat(weights, group, 0)
        found, expected = compared(x, w, np.ones(group), group=group)
        np.testing.assert_array_equal(found, expected)
    found, _ = compared(pixels, weights, np.ones(1))
    assert found.item() == half(2048 + 1)
