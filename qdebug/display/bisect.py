"""What a person sees of a search for the cheapest precision plan, and that plan with its
evidence."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qdebug.display.blocks import Block, Checks, Column, Facts, Line, notes, table_of
from qdebug.display.engine import doubt, engine_blocks
from qdebug.display.words import FP16_KERNELS, decibel, first_names, in_decibels, number, share
from qdebug.plan.planfile import plan_to_yaml
from qdebug.search.outcome import HELD_OUT, BisectResult, Check, PinnedLayer, SelectedPoint
from qdebug.search.pareto import Point
from qdebug.search.problem import Measurement
from qdebug.wording import counted, option, printable

_MOST_ENGINE_ROWS = 8
_MOST_NAMED = 3
_MOST_POINTS = 12


def view(result: BisectResult) -> list[Block]:
    """The target, what was found and what it costs, with the evidence; the verdict last."""
    blocks: list[Block] = [Line(_title(result), "title"), Facts(tuple(_rows(result)))]
    if result.layers:
        beside = ", besides those of the plan" if result.pinned_by_plan else ""
        heading = Line(f"Layers to keep in higher precision{beside}", "title")
        blocks += [Line(), heading, _layers(result), *_reasons(result)]
    if len(result.search.pareto) > 1:
        blocks += [Line(), *_points(result)]
    blocks.append(Line())
    if result.engine is not None:
        blocks += engine_blocks(result.engine, _MOST_ENGINE_ROWS)
    blocks += notes(result.notes)
    base = _base(result)
    blocks.append(Checks(tuple((c.answer.passed, checked_line(c, base)) for c in result.checks)))
    if result.explanation:
        blocks.append(Line(printable(result.explanation), "note"))
    blocks.append(Line(_verdict(result), "good" if result.passed else "bad"))
    return blocks


def _measured(measurement: Measurement | None) -> str:
    """The value, and whether the target holds with it."""
    if measurement is None:
        return "not evaluated"
    if measurement.failure:
        return f"cannot be run: {printable(measurement.failure)}"
    return _checked_value(measurement.value, measurement.passed)


def _checked_value(value: float | None, passed: bool) -> str:
    shown = "no value" if value is None else number(value, 6)
    return f"{shown} {'holds' if passed else 'FAILS'}"


def _layers(result: BisectResult) -> Block:
    """The pinned layers, each with its evidence."""
    pin = option("pin")
    return table_of(
        result.layers,
        [
            (Column("layer", "name"), lambda x: x.name),
            (Column("op", "op"), lambda x: x.op_type),
            (Column("to"), lambda x: str(x.precision)),
            (Column("local dB", "number", drop=1), lambda x: decibel(x.local_sqnr_db)),
            (Column("without it", "number"), _if_unpinned),
            (Column("cost", "number"), lambda x: share(result.cost.way_share(x.cost))),
            (Column("why"), lambda x: pin if x.user_pinned else _label(x)),
        ],
    )


def _if_unpinned(layer: PinnedLayer) -> str:
    found = layer.if_unpinned
    if found is None:
        return "–"
    if found.failure or found.value is None:
        return "cannot run"
    return f"{number(found.value, 4)}{' ok' if found.passed else ''}"


def _label(layer: PinnedLayer) -> str:
    return layer.causes[0].label if layer.causes else "–"


def _reasons(result: BisectResult) -> Iterator[Line]:
    """What to do instead of pinning: each remedy once, with the layer that shows it best."""
    said: set[str] = set()
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
        (k, point, marks)
        for k, point in _with_answer(result)
        if (marks := _marks(result, k, point)) or k % step == 1 % step
    ]
    some_of = f", {len(shown)} of {len(points)} points" if len(shown) < len(points) else ""
    yield Line(f"Error against cost, of all that was evaluated{some_of}", "title")
    yield table_of(
        shown,
        [
            (Column("#", "number"), lambda x: str(x[0] or "–")),
            (
                Column("added" if result.pinned_by_plan else "pinned", "number"),
                lambda x: str(len(x[1].pins)),
            ),
            (Column("cost", "number"), lambda x: share(result.cost.way_share(x[1].cost))),
            (Column("all outputs dB", "number"), lambda x: decibel(_noise_db(x[1]))),
            (Column(result.figure, "number"), lambda x: _checked_value(x[1].value, x[1].passed)),
            (Column(""), lambda x: x[2]),
        ],
        lambda x: "strong" if x[2] else "",
    )
    selecting = f"{option('select_point', 'N')}, or {option('select_point', 'knee')},"
    how = f"The same command with {selecting} selects another point."
    if result.figure != "metric":
        scope = result.figure.partition(".")[0]
        how = f"{result.figure} is that of the worst {scope}, as the target asks. {how}"
    yield Line(how, indent=2)


def _marks(result: BisectResult, k: int, point: Point) -> str:
    selected = result.selected_point
    own = selected.search if selected else result.search
    marks = ["the answer"] if point.pins == own.pins and own.achieved is not None else []
    marks += ["knee"] if point.knee else []
    marks += ["selected"] if selected and selected.point == k else []
    return ", ".join(marks)


def _noise_db(point: Point) -> float:
    return math.inf if point.noise == 0 else -10 * math.log10(point.noise)


def _with_answer(result: BisectResult) -> list[tuple[int, Point]]:
    """The list with its numbers, and the answer, numbered 0, even where another set beats it."""
    points = list(enumerate(result.search.pareto, start=1))
    search, achieved = result.search, result.search.achieved
    if achieved is None or achieved.noise is None or search.pins in [p.pins for _, p in points]:
        return points
    answer = Point(search.pins, search.cost, achieved.noise, achieved.value, achieved.passed)
    return sorted([*points, (0, answer)], key=lambda numbered: numbered[1].cost)


def plan_text(result: BisectResult) -> str:
    """precision.yaml: the plan, with the evidence as comments."""
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    for check in result.checks:
        verdict = "holds" if check.answer.passed else "FAILS"
        header.append(f"{checked_line(check, _base(result))}: {verdict}")
    header.append(_verdict(result))
    why = dict.fromkeys(result.pinned_by_plan, "by the plan that was searched from")
    why |= {layer.name: _why(result, layer) for layer in result.layers}
    return plan_to_yaml(result.plan, result.model.path, header=header, why=why)


def _title(result: BisectResult) -> str:
    name = printable(result.model.name)
    return (
        f"{name}: {str(result.precision).upper()} such that {result.target}, searched on "
        f"{result.samples} samples ({result.strategy})"
    )


def _rows(result: BisectResult) -> Iterator[tuple[str, str]]:
    search = result.search
    if result.reference_metric is not None:
        yield "FP32", number(result.reference_metric, 6)
    if result.pinned_by_plan:
        yield "pinned by the plan", _by_plan(result)
    yield _base(result), _measured(search.baseline)
    if search.ceiling is not None:
        to = " and ".join(sorted({str(precision) for _, precision in search.ceiling_pins}))
        yield "everything pinned", f"{_measured(search.ceiling)}" + (f", to {to}" if to else "")
    if result.selected_point is not None:
        yield "search's answer", _own_answer(result, result.selected_point)
    if result.found:
        count = len(result.layers)
        by_user = result.user_pinned
        text = f"{_measured(search.achieved)} with {count} of {result.candidates + by_user}"
        text += f" layers {'added' if result.pinned_by_plan else 'pinned'}"
        text += f", {by_user} of them by {option('pin')}" if by_user else ""
        if result.selected_point is not None:
            yield "selected point", f"{text}: {_point(result.selected_point)}"
        else:
            yield "found", text
        if count:
            yield "cost", _cost(result)
    yield "evaluations", _evaluations(result)
    if result.fp16_kernels is not None:
        yield "FP16 layers", FP16_KERNELS[result.fp16_kernels]
    if result.search.history:
        yield "run", result.execution


def _evaluations(result: BisectResult) -> str:
    """How many, in what time, and how many of them the journal held."""
    count, history = result.evaluations, result.history
    replayed = sum(e.replayed for e in history)
    seconds = sum(e.measurement.seconds for e in history if not e.replayed)
    text = f"{count}, {seconds:.1f} s in total"
    if 0 < replayed == len(history):
        text = f"{count}, all from the journal; FP32, the layers' own errors and the "
        text += "checks of the answer were run again"
    elif replayed:
        text += f"; {replayed} from the journal"
    return text


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
    return f"{_measured(answer.achieved)} with {pinned} pinned, {cost} of the way"


def _point(selected: SelectedPoint) -> str:
    return (
        f"point {selected.point} of {len(selected.search.pareto)} of the list of error against cost"
    )


def _cost(result: BisectResult) -> str:
    cost = result.cost
    more = cost.plan / cost.base - 1 if cost.base else 0.0
    return (
        f"{number(cost.plan, 3)} {cost.unit}, {share(more)} more than with {_base(result)}; "
        f"{share(cost.pinned_share)} of the way to everything in {cost.all_pinned_to}"
    )


def checked_line(check: Check, base: str) -> str:
    """What a check found; `base` is what it started from."""
    took = ", used in the search" if check.used_in_search else ""
    text = f"{check.samples} {check.on}{took}: {_measured(check.answer).split(' ')[0]}"
    text += f", {base} {_measured(check.baseline).split(' ')[0]}"
    if check.reference_metric is not None:
        text += f", FP32 {number(check.reference_metric, 6)}"
    return text


def _why(result: BisectResult, layer: PinnedLayer) -> str:
    parts = []
    if layer.local_sqnr_db is not None:
        parts.append(f"{in_decibels(layer.local_sqnr_db)} in {layer.start}")
    if layer.user_pinned:
        parts.append(f"requested by {option('pin')}")
    elif layer.if_unpinned is not None:
        parts.append(f"without it {_measured(layer.if_unpinned)}")
    parts += [f"{c}: {c.evidence}" for c in layer.causes[:1]]
    return "; ".join(parts)


def _verdict(result: BisectResult) -> str:
    if not result.found:
        tried = "no set that was tried meets" if result.search.history else "no set was tried for"
        return f"NOT FOUND: {tried} {result.target}."
    if result.engine is not None and not result.engine.passed:
        audit = result.engine.audit
        count = len(audit.mismatches) if audit else 0
        return f"NOT CONFIRMED: {counted(count, 'layer')} of the engine not built as planned."
    achieved = result.search.achieved
    if result.selected_point is not None and achieved is not None and not achieved.passed:
        return (
            f"TARGET NOT MET: the selected {_point(result.selected_point)} is at "
            f"{_measured(achieved).split(' ')[0]}; the target is {result.target}."
        )
    if not result.passed:
        failed = next(c for c in result.checks if not c.answer.passed)
        which = "selected point" if result.selected_point else "set found"
        advice = "Search on more samples, or set a stricter target."
        if failed.on != HELD_OUT and not result.selected_point:
            # Else the search would have been repeated in that way.
            advice = "With more time the search is repeated in that way."
        return (
            f"NOT CONFIRMED: the {which} meets {result.target} on the samples searched, but not "
            f"on {failed.samples} {failed.on}. {advice}"
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
        return f"PASSED: {result.target} holds with {by_hand}{beside}{unknown}."
    which = "each of the others" if by_user else "each" if count > 1 else "which is"
    proof = f"{which} shown to be needed" if result.minimal else "not all shown to be needed"
    if count == result.candidates:
        proof = f"none left in lower precision, {proof}"
    by_hand = f", {by_user} of them by {option('pin')}" if by_user else ""
    if result.selected_point is not None:
        by_hand += f" (selected {_point(result.selected_point)})"
    return f"PASSED: {counted(count, 'layer')} pinned{beside}{by_hand}, {proof}{unknown}."
