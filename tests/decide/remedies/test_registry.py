"""The registry, and the names of it that settings know without loading it."""

from __future__ import annotations

from qdebug.config.remedies import SUMMARIES
from qdebug.decide.remedies.registry import REMEDIES


def test_the_names_are_those_of_the_registry() -> None:
    assert list(SUMMARIES) == list(REMEDIES)


def test_rewrites_come_before_all_that_depends_on_their_values() -> None:
    # What a rewrite recalibrates, it does by the calibrator that was chosen, which is chosen with
    # the scales that weights will have.
    others = [one for one in REMEDIES.values() if one.name not in ("weight-scales", "calibrator")]
    kinds = [one.rewrites for one in others]
    assert kinds == sorted(kinds, reverse=True) and any(kinds)
