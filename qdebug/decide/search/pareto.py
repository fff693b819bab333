"""What a search evaluated, as a trade of error against cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.decide.search.oracle import Evaluation
from qdebug.decide.search.problem import Pinned, SearchProblem
from qdebug.errors import UsageError
from qdebug.wording import option

KNEE = "knee"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Point(Pinned):
    """A candidate that no other beats in both cost and noise.

    Attributes:
        cost: of its pins, without those that are always there.
        noise: Σerr²/Σref² at the outputs.
        value: the target's figure.
        knee: it is the knee of the list.
        held_out: see Measurement.
    """

    cost: float
    noise: float
    value: float | None
    passed: bool
    knee: bool = False
    held_out: bool = False


def pareto(
    problem: SearchProblem, history: Iterable[Evaluation], *, by_value: bool = False
) -> tuple[Point, ...]:
    """The candidates that none beats, the cheapest first; those without noise are left out.

    The knee is the point farthest below the straight line from the first point to the last, with
    the cost and the logarithm of the noise scaled to 0…1 (Satopää et al., Finding a "Kneedle" in a
    Haystack, 2011). It is a point that meets the target; only where none of them does, it may be
    any. There is none where there are fewer than three points or none of these is below the line.

    Args:
        by_value: the target's figure takes the place of the noise for the knee: that of a metric,
            which less noise need not make better.
    """
    points = [
        (
            Point(
                e.pins,
                problem.cost(e.pins),
                e.measurement.noise,
                e.measurement.value,
                e.measurement.passed,
                held_out=e.measurement.held_out,
            ),
            e.measurement.slack,
        )
        for e in history
        if e.measurement.noise is not None and not math.isnan(e.measurement.noise)
    ]
    best: list[Point] = []
    slacks: list[float | None] = []
    for point, slack in sorted(
        points, key=lambda p: (p[0].cost, p[0].noise, len(p[0].pins), sorted(p[0].pins))
    ):
        if not best or point.noise < best[-1].noise:
            best.append(point)
            slacks.append(slack)
    knee = _knee(best, _shortfall(slacks) if by_value else _noise_levels(best))
    return tuple(replace(point, knee=i == knee) for i, point in enumerate(best))


def _noise_levels(points: Sequence[Point]) -> Floats:
    """The logarithm of the noise, scaled so that it falls from 1 to 0; NaN where it is infinite, or
    all are alike."""
    noise = np.array([p.noise if math.isfinite(p.noise) else math.nan for p in points])
    finite = noise[np.isfinite(noise)]
    if len(finite) < 2:
        return np.full(len(noise), math.nan)
    floor = max(finite[finite > 0].min() / 10, np.finfo(np.float64).tiny)
    level = np.log(np.maximum(noise, floor))
    ends = level[np.isfinite(level)]
    if ends[0] == ends[-1]:  # all below the smallest normal number
        return np.full(len(noise), math.nan)
    return np.asarray((level - ends[-1]) / (ends[0] - ends[-1]))


def _shortfall(slacks: Sequence[float | None]) -> Floats:
    """How far the target's figure is from the best one of the list, next to the worst one, which is
    at 1; NaN where it is not known, or all are alike."""
    known = np.array([math.nan if s is None else s for s in slacks], np.float64)
    found = known[np.isfinite(known)]
    if not found.size or found.max() == found.min():
        return np.full(len(known), math.nan)
    return np.asarray((found.max() - known) / (found.max() - found.min()))


def _knee(points: Sequence[Point], level: Floats) -> int | None:
    """`level`: the error of each, scaled to 0…1; NaN where it is not known."""
    finite = [i for i, x in enumerate(level) if math.isfinite(x)]
    if len(finite) < 3:
        return None
    cost = np.array([points[i].cost for i in finite])
    x = (cost - cost[0]) / (cost[-1] - cost[0])
    passed = np.array([points[i].passed for i in finite])
    below = np.where(passed | ~passed.any(), 1 - x - level[finite], -np.inf)
    at = int(np.argmax(below))
    return finite[at] if below[at] > 1e-9 else None


def check_select_point(wanted: str | None) -> None:
    """Refuse what cannot be a point of any list.

    Raises:
        UsageError: it is neither a number from 1 nor "knee".
    """
    name = option("select_point")
    if wanted not in (None, KNEE) and not re.fullmatch("0*[1-9][0-9]{0,8}", wanted):
        raise UsageError(
            f"{name}: '{wanted}' is not a point of the list of error against cost",
            f"Give its number in the list that the same command prints without {name}, or knee.",
            code="QD-USAGE-POINT",
        )


def selected_index(wanted: str, points: Sequence[Point]) -> int:
    """The index in `points` of the number (from 1) or "knee" that the user selected.

    Raises:
        UsageError: the list has no such point.
    """
    given = option("select_point", wanted)
    if not points:
        raise UsageError(
            f"{given}: the list of error against cost is empty",
            f"No candidate has a finite error at the outputs; leave {option('select_point')} out.",
            code="QD-USAGE-POINT",
        )
    numbers = f"Give a number from 1 to {len(points)}."
    if wanted == KNEE:
        knees = [i for i, point in enumerate(points) if point.knee]
        if not knees:
            which = (
                "point that meets the target is its knee" if any(p.passed for p in points) else ""
            )
            raise UsageError(
                f"{given}: of the {len(points)} points no {which or 'one is a knee'}",
                numbers,
                code="QD-USAGE-POINT",
            )
        return knees[0]
    if int(wanted) > len(points):
        raise UsageError(
            f"{given}: the list of error against cost has {len(points)} points",
            numbers,
            code="QD-USAGE-POINT",
        )
    return int(wanted) - 1
