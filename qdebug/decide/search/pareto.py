"""What a search evaluated, as a trade of error against cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qdebug.decide.search.problem import Measurement, Pinned
from qdebug.errors import UsageError
from qdebug.result import Hidden, in_json
from qdebug.wording import counted, option

KNEE = "knee"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Point(Pinned):
    """A candidate that no other beats in both cost and noise.

    Attributes:
        point: its place in the list, from 1; 0 of a set that is not in it.
        cost: of its pins, without those that are always there.
        noise: Σerr²/Σref² at the outputs.
        knee: it is the knee of the list.
    """

    point: int
    cost: float
    noise: float
    measurement: Hidden[Measurement]
    knee: bool = False

    @property
    @in_json
    def value(self) -> float | None:
        """The target's figure."""
        return self.measurement.value

    @property
    @in_json
    def passed(self) -> bool:
        """The target holds."""
        return self.measurement.passed

    @property
    @in_json
    def held_out(self) -> bool:
        """See Measurement."""
        return self.measurement.held_out


def pareto(points: Iterable[Point], *, by_value: bool = False) -> tuple[Point, ...]:
    """Those that none beats, the cheapest first.

    The knee is the point farthest below the straight line from the first point to the last, with
    the cost and the logarithm of the noise scaled to 0…1 (Satopää et al., Finding a "Kneedle" in a
    Haystack, 2011). It is a point that meets the target; only where none of them does, it may be
    any. There is none where there are fewer than three points or none of these is below the line.

    Args:
        by_value: the target's figure takes the place of the noise for the knee: that of a metric,
            which less noise need not make better.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.cost, p.noise, len(p.pins), sorted(p.pins))):
        if not best or point.noise < best[-1].noise:
            best.append(point)
    knee = _knee(best, _shortfall(best) if by_value else _noise_levels(best))
    return tuple(replace(p, point=i + 1, knee=i == knee) for i, p in enumerate(best))


def _noise_levels(points: Sequence[Point]) -> Floats:
    """The logarithm of the noise, scaled so that the largest is at 1 and the smallest at 0; NaN
    where it is infinite, or all are alike."""
    noise = np.array([p.noise if math.isfinite(p.noise) else math.nan for p in points])
    if not np.any(noise > 0):
        return np.full(len(points), math.nan)
    floor = max(noise[noise > 0].min() / 10, np.finfo(np.float64).tiny)
    return _scaled(np.log(np.maximum(noise, floor)))


def _shortfall(points: Sequence[Point]) -> Floats:
    """How far the target's figure is from the best one of the list, next to the worst one, which is
    at 1; NaN where it is not known, or all are alike."""
    slacks = (p.measurement.slack for p in points)
    return _scaled(-np.array([math.nan if s is None else s for s in slacks], np.float64))


def _scaled(values: Floats) -> Floats:
    values = np.where(np.isfinite(values), values, math.nan)
    known = values[np.isfinite(values)]
    if not known.size or known.max() == known.min():
        return np.full(len(values), math.nan)
    return np.asarray((values - known.min()) / (known.max() - known.min()))


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
    knee = next((i for i, point in enumerate(points) if point.knee), len(points))
    at = knee if wanted == KNEE else int(wanted) - 1
    if at < len(points):
        return at
    none = ", of which none is the knee" if wanted == KNEE and points else ""
    raise UsageError(
        f"{option('select_point', wanted)}: the list of error against cost has "
        f"{counted(points, 'point')}{none}",
        f"Give a number from 1 to {len(points)}."
        if points
        else f"No set has a finite error at the outputs: leave {option('select_point')} out.",
        code="QD-USAGE-POINT",
    )
