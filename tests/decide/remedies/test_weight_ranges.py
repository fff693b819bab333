"""Ranges of weights by what their rounding does to the output."""

from __future__ import annotations

import numpy as np
import pytest

from qdebug.calibrators.weights import weight_amax
from qdebug.decide.remedies.product import Product
from qdebug.decide.remedies.weight_ranges import best_amax
from qdebug.formats.registry import INT8
from qdebug.plan.quantize import scale_of
from qdebug.types import Array

CASES = [
    (Product("Conv", {"group": 2}, (6, 4, 3, 3), False), 0),
    (Product("ConvTranspose", {"group": 2}, (4, 3, 2, 2), False), 1),
    (Product("MatMul", {}, (16, 5), False), 1),
    (Product("Gemm", {"transB": 1}, (5, 16), False), 0),
    (Product("MatMul", {}, (16, 5), False), None),
]


@pytest.mark.parametrize(("product", "axis"), CASES)
def test_the_output_error_of_random_inputs_is_least(product: Product, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_t(3, size=product.shape).astype(np.float32)
    groups, unknowns, _ = product.matrix_shape
    mixing = rng.normal(size=(groups, unknowns, unknowns))
    rows = rng.normal(size=(groups, 500, unknowns)) @ mixing
    found, least = best_amax(product, weight, axis, rows.transpose(0, 2, 1) @ rows)
    largest = weight_amax(weight, axis)
    assert found.shape == least.shape == largest.shape
    assert np.all(found <= largest)

    def error(amax: Array) -> Array:
        rounded = INT8.quantize(weight, scale_of(amax), axis)
        output = np.square(rows @ product.matrix(rounded - weight)).sum(axis=1)
        if axis is None:
            return np.asarray(output.sum())
        return output.sum(axis=0) if product.op_type == "ConvTranspose" else output.reshape(-1)

    np.testing.assert_allclose(error(found), least, rtol=1e-3)
    assert np.all(least <= (1 + 1e-6) * error(largest))
    assert np.any(least < 0.99 * error(largest))
    for share in (0.9, 0.7, 0.5):
        assert np.all(error(found) <= 1.2 * error(share * largest))
