"""Groups of tensors that fit, and the tensor that cannot be built."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.backends.tensorrt.execute.observe.outputs import build_groups, groups_within
from qdebug.errors import BackendError


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 60))
def test_groups_fit_and_keep_the_order(sizes: list[int], budget: int) -> None:
    tensors = [str(k) for k in range(len(sizes))]
    by_name = dict(zip(tensors, sizes, strict=True))
    groups = groups_within(tensors, by_name, budget)
    assert [t for group in groups for t in group] == tensors
    for group in groups:
        assert len(group) == 1 or sum(by_name[t] for t in group) <= budget


def test_no_budget_is_one_group_and_an_unknown_size_counts_as_the_largest() -> None:
    assert groups_within(["a", "b"], {}, None) == [["a", "b"]]
    assert groups_within([], {}, None) == []
    assert groups_within(["a", "?", "b"], {"a": 6, "b": 1}, 8) == [["a"], ["?", "b"]]


@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=3))
def test_the_guilty_are_found_and_the_rest_is_built(count: int, guilty: set[int]) -> None:
    tensors = [str(k) for k in range(count)]
    culprits = {str(k) for k in guilty if k < count}
    calls: list[Sequence[str]] = []

    def build(group: Sequence[str]) -> list[str]:
        calls.append(group)
        if culprits.intersection(group):
            raise BackendError("it broke")
        return list(group)

    built, skipped = build_groups([tensors], build)
    assert sorted(t for group in built for t in group) == sorted(set(tensors) - culprits)
    assert {s.tensor for s in skipped} == culprits
    assert all("it broke" in s.reason for s in skipped)
    assert len(calls) <= 2 + 2 * len(culprits) * (1 + math.ceil(math.log2(count + 1)))


def test_what_fails_without_any_tensor_is_raised_at_once() -> None:
    calls: list[int] = []

    def build(group: Sequence[str]) -> None:
        calls.append(len(group))
        raise BackendError("the driver is gone")

    with pytest.raises(BackendError, match="the driver is gone"):
        build_groups([["a", "b", "c"]], build)
    assert calls == [3, 0]
