"""What is said of the steps of a repair."""

from __future__ import annotations

import pytest

from qdebug.decide.remedies.result import Figures, Reason, Step
from qdebug.display.repair import _done


@pytest.mark.parametrize(
    ("reason", "after", "says"),
    [
        (Reason.LESS_NOISE, 32.0, "less error"),
        (Reason.LESS_NOISE, 27.1, "less error in most samples"),
        (Reason.NO_GAIN, 27.1, "more error"),
        (Reason.NO_GAIN, 30.0, "no gain beyond chance"),
    ],
)
def test_why_and_change_do_not_contradict_each_other(
    reason: Reason, after: float, says: str
) -> None:
    accepted = reason is Reason.LESS_NOISE
    figures = Figures(30.0, 1.0), Figures(after, 1.0)
    assert _done(Step("offsets", "", ("a",), accepted, reason, *figures, 1, 0.0)) == says
