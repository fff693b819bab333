"""From a search to its answer: the layers with their evidence, the plan, why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qdebug.measure.conditions import Condition, check_condition
from qdebug.measure.result import LayerResult
from qdebug.pipeline.bisect.setup import Setup
from qdebug.pipeline.bisect.space import ORDER
from qdebug.pipeline.compare.diagnose import diagnosed
from qdebug.plan.plan import PrecisionPlan, bind_plan
from qdebug.search.find import Outcome, SearchResult
from qdebug.search.outcome import CostSummary, PinnedLayer
from qdebug.search.problem import Pins
from qdebug.types import Precision


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
    return {name: to for name, to, start in kept if ORDER.index(to) > ORDER.index(start)}


def cost_summary(setup: Setup, pins: Pins) -> CostSummary:
    """What `pins` cost beside nothing and everything pinned."""
    space = setup.space
    return CostSummary(
        unit=space.costs.unit,
        base=space.total(frozenset()),
        plan=space.total(pins),
        all_pinned=space.total(space.everything()),
        all_pinned_to=Precision.FP16 if space.problem.pin_to == "fp16" else Precision.FP32,
    )


def pinned_layers(setup: Setup, search: SearchResult) -> tuple[PinnedLayer, ...]:
    """The layers of the answer, each with why it is wrong and what the set is without it."""
    known = {evaluation.pins: evaluation.measurement for evaluation in search.history}
    pins, chosen = search.pins, dict(search.pins)
    causes = {r.name: r.causes for r in _explained(setup, chosen)}
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
            f"The FP32 reference itself is at {reference:.6g}: no precision can meet "
            f"{condition.expression}. Ask for less."
        )
    ceiling = search.ceiling
    if ceiling is None or ceiling.passed:
        return _sentence(search.reason)
    if ceiling.failure:
        return f"With everything pinned the model cannot be run: {ceiling.failure}"
    return f"Even with everything pinned that may be, it is {_value(ceiling.value)}: " + _left(
        setup, setup.space.everything()
    )


def _left(setup: Setup, everything: Pins) -> str:
    """What still runs in lower precision when everything is pinned."""
    highest = {**setup.pair.precisions, **dict(everything)}
    left = [name for name, precision in highest.items() if precision is not Precision.FP32]
    if not left:
        return "all layers run in FP32 then, so the target asks for more than FP32 gives."
    kinds = sorted({str(highest[name]) for name in left})
    flags: Sequence[str] = (
        *(["drop --never-pin"] if setup.settings.never_pin else []),
        *(["use --pin-to fp32"] if setup.space.problem.pin_to == "fp16" else []),
        *(
            ["use --fallback-precision fp32"]
            if setup.planned.bound.plan.fallback_precision is not Precision.FP32
            else []
        ),
    )
    advice = f" {' or '.join(flags)[0].upper()}{' or '.join(flags)[1:]}." if flags else ""
    return f"{len(left)} layers still run in {' and '.join(kinds)}, first '{left[0]}'.{advice}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _value(value: float | None) -> str:
    return "no value" if value is None else f"{value:.6g}"
