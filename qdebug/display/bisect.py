"""What a person sees of a search for the cheapest precision plan, and that plan with its
evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from qdebug.decide.bisect.result import BisectResult, Check, PinnedLayer, SelectedPoint
from qdebug.decide.search.find import Outcome
from qdebug.decide.search.pareto import Point
from qdebug.decide.search.problem import Measurement
from qdebug.display.blocks import (
    Block,
    Checks,
    Column,
    Line,
    Parts,
    facts,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.display.engine import doubt, engine_blocks
from qdebug.display.names import shorten
from qdebug.formats.registry import RANGED
from qdebug.metrics.tensor import METRIC, noise_db
from qdebug.plan.planfile import plan_to_yaml
from qdebug.results.conditions import Condition
from qdebug.results.words import (
    FP16_KERNELS,
    apart,
    figure,
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
    advice = [*_before_pinning(result), *_reasons(result)]
    every = f"Every layer that may be pinned is: {len(result.layers)}, to {result.raised_to}."
    beside = ", besides those of the plan" if result.pinned_by_plan else ""
    heading = Line(f"Layers to keep in higher precision{beside}", "title")
    pinned: Parts = (Line(), heading, _layers(result), advice) if result.layers else None
    if result.pins_everything and len(result.layers) > _LISTED_IF_ALL:
        pinned = Line(), Line(every, "title"), advice
    base, weak = _base(result), proves_nothing(result, _base(result))
    return flat(
        Line(_title(result), "title"),
        suspects(result),
        facts(_rows(result)),
        pinned,
        (Line(), _points(result)) if len(result.search.pareto) > 1 else None,
        Line(),
        engine_blocks(result.engine, _MOST_ENGINE_ROWS) if result.engine else None,
        notes(n for n in result.notes if n != result.suspect),
        Checks(tuple((c.answer.passed, checked_line(result, c, base)) for c in result.checks)),
        Line(weak, "note") if weak else None,
        Line(printable(result.explanation), "note") if result.explanation else None,
        Line(_verdict(result), "good" if result.passed else "bad"),
    )


def _measured(result: BisectResult, measurement: Measurement | None) -> str:
    """The value, and whether the target holds with it."""
    if measurement is None:
        return "not evaluated"
    if measurement.failure:
        return f"cannot be run: {printable(measurement.failure)}"
    return _verdict_on(result, measurement) + by_group(measurement.worst_group)


def by_group(worst: str) -> str:
    """The group of samples that decides a figure; "" without groups."""
    return f" (by '{printable(worst)}', the worst group)" if worst else ""


def _verdict_on(result: BisectResult, measured: Measurement | Point) -> str:
    """The value, and whether the target holds; where other samples than all the others decided,
    it says so, because a largest drop sets another bound there."""
    verdict = "holds" if measured.passed else "FAILS"
    return f"{value_of(result, measured.value)} {verdict}{_where(measured)}"


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

    def if_unpinned(layer: PinnedLayer) -> str | None:
        if (found := layer.if_unpinned) is None:
            return None
        if found.failure or found.value is None:
            return "cannot run"
        holds = " holds" if found.passed else ""
        return f"{value_of(result, found.value)}{holds}{_where(found)}"

    pin = option("pin")
    return table_of(
        result.layers,
        [
            (Column("layer", "name"), lambda x: x.name),
            (Column("op", "op"), lambda x: x.op_type),
            (Column("to"), lambda x: x.precision),
            number_column("own dB", lambda x: x.local_sqnr_db, "dB", drop=1),
            (Column(f"{_figure_name(result)} without", "number"), if_unpinned),
            number_column("cost", lambda x: result.cost.way_share(x.cost), "share"),
            (Column("cause"), lambda x: pin if x.user_pinned else _label(x)),
        ],
    )


def _figure_name(result: BisectResult) -> str:
    """Of the target, to stand over a column."""
    return shorten(printable(result.figure), _LONGEST_FIGURE)


def _label(layer: PinnedLayer) -> str | None:
    return layer.causes[0].label if layer.causes else None


def _before_pinning(result: BisectResult) -> list[Line]:
    """What costs no speed, and is to be tried before a layer is given up."""
    text = (
        "Before pinning, try qdebug calibrate (other ranges) and qdebug repair (remedies that "
        "cost little or no speed): fewer layers may need pinning then, or none."
    )
    searched = len(result.layers) > result.user_pinned and result.precision in RANGED
    return [Line(text, "note", 2)] if searched else []


def suspects(result: BisectResult) -> Parts:
    """What to check before any layer is pinned: the samples, and whether the ranges are theirs."""
    stale = (c for layer in result.layers for c in layer.causes if c.label == _STALE)
    return (
        notes([result.suspect] if result.suspect else []),
        [
            Line(f"First suspect ({_STALE}): {printable(c.evidence)}. {c.remedy}", "note")
            for c in islice(stale, 1)
        ],
    )


def _reasons(result: BisectResult) -> Iterator[Line]:
    """What to do instead of pinning: each remedy once, with the layer that shows it best."""
    shown: dict[str | None, list[PinnedLayer]] = {}
    for layer in result.layers:
        shown.setdefault(_label(layer), []).append(layer)
    for label, (layer, *others) in shown.items():
        for cause in layer.causes[:1] if label != _STALE else ():
            where = f", for example in {printable(layer.name)}" if others else ""
            text = f"{label}{where}: {printable(cause.evidence)}. {cause.remedy}"
            yield Line(text, indent=2)


def _points(result: BisectResult) -> Parts:
    """Error against cost: some of the points, the answer, and how to select another one."""
    points, scope = result.search.pareto, result.condition.scope
    step = max(1, -(-len(points) // _MOST_POINTS))
    shown = [
        (point, marks)
        for point in _with_answer(result)
        if (marks := _marks(result, point)) or point.point % step == 1 % step
    ]
    some_of = f": {len(shown)} of {len(points)} points" if len(shown) < len(points) else ""
    table = table_of(
        shown,
        [
            (Column("point", "number"), lambda x: x[0].point or None),
            (
                Column("added" if result.pinned_by_plan else "pinned", "number"),
                lambda x: len(x[0].pins),
            ),
            number_column("cost", lambda x: result.cost.way_share(x[0].cost), "share"),
            number_column("outputs dB", lambda x: noise_db(x[0].noise), "dB"),
            (Column(_figure_name(result), "number"), lambda x: _verdict_on(result, x[0])),
            (Column(""), lambda x: x[1]),
        ],
        lambda x: "strong" if x[1] else "",
    )
    knee = any(point.knee for point, _ in shown)
    what = _figure_name(result) if scope == "metric" else "accuracy"
    selecting = option("select_point", "N")
    if knee:
        selecting += f" or {option('select_point', 'knee')} (the {_KNEE})"
    legend = {
        f"cost: with every layer pinned to {result.cost.all_pinned_to} it is 100%. outputs dB: "
        "SQNR, the mean over the outputs.": True,
        f"{result.figure}: of the worst {scope}, as in the target.": bool(result.condition.name),
        "(held out): the held-out samples decided; the other values are of those searched.": any(
            point.held_out for point, _ in shown
        ),
        f"{_KNEE}: from here on, more pinning buys little {what} for its cost.": knee,
        f"The same command with {selecting} takes another point.": True,
    }
    return (
        Line(f"Error against cost{some_of}", "title"),
        table,
        (Line(text, indent=2) for text, holds in legend.items() if holds),
    )


def _marks(result: BisectResult, point: Point) -> str:
    selected = result.selected_point
    own = selected.search if selected else result.search
    marks = {
        "the answer": point.pins == own.pins and own.achieved is not None,
        _KNEE: point.knee,
        "selected": selected is not None and selected.point == point.point,
    }
    return ", ".join(mark for mark, holds in marks.items() if holds)


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
    checks = (
        f"{'holds' if c.answer.passed else 'FAILS'}: {checked_line(result, c, _base(result))}"
        for c in result.checks
    )
    rows = (f"{name}: {text}" for name, text in _rows(result) if text)
    header = [f"{_title(result)}.", *rows, *checks, _verdict(result)]
    why = dict.fromkeys(result.pinned_by_plan, "by the plan that was searched from")
    why |= {layer.name: _why(result, layer) for layer in result.layers}
    return plan_to_yaml(result.plan, result.model.path, header=header, why=why)


def _title(result: BisectResult) -> str:
    name = printable(result.model.name)
    return f"{name}: which layers must not run in {str(result.precision).upper()}"


def _rows(result: BisectResult) -> Iterator[tuple[str, str | None]]:
    yield from _asked(result)
    search, count, by_user = result.search, len(result.layers), result.user_pinned
    better = _beside_fp32(result, result.baseline, result.reference_metric, result.samples)
    yield _base(result), _measured(result, search.baseline) + better
    if search.ceiling is not None:
        to = " and ".join(sorted({str(precision) for _, precision in search.ceiling_pins}))
        at = f" to {to}" if to else ""
        yield f"everything pinned{at}", _measured(result, search.ceiling)
    if result.selected_point is not None:
        yield "search's answer", _own_answer(result, result.selected_point)
    if result.found:
        text = f"{_measured(result, search.achieved)} with {count} of {result.candidates + by_user}"
        text += f" layers {'added' if result.pinned_by_plan else 'pinned'}"
        text += f", {by_user} of them by {option('pin')}" if by_user else ""
        point = result.selected_point
        yield ("selected point", f"{text}: {_point(point)}") if point else ("found", text)
        yield "cost", _cost(result) if count else None
    yield from _metric_rows(result)
    seconds = figure(sum(e.measurement.seconds for e in result.history), "tenths")
    yield "evaluated", f"{counted(result.history, 'set')} of layers, {seconds} s"
    yield "FP16 layers", FP16_KERNELS[result.fp16_kernels] if result.fp16_kernels else None


def _asked(result: BisectResult) -> Iterator[tuple[str, str]]:
    """The target, and what it is searched for on and from."""
    yield "target", result.target_text
    kept = f", {result.held_out_samples} held out to check the answer"
    yield "samples", f"{result.samples} to search on{kept}"
    if (framework := result.framework) is not None:
        how = "agrees" if framework.agrees else "cannot be told to agree"
        worst = in_decibels(framework.worst.sqnr_db)
        yield "export", f"{how} with {printable(framework.data)}, SQNR {worst}"
    if result.reference_metric is not None and result.condition.scope == "metric":
        within = interval(result.reference_interval)
        yield "FP32", f"{value_of(result, result.reference_metric)}{within}"
    kinds: dict[str, list[str]] = {}
    for name, precision in result.pinned_by_plan.items():
        kinds.setdefault(str(precision), []).append(name)
    told = (
        f"{counted(names, 'layer')} to {precision}: {first_names(names, _MOST_NAMED)}"
        for precision, names in kinds.items()
    )
    if kinds:
        yield "pinned by the plan", "; ".join(told)


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
        figures = (
            f"{score(reference)} in FP32{interval(within)}",
            f"{_score_of(answer)} with the answer" if answer and result.layers else "",
            f"{_score_of(baseline)} with {_base(result)}" if baseline else "",
        )
        yield name, f"{', '.join(filter(None, figures))}: {where}"


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


def _base(result: BisectResult) -> str:
    """What the search started from."""
    return "the plan alone" if result.pinned_by_plan else "nothing pinned"


def _own_answer(result: BisectResult, selected: SelectedPoint) -> str:
    answer = selected.search
    if answer.achieved is None:
        return "none"
    cost, pinned = share(result.cost.way_share(answer.cost)), counted(answer.pins, "layer")
    return f"{_measured(result, answer.achieved)} with {pinned} pinned, {cost} of the cost"


def _point(selected: SelectedPoint) -> str:
    return (
        f"point {selected.point} of {len(selected.search.pareto)} of the list of error against cost"
    )


def _cost(result: BisectResult) -> str:
    cost = result.cost
    more = share(cost.plan / cost.base - 1 if cost.base else 0.0)
    text = f"in all {number(cost.plan, 3)} {cost.unit}, {more} more than with {_base(result)}"
    part = (
        f"{share(cost.pinned_share)} of what pinning every layer to {cost.all_pinned_to} would add"
    )
    return text if result.pins_everything else f"{part}; {text}"


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
    text = f"{check.samples} {check.on}{took}: {value}{by_group(check.answer.worst_group)}"
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
    own = layer.local_sqnr_db
    how = "" if layer.if_unpinned is None else f"without it {_measured(result, layer.if_unpinned)}"
    parts = (
        "" if own is None else f"{in_decibels(own)} in {layer.start}",
        f"requested by {option('pin')}" if layer.user_pinned else how,
        *(f"{c}: {c.evidence}" for c in layer.causes[:1]),
    )
    return "; ".join(filter(None, parts))


def _verdict(result: BisectResult) -> str:
    tried, target = counted(result.history, "set"), result.target_text
    if result.search.outcome is Outcome.IMPOSSIBLE and not result.found:
        return f"OUT OF REACH, even with everything pinned: {target}."
    if not result.found:
        return f"NOT FOUND: of {tried} of layers that were tried, none gives {target}."
    engine, selected, achieved = result.engine, result.selected_point, result.search.achieved
    if engine is not None and not engine.passed:
        wrong = counted(engine.audit.mismatches if engine.audit else (), "layer")
        return f"NOT CONFIRMED: {wrong} of the engine not built as planned."
    if selected is not None and achieved is not None and not achieved.passed:
        return (
            f"TARGET NOT MET: the selected {_point(selected)} is at "
            f"{value_of(result, achieved.value)}; the target is {target}."
        )
    if not result.passed:
        failed = next(c for c in result.checks if not c.answer.passed)
        which = "selected point" if selected else "set found"
        return (
            f"NOT CONFIRMED: the {which} meets the target ({target}) on the samples searched, but "
            f"not on {failed.samples} {failed.on}. Search on more samples, or set a stricter "
            "target."
        )
    pinned, by_user = counted(result.layers, "layer"), result.user_pinned
    planned = counted(result.pinned_by_plan, "layer")
    beside = f" besides the plan's {planned}" if result.pinned_by_plan else ""
    unknown = doubt(engine.audit if engine else None)
    if len(result.layers) == by_user:
        by_hand = f"the {pinned} of {option('pin')}" if by_user else "nothing pinned"
        return f"PASSED with {by_hand}{beside}{unknown}: {target}."
    each = "each" if len(result.layers) > 1 else "which is"
    which = "each of the others" if by_user else each
    proof = f"{which} needed there" if result.minimal else "not all of them seen to be needed"
    every = "none left in lower precision, " if result.pins_everything else ""
    by_hand = f", {by_user} of them by {option('pin')}" if by_user else ""
    point = f" (selected {_point(selected)})" if selected else ""
    held_out = f" and {result.verified_on.samples} held out" if result.verified_on else ""
    on = f"{counted(result.samples, 'sample')} searched{held_out}"
    return f"PASSED on {on}: {pinned} pinned{beside}{by_hand}{point}, {every}{proof}{unknown}."
