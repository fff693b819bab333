"""What must be pinned where remedies do not suffice; never more than pinning alone would take."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from qdebug.decide.bisect.result import BisectResult
from qdebug.decide.bisect.steps import Setup as BisectSetup
from qdebug.decide.bisect.steps import search_from
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.result import DroppedPins, Step
from qdebug.decide.repair.setup import Setup
from qdebug.decide.search.find import Outcome
from qdebug.decide.search.problem import Pins
from qdebug.execute.model_pair import CalibratedPlan
from qdebug.results.words import share
from qdebug.run.timelimit import OutOfTimeError, check_time
from qdebug.wording import counted


class Fewest(NamedTuple):
    """The network that reaches the target with the cheaper pins, and the search that found them.

    Attributes:
        dropped: the search on the repaired network, where the one without remedies was taken and
            there was time for both.
        no_use: the remedies change layers only that are pinned.
    """

    network: Quantized
    found: BisectResult
    dropped: BisectResult | None = None
    no_use: bool = False


def fewest_pins(
    setup: Setup,
    network: Quantized,
    ends_at: float,
    steps: Sequence[Step] = (),
) -> Fewest | None:
    """The repaired network or the one before the repair, whichever reaches the target with the
    cheaper pins; None where there is no time to search.

    Remedies lower the noise of the outputs, but not that of every set of pinned layers, and the
    metric may depend on some of the noise only. Both are searched on the same samples; what
    suffices without remedies is tried with them, and only cheaper sets can take its place.

    Args:
        network: the repaired one, by `steps`.
        ends_at: on the clock of `time.monotonic`.

    Raises:
        QdebugError: a runtime or a metric that failed.
    """
    now = time.monotonic()
    repaired = network is not setup.start
    alone = _searched(setup, setup.start, now + (ends_at - now) / 2 if repaired else ends_at)
    if alone is None or not repaired:
        return Fewest(setup.start, alone) if alone else None
    found = _searched(setup, network, ends_at, [alone.search.pins] if alone.found else [])
    if found is None:  # then only what pins alone reach is better than the repaired network
        return Fewest(setup.start, alone) if alone.passed else None
    kept = [step for step in steps if step.accepted]
    no_use = bool(kept) and all(of_no_use(step, found.pinned) for step in kept)
    if _rank(alone) < _rank(found) or (no_use and _rank(alone) == _rank(found)):
        return Fewest(setup.start, alone, dropped=found, no_use=no_use)
    return Fewest(network, found)


def of_no_use(step: Step, pinned: Collection[str]) -> bool:
    """Whether all layers that a step changes are pinned."""
    return set(step.layers) <= set(pinned)


def dropped_pins(dropped: BisectResult) -> DroppedPins:
    """What the search on the repaired network found, for the result."""
    check = dropped.verified_on
    return DroppedPins(
        pinned=dropped.pinned,
        pinned_share=dropped.cost.pinned_share if dropped.found else None,
        achieved=dropped.achieved,
        held_out=check.answer.value if check else None,
        passed=dropped.passed,
        explanation=dropped.explanation,
    )


def why_dropped(fewest: Fewest) -> str:
    """A note: what had to be pinned with the remedies, and what without."""
    dropped, taken = fewest.dropped, fewest.found
    if dropped is None:
        return (
            "The remedies were dropped: the time limit left no time to search for layers to pin "
            f"with them. Without: {_told(taken)}."
        )
    if fewest.no_use:
        why = "all layers that they change would be pinned"
    elif dropped.passed or not taken.passed:
        why = "pins alone are cheaper"
    elif dropped.search.outcome is Outcome.UNFINISHED:
        why = "only without them a set of layers was found in time that reaches the target"
    else:
        why = "only without them pins reach the target"
    parts = f"The remedies were dropped: {why}", f"With them: {_told(dropped)}"
    return ". ".join((*parts, f"Without: {_told(taken)}")) + "."


def _told(found: BisectResult) -> str:
    if found.found:
        cost = share(found.cost.pinned_share)
        text = f"{counted(found.layers, 'layer')} pinned, {cost} of the cost of pinning all"
        return text if found.passed else f"{text}, which does not suffice on held-out samples"
    if found.search.outcome is Outcome.IMPOSSIBLE:
        return "the target does not hold even with everything pinned that may be pinned"
    tried = counted(len(found.history), "set")
    return f"the search ended early, after {tried} of layers, of which none reaches the target"


def _rank(found: BisectResult) -> tuple[bool, bool, float]:
    return not found.passed, not found.found, found.search.cost


def _searched(
    setup: Setup, network: Quantized, ends_at: float, first: Sequence[Pins] = ()
) -> BisectResult | None:
    """What bisect's search finds; `first` are sets that it tries before. None where the time is
    over before it begins."""
    assert setup.target is not None
    started = time.monotonic()
    left = ends_at - started
    prepared = BisectSetup(
        context=setup.context,
        target=setup.target,
        model=network.model,
        planned=CalibratedPlan(network.bound, None, ()),
        searched=setup.choosing,
        held_out=setup.proving,
    )
    settings = replace(setup.search, time_limit=left if math.isfinite(left) else None)
    ratings = setup.ratings.found if network is setup.start else None
    try:
        check_time(ends_at)
        return search_from(settings, prepared, started, ratings=ratings, first=first)
    except OutOfTimeError:
        return None
