"""From a search to its answer: the layers with their evidence, the plan, why there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdebug.analyse.diagnose import diagnosed
from qdebug.decide.bisect.choices import Ratings, Space
from qdebug.decide.bisect.result import CostSummary, PinnedLayer
from qdebug.decide.search.find import Outcome, SearchResult
from qdebug.decide.search.problem import Measurement, Pins
from qdebug.formats.registry import order_of
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.results.attribution import KERNEL
from qdebug.results.compare import Cause
from qdebug.results.conditions import Condition, check_condition
from qdebug.results.words import score, share
from qdebug.types import Precision
from qdebug.wording import option

if TYPE_CHECKING:
    from qdebug.decide.bisect.steps import Setup

_LEAST_SAVED = 0.1
"""Of the cost. An engine pays for each change of precision, which the cost does not count: of an
encoder one small operator more took 13 % of the time (docs/validation/repair.md, `split`)."""


def plan_with(setup: Setup, pins: Pins) -> PrecisionPlan:
    """The plan with `pins`, in execution order."""
    plan = setup.planned.bound.plan
    chosen = dict(pins)
    raised = {x.name: chosen[x.name] for x in setup.pair.layers if x.name in chosen}
    return replace(plan, layers={**plan.layers, **raised})


def pinned_by_plan(setup: Setup) -> dict[str, Precision]:
    """Layers that the plan searched from keeps in higher precision, in execution order."""
    bound = setup.planned.bound
    bare = bind_plan(replace(bound.plan, layers={}), setup.model, bound.layers)
    kept = ((x.name, bound.precisions[x.name], bare.precisions[x.name]) for x in bound.layers)
    return {name: to for name, to, start in kept if order_of(to) > order_of(start)}


def cost_summary(space: Space, search: SearchResult) -> CostSummary:
    """What the answer costs, next to nothing and everything pinned."""
    ceiling = search.ceiling
    raised = dict(search.ceiling_pins) if ceiling is not None and ceiling.passed else {}
    return CostSummary(
        unit=space.costs.unit,
        base=space.total(frozenset()),
        plan=space.total(search.pins),
        all_pinned=space.total(space.everything()),
        all_pinned_to=space.problem.pin_to.precision or Precision.FP32,
        alternative=space.total(search.ceiling_pins) if raised else None,
        alternative_to=max(raised.values(), key=order_of, default=None),
    )


def hardly_worth(cost: CostSummary, precision: Precision) -> str:
    """That a lower precision saves next to nothing: the answer, or even the network with nothing
    pinned, costs nearly as much as with every layer in the precision with which the target holds.
    "" where it saves more, and where that is not known."""
    saved, whole = cost.saved_share, cost.alternative
    if saved is None or saved >= _LEAST_SAVED or not whole:
        return ""
    at_most = 1 - cost.base / whole
    low, high = precision.upper(), str(cost.alternative_to).upper()
    unit = "time by the profile" if cost.unit == "ms" else cost.unit
    saves = f"{share(saved)} of" if saved > 0 else "nothing of"
    bare = f" (with nothing pinned {share(at_most)})" if 0 < at_most < _LEAST_SAVED else ""
    return (
        f"{low} is hardly worth it here: with these pins it saves {saves} what every layer in "
        f"{high} costs{bare}, in {unit}, with which the target holds, too. An engine may lose more "
        f"than that where the precision changes. Take {high}, or time both."
    )


def pinned_layers(
    setup: Setup, space: Space, ratings: Ratings, search: SearchResult, *, explain: bool
) -> tuple[PinnedLayer, ...]:
    """The layers of the answer, each with what the set is without it, and where `explain` with why
    it is wrong; none where there is no answer."""
    if search.achieved is None:
        return ()
    known = {evaluation.pins: evaluation.measurement for evaluation in search.history}
    pins, chosen = search.pins, dict(search.pins)
    worst_first = [r for r in ratings.layers.values() if r.name in chosen] if explain else []
    samples, batches = setup.searched.samples, setup.searched.batches
    examined = worst_first and diagnosed(
        setup.context, setup.pair, samples, batches, worst_first, (), len(worst_first)
    )
    causes = {r.name: r.causes for r in examined}
    layers = []
    for layer in setup.pair.layers:
        if layer.name not in chosen:
            continue
        start, precision = setup.pair.precisions[layer.name], chosen[layer.name]
        own, without = ratings.layers.get(layer.name), known.get(pins - {(layer.name, precision)})
        layers.append(
            PinnedLayer(
                name=layer.name,
                op_type=layer.op_type,
                start=start,
                precision=precision,
                user_pinned=(layer.name, precision) in space.problem.always,
                local_sqnr_db=own.local_sqnr_db if own else None,
                causes=(*_kernel_causes(without), *causes.get(layer.name, ())),
                cost=space.costs.raising(layer.name, start, precision),
                if_unpinned=without,
            )
        )
    return tuple(layers)


def _kernel_causes(without: Measurement | None) -> tuple[Cause, ...]:
    """The cause `kernel` of a layer without which the simulation passes and the engine does not."""
    if without is None or not without.on_engine or without.passed:
        return ()
    gives = "no value" if without.value is None else f"{without.value:.6g}"
    evidence = (
        f"without it the simulation passes and the engine does not ({without.failure or gives})"
    )
    remedy = "The kernel causes the error, not the ranges: another calibration does not help."
    return (Cause(KERNEL, None, evidence, remedy),)


def explanation(
    search: SearchResult, condition: Condition, reference: float | None, samples: int
) -> str:
    """Why no set was found, for people; "" where one was.

    Args:
        reference: FP32's metric on the samples searched; None without one.
    """
    reason = f"{search.reason[:1].upper()}{search.reason[1:]}." if search.reason else ""
    ceiling = search.ceiling
    if search.achieved is not None:
        return "" if search.outcome is Outcome.NOTHING_NEEDED else reason
    if condition.scope == "metric" and not check_condition(condition, [reference]).passed:
        assert reference is not None
        return (
            f"FP32 itself is at {score(reference)} on the {samples} samples searched: no precision "
            f"can give {condition.words} there. Relax the target."
        )
    if ceiling is None or ceiling.passed or ceiling.failure:
        return reason
    shown = "no value" if ceiling.value is None else f"{ceiling.value:.6g}"
    return (
        f"Even with everything pinned that may be pinned, it is {shown}. Allow more "
        f"({option('never_pin')}, {option('pin_to', 'fp32')}), or relax the target."
    )
