"""From an order to a minimal set, with a plain function as the predicate."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdebug.decide.search.minimal import minimal_part, shortest_prefix

ORDER = "abcdefghijklmnopqrstuvwxyz"


class Needs:
    """Holds where all of these are there; counts questions."""

    def __init__(self, needed: str) -> None:
        self.needed, self.calls = set(needed), 0

    def __call__(self, chosen: Sequence[str]) -> bool:
        self.calls += 1
        return self.needed <= set(chosen)


@given(st.sets(st.sampled_from(ORDER), min_size=1))
def test_the_shortest_prefix_ends_with_the_last_that_is_needed(needed: set[str]) -> None:
    holds = Needs("".join(needed))
    count = shortest_prefix(ORDER, holds)
    assert ORDER[count - 1] == max(needed)
    assert holds.calls <= 2 * count.bit_length() + 1


@given(st.sets(st.sampled_from(ORDER)))
def test_what_is_left_is_what_is_needed(needed: set[str]) -> None:
    holds = Needs("".join(needed))
    assert set(minimal_part(ORDER, holds)) == needed
    assert holds.calls <= 2 * len(ORDER)


@pytest.mark.parametrize(("needed", "most"), [("a", 12), ("z", 7), ("xyz", 10), ("am", 16)])
def test_few_questions_where_few_are_needed(needed: str, most: int) -> None:
    holds = Needs(needed)
    assert set(minimal_part(ORDER, holds)) == set(needed)
    assert holds.calls <= most
