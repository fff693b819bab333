"""From a search to its answer: the layers with their evidence, the plan, why there is none."""

from __future__ import annotations

from dataclasses import replace

from qdebug.analyse.diagnose import diagnosed
from qdebug.decide.bisect.setup import Setup
from qdebug.decide.search.find import Outcome, SearchResult
from qdebug.decide.search.outcome import CostSummary, PinnedBlock, PinnedLayer, saves_little
from qdebug.decide.search.problem import Pins
from qdebug.formats.registry import order_of
from qdebug.plan.pair import planned_pair
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.results.compare import LayerResult
from qdebug.results.conditions import Condition, check_condition
from qdebug.results.words import score, share
from qdebug.types import Precision
from qdebug.wording import counted, option


def plan_with(setup: Setup, pins: Pins) -> PrecisionPlan:
    """The base plan with `pins`, in execution order."""
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


def cost_summary(setup: Setup, search: SearchResult) -> CostSummary:
    """What the answer costs, next to nothing and everything pinned."""
    space, ceiling = setup.space, search.ceiling
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
    saved, at_most = cost.saved_share, cost.saved_by(cost.base)
    if saved is None or at_most is None or not cost.hardly_worth:
        return ""
    low, high = precision.upper(), str(cost.alternative_to).upper()
    unit = "time by the profile" if cost.unit == "ms" else cost.unit
    saves = f"{share(saved)} of" if saved > 0 else "nothing of"
    bare = (
        f" (with nothing pinned {share(at_most)})" if at_most > 0 and saves_little(at_most) else ""
    )
    return (
        f"{low} is hardly worth it here: with these pins it saves {saves} what every layer in "
        f"{high} costs{bare}, in {unit}, with which the target holds, too. An engine may lose more "
        f"than that where the precision changes. Take {high}, or time both."
    )


def pinned_layers(setup: Setup, search: SearchResult, *, explain: bool) -> tuple[PinnedLayer, ...]:
    """The layers of the answer, each with what the set is without it, and where `explain` with why
    it is wrong."""
    known = {evaluation.pins: evaluation.measurement for evaluation in search.history}
    pins, chosen = search.pins, dict(search.pins)
    causes = {r.name: r.causes for r in _explained(setup, chosen)} if explain else {}
    layers = []
    for layer in setup.pair.layers:
        if layer.name not in chosen:
            continue
        start, precision = setup.pair.precisions[layer.name], chosen[layer.name]
        rated = setup.rated.get(layer.name)
        layers.append(
            PinnedLayer(
                name=layer.name,
                op_type=layer.op_type,
                start=start,
                precision=precision,
                user_pinned=(layer.name, precision) in setup.space.problem.always,
                local_sqnr_db=rated.local_sqnr_db if rated else None,
                causes=causes.get(layer.name, ()),
                cost=setup.space.costs.raising(layer.name, start, precision),
                if_unpinned=known.get(pins - {(layer.name, precision)}),
            )
        )
    return tuple(layers)


def pinned_blocks(setup: Setup, pins: Pins) -> tuple[PinnedBlock, ...]:
    """The blocks that layers of the answer are part of, in execution order."""
    chosen, items = dict(pins), setup.space.problem.items
    members: dict[str, list[str]] = {}
    for item in items:
        members.setdefault(item.block, []).append(item.name)
    found = (
        PinnedBlock(block, tuple(n for n in names if n in chosen), len(names))
        for block, names in members.items()
        if block
    )
    return tuple(block for block in found if block.pinned)


def _explained(setup: Setup, chosen: dict[str, Precision]) -> tuple[LayerResult, ...]:
    worst_first = [r for r in setup.rated.values() if r.name in chosen]
    subset = setup.searched
    return diagnosed(
        setup.context,
        setup.pair,
        subset.samples,
        subset.batches,
        worst_first,
        (),
        len(worst_first),
    )


def explanation(
    setup: Setup, search: SearchResult, condition: Condition, reference: float | None
) -> str:
    """Why no set was found, for people; "" where one was."""
    if search.achieved is not None:
        return "" if search.outcome is Outcome.NOTHING_NEEDED else _sentence(search.reason)
    if condition.scope == "metric" and not check_condition(condition, [reference]).passed:
        return (
            f"FP32 itself is at {score(reference)} on the {setup.searched.count} samples searched: "
            f"no precision can give {condition.words} there. Relax the target."
        )
    ceiling = search.ceiling
    if ceiling is None or ceiling.passed:
        return _sentence(search.reason)
    if ceiling.failure:
        return f"With everything pinned the model cannot be run: {ceiling.failure}"
    shown = "no value" if ceiling.value is None else f"{ceiling.value:.6g}"
    return f"Even with everything pinned that may be pinned, it is {shown}: {_left(setup)}"


def _left(setup: Setup) -> str:
    """What still runs in lower precision when everything is pinned, and what to do about it."""
    plan = plan_with(setup, setup.space.everything())
    bound = bind_plan(plan, setup.model, setup.pair.layers)
    built = planned_pair(setup.model, bound).precisions
    left = [name for name, precision in built.items() if precision is not Precision.FP32]
    if not left:
        return "all layers run in FP32 then, so the target asks for more than FP32 gives."
    kinds = " and ".join(sorted({str(built[name]) for name in left}))
    still = f"{counted(left, 'layer')} still in {kinds}, first '{left[0]}'."
    if all(bound.precisions[name] is Precision.FP32 for name in left):
        return f"{still} The model itself has them in that precision. Give the model in FP32."
    advice = []
    if setup.space.never_pinned:
        advice.append(f"drop {option('never_pin')}")
    if setup.space.problem.pin_to.precision not in (None, Precision.FP32):
        advice.append(f"use {option('pin_to', 'fp32')}")
    if plan.fallback_precision is not Precision.FP32:
        advice.append(f"use {option('fallback_precision', 'fp32')}")
    joined = " or ".join(advice)
    return f"{still} {joined[0].upper()}{joined[1:]}." if joined else still


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
