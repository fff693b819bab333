"""When one trial is better than another beyond doubt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tensor import metrics_of
from qdebug.results.calibrate import Trial


def _trial(**errors: Any) -> Trial:
    sums = {t: ErrorSums(10, sq_err=float(np.sum(e)), ref_sq=100.0) for t, e in errors.items()}
    arrays = {t: np.asarray(e, np.float64) for t, e in errors.items()}
    return Trial({t: metrics_of(s) for t, s in sums.items()}, None, arrays)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1, 1, 1, 1], [2, 2.1, 1.9, 2], True),
        ([2, 2.1, 1.9, 2], [1, 1, 1, 1], False),
        ([1, 1, 1, 1], [1, 1, 1, 1], False),
        ([1, 1, 1, 1], [0.5, 0.6, 0.4, 20], False),  # better in one of four only
        ([1, 1, 1], [2, 2, 2], False),  # too few to tell
        ([np.nan, 1, 1, 1], [2, 2, 2, 2], False),
    ],
)
def test_a_difference_counts_beyond_two_standard_errors(
    ours: list[float], theirs: list[float], expected: bool
) -> None:
    assert _trial(y=ours).surely_beats(_trial(y=theirs)) is expected


def test_the_output_that_is_worst_decides() -> None:
    theirs = _trial(good=[0.1, 0.1, 0.1, 0.1], bad=[4, 4, 4, 4.1])
    assert _trial(good=[0.2, 0.2, 0.2, 0.2], bad=[3, 3, 3, 3.1]).surely_beats(theirs)
    assert not _trial(good=[0.05, 0.05, 0.05, 0.05], bad=[5, 5, 5, 5]).surely_beats(theirs)
