"""What a search evaluated, as a trade of error against cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qdebug.decide.search.oracle import Evaluation
from qdebug.decide.search.problem import Pinned, SearchProblem
from qdebug.errors import UsageError
from qdebug.wording import option

KNEE = "knee"


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


def pareto(problem: SearchProblem, history: Iterable[Evaluation]) -> tuple[Point, ...]:
    """The candidates that none beats, the cheapest first; those without noise are left out.

    The knee is the point farthest below the straight line from the first point to the last, with
    the cost and the logarithm of the noise scaled to 0…1 (Satopää et al., Finding a "Kneedle" in a
    Haystack, 2011). It is a point that meets the target; only where none of them does, it may be
    any. There is none where there are fewer than three points or none of these is below the line.
    """
    points = [
        Point(
            e.pins,
            problem.cost(e.pins),
            e.measurement.noise,
            e.measurement.value,
            e.measurement.passed,
            held_out=e.measurement.held_out,
        )
        for e in history
        if e.measurement.noise is not None and not math.isnan(e.measurement.noise)
    ]
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, p.noise, len(p.pins), sorted(p.pins))):
        if not best or point.noise < best[-1].noise:
            best.append(point)
    knee = _knee(best)
    return tuple(replace(point, knee=i == knee) for i, point in enumerate(best))


def _knee(points: Sequence[Point]) -> int | None:
    finite = [i for i, p in enumerate(points) if math.isfinite(p.noise)]
    if len(finite) < 3:
        return None
    cost = np.array([points[i].cost for i in finite])
    noise = np.array([points[i].noise for i in finite])
    floor = max(noise[noise > 0].min() / 10, np.finfo(np.float64).tiny)
    level = np.log(np.maximum(noise, floor))
    x = (cost - cost[0]) / (cost[-1] - cost[0])
    y = (level - level[-1]) / (level[0] - level[-1])
    passed = np.array([points[i].passed for i in finite])
    below = np.where(passed | ~passed.any(), 1 - x - y, -np.inf)
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
