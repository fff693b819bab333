"""Ranges of weights of least squared error: never worse than max, and near the best there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdebug.calibrators.weights import mse_weight_amax, weight_amax
from qdebug.formats.registry import INT8
from qdebug.plan.quantize import scale_of

SHAPES = [
    ((64, 16, 3, 3), 0),
    ((48, 1, 3, 3), 0),
    ((40, 300), 1),
    ((7, 5, 2), -1),
    ((3, 900), None),
]


def _weight(shape: Any) -> Any:
    return (np.random.default_rng(0).standard_t(4, size=shape) * 0.05).astype(np.float32)


def _errors(weight: Any, amax: Any, axis: int | None) -> Any:
    difference = INT8.quantize(weight, scale_of(amax), axis).astype(np.float64) - weight
    squares = difference * difference
    if axis is None:
        return squares.sum()
    return np.moveaxis(squares, axis, 0).reshape(weight.shape[axis], -1).sum(axis=1)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_mse_is_near_the_best_and_never_worse_than_max(shape: Any, axis: int | None) -> None:
    weight = _weight(shape)
    largest = weight_amax(weight, axis)
    found = mse_weight_amax(weight, axis)
    assert found.shape == largest.shape
    assert np.all(found <= largest)
    errors = _errors(weight, found, axis)
    assert np.all(errors <= _errors(weight, largest, axis) * (1 + 1e-6))
    best = np.min([_errors(weight, largest * r, axis) for r in np.linspace(0.3, 1, 141)], axis=0)
    assert np.sum(errors) <= np.sum(best) * 1.01


def test_an_outlier_in_one_channel_is_clipped_there_only() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 200_000)).astype(np.float32)
    weight[2, 7] = 12.0
    found = mse_weight_amax(weight, 0)
    assert found[2] < 6
    np.testing.assert_array_equal(found[:2], mse_weight_amax(weight[:2], 0))
    assert np.all(found[[0, 1, 3]] < 4.5)


def test_degenerate_weights() -> None:
    amax = mse_weight_amax
    assert amax(np.zeros((3, 4), np.float32), 0).tolist() == [0, 0, 0]
    assert amax(np.zeros((3, 4), np.float32), None) == 0
    assert amax(np.zeros((2, 0), np.float32), 0).tolist() == [0, 0]
    assert amax(np.zeros((0, 2), np.float32), None) == 0
    assert amax(np.full((2, 9), -3.0, np.float32), 0).tolist() == [3, 3]
    assert amax(np.full((2, 9), -3.0, np.float32), None) == 3
    tiny = np.full((1, 9), 1e-41, np.float32)
    assert amax(tiny, 0) == amax(tiny, None) == tiny.max()
    spoilt = np.array([[1, np.nan], [2, 1], [np.inf, 0]], np.float32)
    found = amax(spoilt, 0)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(2, rel=0.02)
    assert np.isinf(found[2])
    assert np.isnan(amax(spoilt[:2], None))
