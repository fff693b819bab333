"""A float16 array gives what it gives as float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.metrics import kernel

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]

needs_native = pytest.mark.skipif(kernel.native is None, reason="the C module was not built")


@needs_native
@pytest.mark.parametrize("width", [64, 1])
def test_every_float16_is_widened_exactly(width: int) -> None:
    ones = np.ones(width, np.float32)
    for values in HALVES.reshape(-1, width):
        found = kernel.native.row_sums(ones, values, 1.0)
        expected = kernel.native.row_sums(ones, values.astype(np.float32), 1.0)
        assert str(found) == str(expected)  # equal, or NaN in both


@needs_native
@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 1100)),
    axis=st.integers(0, 2),
)
def test_float16_counts_as_its_float32(seed: int, shape: tuple[int, int, int], axis: int) -> None:
    rng = np.random.default_rng(seed)
    ref = rng.standard_normal(shape, np.float32)
    cand = rng.choice(FINITE[np.abs(FINITE) < 100], shape)
    wide = cand.astype(np.float32)
    rows = ref.reshape(len(ref), -1)
    flat = cand.reshape(rows.shape)
    assert kernel.fast_parts(rows, flat, 1.0) == kernel.fast_parts(
        rows, flat.astype(np.float32), 1.0
    )
    assert kernel.difference_energy(ref.ravel(), cand.ravel()) == kernel.difference_energy(
        ref.ravel(), wide.ravel()
    )
    for found, expected in zip(
        kernel.channel_energies(ref, cand, axis),
        kernel.channel_energies(ref, wide, axis),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@needs_native
def test_arrays_that_do_not_fit_are_refused() -> None:
    row = np.zeros(8, np.float32)
    for other in (row[:7], row.astype(np.float64)):
        with pytest.raises(ValueError, match="two arrays of floats of one size"):
            kernel.native.row_sums(row, other, 1.0)
    with pytest.raises(ValueError, match="two float64"):
        kernel.native.channel_sums(row, row, 3, 1, np.zeros(3), np.zeros(3))
