"""Second moments and the refit from them, against literal sums over the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repair_networks import NETWORKS

from qdebug.decide.remedies import moments
from qdebug.decide.remedies.least_squares import refitted
from qdebug.decide.remedies.moments import Moments, moments_of
from qdebug.decide.remedies.product import product_of
from qdebug.decide.remedies.walk import Walk
from qdebug.types import Array


def _data(groups: int, rows: int, unknowns: int, channels: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(1.0, 2.0, (groups, rows, unknowns)).astype(np.float32)
    r = x @ rng.normal(size=(groups, unknowns, channels)) + rng.normal(
        size=(groups, rows, channels)
    )
    return x, (r + 3).astype(np.float32)


def _moments(x: Array, r: Array, parts: int = 2) -> Moments:
    total = Moments.none(x.shape[0], x.shape[2], r.shape[2])
    for rows, missing in zip(
        np.array_split(x, parts, axis=1), np.array_split(r, parts, axis=1), strict=True
    ):
        one = Moments.none(x.shape[0], x.shape[2], r.shape[2])
        one.add(rows, missing)
        total = total + one
    return total


@given(
    st.integers(1, 3), st.integers(4, 40), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99)
)
def test_moments_are_those_of_the_rows(
    groups: int, rows: int, unknowns: int, channels: int, seed: int
) -> None:
    x, r = _data(groups, rows, unknowns, channels, seed)
    found = _moments(x, r)
    assert found.count == rows
    for g in range(groups):
        centred = x[g] - x[g].mean(axis=0, dtype=np.float64)
        np.testing.assert_allclose(found.hessian[g], centred.T @ centred / rows, atol=1e-4)
        np.testing.assert_allclose(found.cross[g], centred.T @ r[g] / rows, atol=1e-3)
    off = np.random.default_rng(seed).normal(size=(groups, unknowns, channels))
    left = r - x @ off
    np.testing.assert_allclose(found.shift(off), left.mean(axis=1), atol=1e-4)
    shift = found.shift(off) + 0.5
    literal = np.square(left - shift[:, None]).sum(axis=1)
    np.testing.assert_allclose(found.error(off, shift), literal, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("groups", [1, 4])
def test_without_a_ridge_the_refit_is_the_regression(groups: int) -> None:
    x, r = _data(groups, 200, 6, 3, 0)
    found = refitted(_moments(x, r), 0.0)
    assert found is not None
    for g in range(groups):
        ones = np.concatenate([x[g], np.ones((200, 1), np.float32)], axis=1)
        expected = np.linalg.lstsq(ones.astype(np.float64), r[g].astype(np.float64))[0][:-1]
        np.testing.assert_allclose(found[g], expected, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 4])
def test_a_ridge_is_a_share_of_the_mean_of_the_diagonal(groups: int) -> None:
    """Rows that stand for λ give the same: Σ|r − D x|² + λ |D|²."""
    x, r = _data(groups, 50, 6, 3, 1)
    x -= x.mean(axis=1, keepdims=True)
    r -= r.mean(axis=1, keepdims=True)
    found = refitted(_moments(x, r), 0.25)
    assert found is not None
    for g in range(groups):
        level = 0.25 * np.square(x[g]).sum() / 6
        rows = np.concatenate([x[g], np.sqrt(level) * np.eye(6)]).astype(np.float64)
        expected = np.linalg.lstsq(rows, np.concatenate([r[g], np.zeros((6, 3))]))[0]
        np.testing.assert_allclose(found[g], expected, atol=1e-4)


@given(st.integers(1, 3), st.integers(1, 23), st.integers(1, 5), st.integers(0, 99))
def test_a_quadratic_form_adds_up_its_blocks(
    groups: int, unknowns: int, channels: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(groups, unknowns, unknowns))
    hessian, off = root @ root.transpose(0, 2, 1), rng.normal(size=(groups, unknowns, channels))
    expected = np.einsum("gin,gij,gjn->gn", off, hessian, off)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(moments, "_BLOCK", 4)
        np.testing.assert_allclose(moments.quadratic(hessian, off), expected, rtol=1e-9)


def test_inputs_that_are_all_zero_change_nothing() -> None:
    x, r = _data(2, 30, 4, 2, 0)
    found = refitted(_moments(x * 0, r), 0.01)
    assert found is not None
    assert not found.any()


def test_values_whose_squares_are_beyond_float32() -> None:
    """Their sums are not finite, without a warning."""
    x = np.full((1, 4, 300), 1e30, np.float32)
    assert not np.isfinite(_moments(x, x).rr).all()


def test_rows_that_are_added_together_are_those_of_each_execution(
    case: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = case(NETWORKS["residual"](), count=96)
    sites = 0
    for site in Walk(at.study, at.start):
        product = product_of(at.start.graph, site.layer)
        assert product is not None
        together = moments_of(site, product)
        with monkeypatch.context() as patched:
            patched.setattr(moments, "_TOGETHER", 1)
            apart = moments_of(site, product)
        for one, other in ((together.fit, apart.fit), (together.held, apart.held)):
            assert one.count == other.count > 0
            np.testing.assert_allclose(one.xx, other.xx, rtol=1e-4, atol=1e-3)
            np.testing.assert_allclose(one.xr, other.xr, rtol=1e-4, atol=1e-2)
        sites += 1
    assert sites > 1
