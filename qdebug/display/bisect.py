"""What a person sees of a search for the cheapest precision plan, and that plan with its
evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from qdebug.decide.bisect.result import BisectResult, Check, PinnedLayer, SelectedPoint
from qdebug.decide.search.find import Outcome
from qdebug.decide.search.pareto import Point
from qdebug.decide.search.problem import Measurement
from qdebug.display.blocks import Block, Checks, Column, Facts, Line, notes, table_of
from qdebug.display.engine import doubt, engine_blocks
from qdebug.display.names import shorten
from qdebug.formats.registry import RANGED
from qdebug.metrics.tensor import METRIC
from qdebug.plan.planfile import plan_to_yaml
from qdebug.results.conditions import Condition
from qdebug.results.words import (
    FP16_KERNELS,
    apart,
    decibel,
    first_names,
    in_decibels,
    interval,
    number,
    score,
    share,
    telling_decimals,
)
from qdebug.wording import counted, option, printable

_MOST_ENGINE_ROWS = 8
_MOST_NAMED = 3
_KNEE = "best trade-off"
_STALE = "stale-calibration"
_LONGEST_FIGURE = 16
_MOST_POINTS = 12
_LISTED_IF_ALL = 12
"""Where more layers than that are pinned, and these are all, a sentence says it."""
_DECIMALS = {"dB": 1, "ratio": 4}
"""Of metrics of outputs, by their unit; others have digits in proportion to their size."""


def view(result: BisectResult) -> list[Block]:
    """The target, what was found and what it costs, with the evidence; the verdict last."""
    blocks: list[Block] = [Line(_title(result), "title"), *suspects(result)]
    blocks.append(Facts(tuple(_rows(result))))
    if result.pins_everything and len(result.layers) > _LISTED_IF_ALL:
        every = f"Every layer that may be pinned is: {len(result.layers)}, to {result.raised_to}."
        blocks += [Line(), Line(every, "title"), *_before_pinning(result), *_reasons(result)]
    elif result.layers:
        beside = ", besides those of the plan" if result.pinned_by_plan else ""
        heading = Line(f"Layers to keep in higher precision{beside}", "title")
        blocks += [Line(), heading, _layers(result)]
        blocks += [*_before_pinning(result), *_reasons(result)]
    if len(result.search.pareto) > 1:
        blocks += [Line(), *_points(result)]
    blocks.append(Line())
    if result.engine is not None:
        blocks += engine_blocks(result.engine, _MOST_ENGINE_ROWS)
    blocks += notes(n for n in result.notes if n != result.suspect)
    checks = ((c.answer.passed, checked_line(result, c, _base(result))) for c in result.checks)
    blocks.append(Checks(tuple(checks)))
    if weak := proves_nothing(result, _base(result)):
        blocks.append(Line(weak, "note"))
    if result.explanation:
        blocks.append(Line(printable(result.explanation), "note"))
    blocks.append(Line(_verdict(result), "good" if result.passed else "bad"))
    return blocks


def _measured(result: BisectResult, measurement: Measurement | None) -> str:
    """The value, and whether the target holds with it."""
    if measurement is None:
        return "not evaluated"
    if measurement.failure:
        return f"cannot be run: {printable(measurement.failure)}"
    return _verdict_on(result, measurement) + _decided_by(measurement)


def _decided_by(measurement: Measurement) -> str:
    """The group of samples that decides the figure; "" without groups."""
    group = measurement.worst_group
    return f" (by '{printable(group)}', the worst group)" if group else ""


def _verdict_on(result: BisectResult, measured: Measurement | Point) -> str:
    """The value, and whether the target holds; where other samples than all the others decided,
    it says so, because a largest drop sets another bound there."""
    where = _where(measured)
    return f"{value_of(result, measured.value)} {'holds' if measured.passed else 'FAILS'}{where}"


def _where(measured: Measurement | Point) -> str:
    """What decided, where that is not the simulation on the samples searched."""
    if isinstance(measured, Measurement) and measured.on_engine:
        return " (on the engine)"
    return " (held out)" if measured.held_out else ""


def value_of(result: BisectResult, value: float | None, condition: Condition | None = None) -> str:
    """The target's figure, with so many digits that no value which fails looks like one that meets
    the target; `condition` is that of other samples."""
    if value is None:
        return "no value"
    if not math.isfinite(value):
        return number(value)
    condition = condition or result.condition
    seen = [value, *(e.measurement.value for e in result.history if not e.measurement.held_out)]
    unit = METRIC[condition.name].unit if condition.name in METRIC else ""
    least = 4 if condition.scope == "metric" else _DECIMALS.get(unit)
    if least is None:
        return number(value, 6)
    return score(value, telling_decimals(seen, condition, least))


def _layers(result: BisectResult) -> Block:
    """The pinned layers, each with its evidence."""
    pin = option("pin")
    return table_of(
        result.layers,
        [
            (Column("layer", "name"), lambda x: x.name),
            (Column("op", "op"), lambda x: x.op_type),
            (Column("to"), lambda x: str(x.precision)),
            (Column("own dB", "number", drop=1), lambda x: decibel(x.local_sqnr_db)),
            (Column(f"{_figure_name(result)} without", "number"), _if_unpinned(result)),
            (Column("cost", "number"), lambda x: share(result.cost.way_share(x.cost))),
            (Column("cause"), lambda x: pin if x.user_pinned else _label(x)),
        ],
    )


def _figure_name(result: BisectResult) -> str:
    """Of the target, to stand over a column."""
    return shorten(printable(result.figure), _LONGEST_FIGURE)


def _if_unpinned(result: BisectResult) -> Callable[[PinnedLayer], str]:
    def text(layer: PinnedLayer) -> str:
        found = layer.if_unpinned
        if found is None:
            return "–"
        if found.failure or found.value is None:
            return "cannot run"
        where = _where(found)
        return f"{value_of(result, found.value)}{' holds' if found.passed else ''}{where}"

    return text


def _label(layer: PinnedLayer) -> str:
    return layer.causes[0].label if layer.causes else "–"


def _before_pinning(result: BisectResult) -> Iterator[Line]:
    """What costs no speed, and is to be tried before a layer is given up."""
    if len(result.layers) > result.user_pinned and result.precision in RANGED:
        yield Line(
            "Before pinning, try qdebug calibrate (other ranges) and qdebug repair (remedies that "
            "cost little or no speed): fewer layers may need pinning then, or none.",
            "note",
            2,
        )


def suspects(result: BisectResult) -> Iterator[Block]:
    """What to check before any layer is pinned: the samples, and whether the ranges are theirs."""
    if result.suspect:
        yield from notes([result.suspect])
    causes = (c for layer in result.layers for c in layer.causes if c.label == _STALE)
    if (cause := next(causes, None)) is not None:
        text = f"First suspect ({_STALE}): {printable(cause.evidence)}. {cause.remedy}"
        yield Line(text, "note")


def _reasons(result: BisectResult) -> Iterator[Line]:
    """What to do instead of pinning: each remedy once, with the layer that shows it best."""
    said = {_STALE}
    for layer in result.layers:
        for cause in layer.causes[:1]:
            if cause.label not in said:
                alone = sum(_label(x) == cause.label for x in result.layers) == 1
                where = "" if alone else f", for example in {printable(layer.name)}"
                text = f"{cause.label}{where}: {printable(cause.evidence)}. {cause.remedy}"
                yield Line(text, indent=2)
            said.add(cause.label)


def _points(result: BisectResult) -> Iterator[Block]:
    """Error against cost: some of the points, the answer, and how to select another one."""
    points = result.search.pareto
    step = max(1, -(-len(points) // _MOST_POINTS))
    shown = [
        (point, marks)
        for point in _with_answer(result)
        if (marks := _marks(result, point)) or point.point % step == 1 % step
    ]
    some_of = f": {len(shown)} of {len(points)} points" if len(shown) < len(points) else ""
    yield Line(f"Error against cost{some_of}", "title")
    yield table_of(
        shown,
        [
            (Column("point", "number"), lambda x: str(x[0].point or "–")),
            (
                Column("added" if result.pinned_by_plan else "pinned", "number"),
                lambda x: str(len(x[0].pins)),
            ),
            (Column("cost", "number"), lambda x: share(result.cost.way_share(x[0].cost))),
            (Column("outputs dB", "number"), lambda x: decibel(_noise_db(x[0]))),
            (Column(_figure_name(result), "number"), lambda x: _verdict_on(result, x[0])),
            (Column(""), lambda x: x[1]),
        ],
        lambda x: "strong" if x[1] else "",
    )
    to = result.cost.all_pinned_to
    yield Line(
        f"cost: with every layer pinned to {to} it is 100%. outputs dB: SQNR, the mean over the "
        "outputs.",
        indent=2,
    )
    if result.condition.name:
        scope = result.condition.scope
        yield Line(f"{result.figure}: of the worst {scope}, as in the target.", indent=2)
    if any(point.held_out for point, _ in shown):
        text = "(held out): the held-out samples decided; the other values are of those searched."
        yield Line(text, indent=2)
    selecting = option("select_point", "N")
    if any(point.knee for point, _ in shown):
        what = _figure_name(result) if result.condition.scope == "metric" else "accuracy"
        text = f"from here on, more pinning buys little {what} for its cost."
        yield Line(f"{_KNEE}: {text}", indent=2)
        selecting += f" or {option('select_point', 'knee')} (the {_KNEE})"
    yield Line(f"The same command with {selecting} takes another point.", indent=2)


def _marks(result: BisectResult, point: Point) -> str:
    selected = result.selected_point
    own = selected.search if selected else result.search
    marks = ["the answer"] if point.pins == own.pins and own.achieved is not None else []
    marks += [_KNEE] if point.knee else []
    marks += ["selected"] if selected and selected.point == point.point else []
    return ", ".join(marks)


def _noise_db(point: Point) -> float:
    return math.inf if point.noise == 0 else -10 * math.log10(point.noise)


def _with_answer(result: BisectResult) -> list[Point]:
    """The list, and the answer, numbered 0, even where another set beats it."""
    points = list(result.search.pareto)
    search, achieved = result.search, result.search.achieved
    if achieved is None or achieved.noise is None or search.pins in [p.pins for p in points]:
        return points
    answer = Point(search.pins, 0, search.cost, achieved.noise, achieved)
    return sorted([*points, answer], key=lambda point: point.cost)


def plan_text(result: BisectResult) -> str:
    """precision.yaml: the plan, with the evidence as comments."""
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    for check in result.checks:
        verdict = "holds" if check.answer.passed else "FAILS"
        header.append(f"{verdict}: {checked_line(result, check, _base(result))}")
    header.append(_verdict(result))
    why = dict.fromkeys(result.pinned_by_plan, "by the plan that was searched from")
    why |= {layer.name: _why(result, layer) for layer in result.layers}
    return plan_to_yaml(result.plan, result.model.path, header=header, why=why)


def _title(result: BisectResult) -> str:
    name = printable(result.model.name)
    return f"{name}: which layers must not run in {str(result.precision).upper()}"


def _rows(result: BisectResult) -> Iterator[tuple[str, str]]:
    yield from _asked(result)
    search = result.search
    better = _beside_fp32(result, result.baseline, result.reference_metric, result.samples)
    yield _base(result), _measured(result, search.baseline) + better
    if search.ceiling is not None:
        to = " and ".join(sorted({str(precision) for _, precision in search.ceiling_pins}))
        at = f" to {to}" if to else ""
        yield f"everything pinned{at}", _measured(result, search.ceiling)
    if result.selected_point is not None:
        yield "search's answer", _own_answer(result, result.selected_point)
    if result.found:
        count = len(result.layers)
        by_user = result.user_pinned
        text = f"{_measured(result, search.achieved)} with {count} of {result.candidates + by_user}"
        text += f" layers {'added' if result.pinned_by_plan else 'pinned'}"
        text += f", {by_user} of them by {option('pin')}" if by_user else ""
        if result.selected_point is not None:
            yield "selected point", f"{text}: {_point(result.selected_point)}"
        else:
            yield "found", text
        if count:
            yield "cost", _cost(result)
    yield from _metric_rows(result)
    yield "evaluated", _evaluations(result)
    if result.fp16_kernels is not None:
        yield "FP16 layers", FP16_KERNELS[result.fp16_kernels]


def _asked(result: BisectResult) -> Iterator[tuple[str, str]]:
    """The target, and what it is searched for on and from."""
    yield "target", result.target_text
    kept = f", {result.held_out_samples} held out to check the answer"
    yield "samples", f"{result.samples} to search on{kept}"
    if result.framework is not None:
        worst = in_decibels(result.framework.worst.sqnr_db)
        how = "agrees" if result.framework.agrees else "cannot be told to agree"
        yield "export", f"{how} with {printable(result.framework.data)}, SQNR {worst}"
    if result.reference_metric is not None and result.condition.scope == "metric":
        within = interval(result.reference_interval)
        yield "FP32", f"{value_of(result, result.reference_metric)}{within}"
    if result.pinned_by_plan:
        yield "pinned by the plan", _by_plan(result)


def _metric_rows(result: BisectResult) -> Iterator[tuple[str, str]]:
    """The metric, of each set of samples, where the target is about something else."""
    name, full = shorten(printable(result.metric), _LONGEST_FIGURE), result.reference_metric
    if full is None or result.condition.scope == "metric":
        return
    search, searched = result.search, f"{result.samples} searched samples"
    rows = [(full, result.reference_interval, search.achieved, search.baseline, searched)]
    rows += [
        (reference, c.reference_interval, c.answer, c.baseline, f"{c.samples} {c.on}")
        for c in result.checks
        if (reference := c.reference_metric) is not None
    ]
    for reference, within, answer, baseline, where in rows:
        figures = [f"{score(reference)} in FP32{interval(within)}"]
        if answer is not None and result.layers:
            figures.append(f"{_score_of(answer)} with the answer")
        if baseline is not None:
            figures.append(f"{_score_of(baseline)} with {_base(result)}")
        yield name, f"{', '.join(figures)}: {where}"


def _score_of(measurement: Measurement) -> str:
    return "no value" if measurement.metric is None else score(measurement.metric)


def _beside_fp32(
    result: BisectResult, value: float | None, full: float | None, samples: int
) -> str:
    """That a metric is better than FP32's, which people take for a mistake unless it is said."""
    if full is None or value is None or result.condition.scope != "metric":
        return ""
    more = result.condition.operator.startswith(">")
    if (value - full if more else full - value) <= 0:
        return ""
    return f", better than FP32 by {apart(value - full, samples, is_share=result.metric_is_share)}"


def _evaluations(result: BisectResult) -> str:
    """How many sets, in what time."""
    seconds = sum(e.measurement.seconds for e in result.history)
    return f"{counted(result.history, 'set')} of layers, {seconds:.1f} s"


def _base(result: BisectResult) -> str:
    """What the search started from."""
    return "the plan alone" if result.pinned_by_plan else "nothing pinned"


def _by_plan(result: BisectResult) -> str:
    """Which layers the plan itself keeps in higher precision, and in which."""
    kinds: dict[str, list[str]] = {}
    for name, precision in result.pinned_by_plan.items():
        kinds.setdefault(str(precision), []).append(name)
    return "; ".join(
        f"{counted(len(names), 'layer')} to {precision}: {first_names(names, _MOST_NAMED)}"
        for precision, names in kinds.items()
    )


def _own_answer(result: BisectResult, selected: SelectedPoint) -> str:
    answer = selected.search
    if answer.achieved is None:
        return "none"
    cost = share(result.cost.way_share(answer.cost))
    pinned = counted(len(answer.pins), "layer")
    return f"{_measured(result, answer.achieved)} with {pinned} pinned, {cost} of the cost"


def _point(selected: SelectedPoint) -> str:
    return (
        f"point {selected.point} of {len(selected.search.pareto)} of the list of error against cost"
    )


def _cost(result: BisectResult) -> str:
    cost = result.cost
    more = cost.plan / cost.base - 1 if cost.base else 0.0
    text = (
        f"in all {number(cost.plan, 3)} {cost.unit}, {share(more)} more than with {_base(result)}"
    )
    if result.pins_everything:
        return text
    to = cost.all_pinned_to
    return f"{share(cost.pinned_share)} of what pinning every layer to {to} would add; {text}"


def checked_line(result: BisectResult, check: Check, base: str) -> str:
    """What a check found, and what it needed; `base` is what the search started from."""
    took = ", used in the search" if check.used_in_search else ""
    condition = result.condition
    if check.bound is not None:
        condition = replace(condition, bound=check.bound)
    value, before = (
        f"cannot be run ({printable(m.failure)})"
        if m.failure
        else value_of(result, m.value, condition)
        for m in (check.answer, check.baseline)
    )
    text = f"{check.samples} {check.on}{took}: {value}{_decided_by(check.answer)}"
    of_drop = result.condition.expression != result.condition.words and "FP32" in result.target_text
    if of_drop and check.bound is not None:
        text += f", needs {condition.operator} {value_of(result, check.bound, condition)}"
    if check.reference_metric is not None and condition.scope == "metric":
        within = interval(check.reference_interval)
        text += f", FP32 {value_of(result, check.reference_metric, condition)}{within}"
    text += _beside_fp32(result, check.answer.value, check.reference_metric, check.samples)
    return f"{text}, with {base} {before}" if result.layers else text


def proves_nothing(result: BisectResult, base: str) -> str:
    """That the held-out samples would have let `base` pass, too, so that they say nothing of the
    pins; "" where they do."""
    check = result.verified_on
    if check is None or not result.layers or check.used_in_search:
        return ""
    if not (check.answer.passed and check.baseline.passed):
        return ""
    return (
        f"The {counted(check.samples, 'held-out sample')} meet the target with {base}, too: that "
        "they meet it with the pins proves nothing. Other or more samples may."
    )


def _why(result: BisectResult, layer: PinnedLayer) -> str:
    parts = []
    if layer.local_sqnr_db is not None:
        parts.append(f"{in_decibels(layer.local_sqnr_db)} in {layer.start}")
    if layer.user_pinned:
        parts.append(f"requested by {option('pin')}")
    elif layer.if_unpinned is not None:
        parts.append(f"without it {_measured(result, layer.if_unpinned)}")
    parts += [f"{c}: {c.evidence}" for c in layer.causes[:1]]
    return "; ".join(parts)


def _not_found(result: BisectResult) -> str:
    if result.search.outcome is Outcome.IMPOSSIBLE:
        return f"OUT OF REACH, even with everything pinned: {result.target_text}."
    count = counted(len(result.history), "set")
    return f"NOT FOUND: of {count} of layers that were tried, none gives {result.target_text}."


def _verdict(result: BisectResult) -> str:
    if not result.found:
        return _not_found(result)
    if result.engine is not None and not result.engine.passed:
        audit = result.engine.audit
        count = len(audit.mismatches) if audit else 0
        return f"NOT CONFIRMED: {counted(count, 'layer')} of the engine not built as planned."
    achieved = result.search.achieved
    if result.selected_point is not None and achieved is not None and not achieved.passed:
        return (
            f"TARGET NOT MET: the selected {_point(result.selected_point)} is at "
            f"{value_of(result, achieved.value)}; the target is {result.target_text}."
        )
    if not result.passed:
        failed = next(c for c in result.checks if not c.answer.passed)
        which = "selected point" if result.selected_point else "set found"
        advice = "Search on more samples, or set a stricter target."
        return (
            f"NOT CONFIRMED: the {which} meets the target ({result.target_text}) on the samples "
            f"searched, but not on {failed.samples} {failed.on}. {advice}"
        )
    count, by_user = len(result.layers), result.user_pinned
    beside = (
        f" besides the plan's {counted(len(result.pinned_by_plan), 'layer')}"
        if result.pinned_by_plan
        else ""
    )
    unknown = doubt(result.engine.audit) if result.engine is not None else ""
    if count == by_user:
        by_hand = f"the {counted(count, 'layer')} of {option('pin')}" if count else "nothing pinned"
        return f"PASSED with {by_hand}{beside}{unknown}: {result.target_text}."
    which = "each of the others" if by_user else "each" if count > 1 else "which is"
    proof = f"{which} needed there" if result.minimal else "not all of them seen to be needed"
    if result.pins_everything:
        proof = f"none left in lower precision, {proof}"
    by_hand = f", {by_user} of them by {option('pin')}" if by_user else ""
    if result.selected_point is not None:
        by_hand += f" (selected {_point(result.selected_point)})"
    held_out = result.verified_on
    on = f" on {counted(result.samples, 'sample')}"
    on += f" searched and {held_out.samples} held out" if held_out else ""
    return f"PASSED{on}: {counted(count, 'layer')} pinned{beside}{by_hand}, {proof}{unknown}."
