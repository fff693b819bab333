"""The registry, and the names of it that settings know without loading it."""

from __future__ import annotations

from qdebug.remedies.names import SUMMARIES
from qdebug.remedies.registry import REMEDIES, SEQUENCE


def test_the_names_are_those_of_the_registry() -> None:
    assert list(SUMMARIES.items()) == [(one.name, one.summary) for one in REMEDIES.values()]


def test_every_remedy_is_tried_in_the_registrys_order() -> None:
    assert list(dict.fromkeys(SEQUENCE)) == list(REMEDIES)


def test_ranges_are_tried_again_after_the_rewrites() -> None:
    last = max(i for i, name in enumerate(SEQUENCE) if REMEDIES[name].rewrites)
    assert SEQUENCE.index("ranges") < last < len(SEQUENCE) - 1 - SEQUENCE[::-1].index("ranges")
