"""Another point of the list of error against cost, in place of the answer of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from qdebug.errors import UsageError
from qdebug.pipeline.bisect.candidates import Engines
from qdebug.pipeline.bisect.rounds import Answered
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.verify import ON_ENGINE, SEARCHED, Verifier
from qdebug.search.find import is_minimal
from qdebug.search.outcome import HELD_OUT, Check, SelectedPoint
from qdebug.search.pareto import Point
from qdebug.search.problem import Measurement, Pins
from qdebug.wording import option

KNEE = "knee"


def check_select_point(wanted: str | None) -> None:
    """Refuse what can be no point of any list.

    Raises:
        UsageError: it is neither a number from 1 nor "knee".
    """
    name = option("select_point")
    if wanted not in (None, KNEE) and not (wanted.isascii() and wanted.isdigit() and int(wanted)):
        raise UsageError(
            f"{name}: '{wanted}' is not a point of the list of error against cost",
            f"Give its number in the list that the same command prints without {name}, or knee.",
            code="QD-USAGE-POINT",
        )


def with_selected_point(setup: Setup, answer: Answered, engines: Engines | None) -> Answered:
    """`answer` with the selected point, checked as an answer is; unchanged where none is selected.

    Raises:
        UsageError: the list has no such point.
    """
    wanted = setup.settings.select_point
    if wanted is None:
        return answer
    search = answer.searched.result
    index = _index(wanted, search.pareto)
    pins = search.pareto[index].pins
    known: dict[Pins, Measurement] = {e.pins: e.measurement for e in search.history}
    result = replace(
        search,
        pins=pins,
        achieved=known[pins],
        minimal=known[pins].passed and is_minimal(setup.space.problem, pins, known.get),
        cost=setup.space.problem.cost(pins),
    )
    own = search.achieved is not None and pins == search.pins
    return replace(
        answer,
        searched=replace(answer.searched, result=result),
        checks=answer.checks if own else tuple(_checks(setup, answer, pins, engines)),
        taken=SelectedPoint(index + 1, search),
    )


def _index(wanted: str, points: Sequence[Point]) -> int:
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
            raise UsageError(
                f"{given}: the list of {len(points)} points has no knee",
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


def _checks(setup: Setup, answer: Answered, pins: Pins, engines: Engines | None) -> Iterator[Check]:
    """`pins` once more, as the answer of a search: on the samples searched, and held out."""
    if engines is not None:
        with Verifier(setup, setup.searched, ON_ENGINE, engines) as verifier:
            yield verifier.check(pins)
    elif not answer.searched.literal:
        with Verifier(setup, setup.searched, SEARCHED) as verifier:
            yield verifier.check(pins)
    used = any(check.used_in_search for check in answer.checks)
    with Verifier(setup, setup.held_out, HELD_OUT, engines) as verifier:
        yield replace(verifier.check(pins), used_in_search=used)
