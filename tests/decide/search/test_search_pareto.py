"""The list of error against cost, its knee, and the point that a user selects."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qdebug.decide.search.pareto import Point, check_select_point, pareto, selected_index
from qdebug.decide.search.problem import Measurement
from qdebug.errors import UsageError
from qdebug.types import Precision


def point(count: int, noise: float, measured: Measurement) -> Point:
    pins = frozenset((n, Precision.FP16) for n in "abcd"[:count])
    return Point(pins, 0, count, noise, measured)


def points(noise: Sequence[float], passing: Sequence[bool]) -> tuple[Point, ...]:
    """Of sets that pin one layer more each."""
    rows = enumerate(zip(noise, passing, strict=True))
    return pareto(point(k, x, Measurement(x, passed, x)) for k, (x, passed) in rows)


def test_what_another_beats_is_no_point() -> None:
    figures = [(0, 1.0), (1, 0.5), (1, 0.7), (2, 0.5), (3, 0.1)]
    found = pareto(point(k, x, Measurement(x, False, x)) for k, x in figures)
    assert [(p.cost, p.noise) for p in found] == [(0, 1.0), (1, 0.5), (3, 0.1)]


@pytest.mark.parametrize(
    ("passing", "knee"),
    [
        ((False, True, True, True, True), 1),
        ((False, False, True, True, True), 2),  # the sharpest bend fails the target
        ((False, False, False, False, True), None),  # an end of the list is no bend
        ((False,) * 5, 1),  # where no point meets the target
    ],
)
def test_the_knee_meets_the_target_where_any_point_does(
    passing: Sequence[bool], knee: int | None
) -> None:
    found = points((1.0, 1e-3, 5e-4, 2e-4, 1e-4), passing)
    assert [i for i, point in enumerate(found) if point.knee] == ([] if knee is None else [knee])


def test_where_the_target_is_a_metric_the_knee_goes_by_it() -> None:
    """Here the noise falls most with the first layer, and the metric with the third."""
    figures = [(1.0, 0.50), (1e-3, 0.55), (8e-4, 0.60), (5e-4, 0.98), (2e-4, 0.97)]
    each = [
        point(k, noise, Measurement(metric, metric >= 0.8, noise, slack=metric - 0.8))
        for k, (noise, metric) in enumerate(figures)
    ]
    found = pareto(each, by_value=True)
    assert [point.knee for point in found] == [False, False, False, True, False]
    alike = [point(k, noise, Measurement(1.0, True, noise)) for k, (noise, _) in enumerate(figures)]
    assert not any(point.knee for point in pareto(alike, by_value=True))
    assert any(point.knee for point in pareto(alike))


def test_points_are_selected_by_number_or_as_the_knee() -> None:
    found = points((1.0, 1e-3, 5e-4), (False, True, True))
    assert [selected_index(wanted, found) for wanted in ("1", "3", "knee")] == [0, 2, 1]
    for wanted, among in (("4", found), ("1", ()), ("knee", found[:1])):
        with pytest.raises(UsageError) as caught:
            selected_index(wanted, among)
        assert caught.value.code == "QD-USAGE-POINT"


@pytest.mark.parametrize("wanted", ["0", "-1", "best", "", "٣"])
def test_what_cannot_be_a_point_is_refused_before_the_search(wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_select_point(wanted)
    assert caught.value.code == "QD-USAGE-POINT"
