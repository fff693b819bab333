"""What is offered where remedies alone do not give the metric back, and no target was given:
layers in higher precision, and fewer of them that are worth more."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from qdebug.decide.bisect.evaluation import open_verifier
from qdebug.decide.bisect.setup import Setup as BisectSetup
from qdebug.decide.bisect.target import AccuracyTarget
from qdebug.decide.remedies.result import Mixed, Offer, RepairResult
from qdebug.decide.repair.checkpoint import question_of
from qdebug.decide.repair.pins import prepared_search, searched
from qdebug.decide.repair.setup import Setup
from qdebug.decide.search.outcome import HELD_OUT, BisectResult, Check
from qdebug.decide.search.problem import Pins, pins_of
from qdebug.formats.registry import order_of
from qdebug.run.timelimit import OutOfTimeError
from qdebug.store.cache import load_result, save_result
from qdebug.types import Precision

_WANTED = 0.9
"""Of the metric's loss: what pins are offered to give back where the remedies do not."""
_MOST_SETS = 16
"""That are tried for an offer: the first halve it (see find), the rest look for a part of it."""
_LEAST_PART = 0.25
"""Of what the offer gives back: a set that gives back less is none to choose."""
_DEAR = 0.1
"""Of the network's cost: an offer that adds less needs none that is cheaper beside it."""
_MUCH_BETTER = 1.25
"""Times as much for its cost as the offer: what chance may make is not worth a sentence."""

_ROUNDING = 1e-12
"""Of a drop: less than a condition forgives (see AccuracyTarget.condition_for)."""
_KIND = "offers"


@dataclass(frozen=True)
class _Loss:
    """What the metric lost on the selection samples before the repair.

    Attributes:
        full, before, after: FP32's, that before the repair, and with the remedies.
        sign: 1 where higher is better, else -1.
    """

    full: float
    before: float
    after: float
    sign: int

    def back(self, value: float) -> float:
        """The part of the loss that a network of this metric gives back beyond the remedies."""
        return self.sign * (value - self.after) / abs(self.full - self.before)


def offered(setup: Setup, result: RepairResult, ends_at: float, *, cached: bool) -> Mixed | None:
    """Which layers in higher precision give back 90 % of what the metric lost on the selection
    samples, where the repair does not, and which fewer of them give back most for what they cost;
    None where it does, nothing tells, there is no time, or the held-out samples are no better with
    them. Where `cached`, they are kept for a later repair (see `offered_before`).

    Raises:
        QdebugError: a runtime or a metric that failed.
    """
    proof, judge = result.proof, setup.judge
    lost, error = proof.lost, proof.recovered_error
    if lost is None or proof.recovered is None or error is None or error >= 1:
        return None
    before, after, full = result.baseline.metric, result.repaired.metric, judge.reference_metric
    if before is None or after is None or full is None or proof.recovered >= _WANTED:
        return None
    allowed = (1 - _WANTED) * abs(full - before)
    target = AccuracyTarget(None, setup.metric, allowed, setup.higher_is_better)
    bound = target.condition_for(full).bound
    if (after >= bound) if setup.higher_is_better else (after <= bound):
        return None
    started = time.monotonic()
    try:
        prepared = prepared_search(setup, result.network, ends_at, target)
        found = searched(setup, prepared, ends_at, (), _MOST_SETS, started)
    except OutOfTimeError:
        return None
    check = found.verified_on if found.found else None
    offer = _offer(prepared, found.search.pins, check, result, allowed)
    if offer is None:
        return None
    loss = _Loss(full, before, after, 1 if setup.higher_is_better else -1)
    fewer = _worth_most(found, prepared, loss, offer)
    cheaper = None
    if fewer is not None:
        cheaper = _tried(prepared, result, fewer, loss, ends_at)
    sets = [offer.pins, *([cheaper.pins] if cheaper else [])]
    return Mixed(
        **vars(offer),
        candidates=found.candidates,
        saved_share=_saved_share(prepared, offer.pins),
        trade_off=cheaper,
        tried_first=_kept(question_of(setup) if cached else "", sets),
    )


def offered_before(setup: Setup, *, cached: bool) -> tuple[Pins, ...]:
    """The sets that a repair without a target offered in the same network, on the same samples, for
    the search of one with a target; none where nothing was kept."""
    key = question_of(replace(setup, target=None)) if cached else ""
    found = load_result(_KIND, key) if key else None
    try:
        sets = found["sets"] if found else []
        return tuple(frozenset((name, Precision(to)) for name, to in pins) for pins in sets)
    except (KeyError, TypeError, ValueError):  # damaged: nothing is lost but time
        return ()


def _kept(key: str, sets: Sequence[Pins]) -> bool:
    if key:
        save_result(_KIND, key, {"sets": [sorted(pins) for pins in sets]})
    return bool(key)


def _saved_share(setup: BisectSetup, pins: Pins) -> float:
    """What the network with `pins` saves, of what it costs with every layer raised as far as the
    furthest of these."""
    space = setup.space
    furthest = max((precision for _, precision in pins), key=order_of)
    raised = {
        item.name: furthest if furthest in item.costs else max(item.costs, key=order_of)
        for item in space.problem.items
    }
    return 1 - space.total(pins) / space.total(space.problem.always | pins_of(raised))


def rounded_up(allowed: float) -> float:
    """To two digits, away from zero: what meets `allowed` meets that, too. 0 where negative."""
    if allowed <= 0:
        return 0.0
    near = float(f"{allowed:.2g}")
    if near >= allowed * (1 - _ROUNDING):
        return near
    return float(f"{near + 10.0 ** (math.floor(math.log10(allowed)) - 1):.2g}")


def _offer(
    setup: BisectSetup, pins: Pins, check: Check | None, result: RepairResult, allowed: float
) -> Offer | None:
    """What a set gives, where held-out samples are better with it than with the remedies.

    Args:
        allowed: a largest drop or rise that it meets on the selection samples.
    """
    proof, space = result.proof, setup.space
    lost, left = proof.lost, proof.worse(check.answer.value) if check else None
    if check is None or check.answer.value is None or left is None or not lost:
        return None
    recovered = min(1.0, (lost - left) / lost)
    if proof.recovered is None or recovered <= proof.recovered:
        return None
    raised = dict(pins)
    return Offer(
        pinned=tuple(layer.name for layer in setup.pair.layers if layer.name in raised),
        to=" and ".join(sorted({precision.upper() for precision in raised.values()})),
        added_cost=space.total(pins) / space.total(frozenset()) - 1,
        samples=check.samples,
        metric=check.answer.value,
        recovered=recovered,
        used_in_search=check.used_in_search,
        allowed=rounded_up(max(allowed, left)),
        pins=pins,
    )


def _worth_most(
    found: BisectResult, prepared: BisectSetup, loss: _Loss, offer: Offer
) -> tuple[Pins, float] | None:
    """The set among those tried that gives back most for what it costs, and its metric; None where
    the offer does as well."""
    space = prepared.space
    base = space.total(frozenset())
    achieved = found.achieved
    if achieved is None or offer.added_cost < _DEAR:
        return None
    whole = loss.back(achieved)
    best, most = None, _MUCH_BETTER * whole / offer.added_cost
    for evaluation in found.history:
        value = evaluation.measurement.value
        if value is None or evaluation.measurement.held_out or not evaluation.pins:
            continue
        added, back = space.total(evaluation.pins) / base - 1, loss.back(value)
        if 0 < added < offer.added_cost and back >= _LEAST_PART * whole and back / added > most:
            best, most = (evaluation.pins, value), back / added
    return best


def _tried(
    prepared: BisectSetup,
    result: RepairResult,
    fewer: tuple[Pins, float],
    loss: _Loss,
    ends_at: float,
) -> Offer | None:
    """What fewer layers give back on the held-out samples; None where there is no time.

    A search may run candidates on INT8 kernels, whose values differ from the simulation's: what is
    allowed has to hold with both.
    """
    pins, value = fewer
    context = replace(prepared.context, ends_at=min(prepared.context.ends_at, ends_at))
    limited = replace(prepared, context=context)
    try:
        with open_verifier(limited, limited.searched, "searched samples") as verifier:
            simulated = verifier.check(pins).answer.value
        with open_verifier(limited, limited.held_out, HELD_OUT) as verifier:
            check = verifier.check(pins)
    except OutOfTimeError:
        return None
    if simulated is None:
        return None
    allowed = max(loss.sign * (loss.full - each) for each in (value, simulated))
    return _offer(prepared, pins, check, result, allowed)
