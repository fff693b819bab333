"""Codes that are chosen together, against all codes near them and against each one's nearest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qdebug.decide.remedies.registry import REMEDIES
from qdebug.decide.remedies.rounding import rounded_together
from qdebug.formats.registry import INT8
from qdebug.types import Array


def _problem(
    groups: int, unknowns: int, channels: int, seed: int = 0
) -> tuple[Array, Array, Array]:
    """A matrix, its scale, and the second moments of inputs that go together."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(groups, unknowns, channels)).astype(np.float32)
    scale = np.broadcast_to(np.abs(matrix).max(axis=1, keepdims=True) / 7, matrix.shape)
    mixed = rng.normal(size=(groups, 4 * unknowns, unknowns)) @ rng.normal(
        size=(groups, unknowns, unknowns)
    )
    return matrix, scale.astype(np.float32), mixed.transpose(0, 2, 1) @ mixed


def _error(matrix: Array, found: Array, hessian: Array) -> Any:
    off = (found - matrix).astype(np.float64)
    return (off * (hessian @ off)).sum(axis=1)


@pytest.mark.parametrize(("groups", "unknowns"), [(1, 6), (5, 9), (1, 300), (3, 140)])
def test_the_error_is_less_than_that_of_the_nearest_codes(groups: int, unknowns: int) -> None:
    matrix, scale, hessian = _problem(groups, unknowns, 4)
    found = rounded_together(matrix, scale, hessian)
    assert found is not None
    codes = found / scale
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    nearest = np.rint(matrix / scale) * scale
    assert _error(matrix, found, hessian).sum() < 0.8 * _error(matrix, nearest, hessian).sum()


def test_few_codes_are_almost_the_best_there_are() -> None:
    matrix, scale, hessian = _problem(1, 5, 8, seed=1)
    found = rounded_together(matrix, scale, hessian, damping=1e-6)
    assert found is not None
    nearest = np.rint(matrix / scale)
    tried = [
        _error(matrix, (nearest + np.array(step)[None, :, None]) * scale, hessian)
        for step in itertools.product((-1, 0, 1), repeat=5)
    ]
    best = np.min(tried, axis=0)
    assert _error(matrix, found, hessian).sum() < 1.5 * best.sum()


def test_inputs_that_do_not_go_together_leave_the_nearest_codes() -> None:
    matrix, scale, _ = _problem(2, 20, 3)
    found = rounded_together(matrix, scale, np.stack([np.eye(20), np.eye(20) * 4]))
    np.testing.assert_allclose(found, np.rint(matrix / scale) * scale, rtol=1e-6)


def test_moments_without_a_root_give_none() -> None:
    matrix, scale, hessian = _problem(1, 6, 2)
    assert rounded_together(matrix, scale, -hessian) is None


def test_lowering_quantizes_the_codes_to_themselves(bundled: Callable[[str], Any]) -> None:
    at = bundled("digits_cnn")
    remedy = REMEDIES["rounding"]
    proposal = next(iter(remedy.propose(at.study, at.start, remedy.layers(at.start))))
    assert proposal.layers
    for name in proposal.layers:
        item = proposal.result.quantized(name)
        before = at.start.quantized(name).weight
        assert before is not None
        np.testing.assert_array_equal(item.weight.scale, before.scale)
        values = proposal.result.bound.corrections[name].weight
        again = INT8.quantize(values, item.weight.scale, item.weight.axis)
        np.testing.assert_array_equal(again, values)
