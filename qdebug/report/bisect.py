"""Show what `bisect` found, and write it as a plan with its evidence."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from qdebug.plan.planfile import plan_to_yaml
from qdebug.report.bisect_tables import layer_table, measured, print_points, way_share
from qdebug.report.engine import print_engine
from qdebug.report.tables import print_indented, print_table, print_written
from qdebug.report.view import cause_title, counted, in_decibels, number, printable, share, some
from qdebug.search.outcome import BisectResult, Check, PinnedLayer, SelectedPoint

_MOST_ENGINE_ROWS = 8
_MOST_NAMED = 3


def print_bisect(console: Console, result: BisectResult, plan_file: str | None) -> None:
    """The target, what was found and what it costs, with the evidence; the verdict last."""
    console.print(Text(_title(result), style="bold"))
    print_table(console, _facts(result))
    if result.layers:
        console.print()
        beside = ", beside those of the plan" if result.pinned_by_plan else ""
        console.print(Text(f"Layers to keep in higher precision{beside}", style="bold"))
        print_table(console, layer_table(console, result))
        _print_reasons(console, result)
    if len(result.search.pareto) > 1:
        console.print()
        print_points(console, result)
    console.print()
    if result.engine is not None:
        print_engine(console, result.engine, _MOST_ENGINE_ROWS)
    for note in result.notes:
        console.print(Text(f"Note: {printable(note)}", style="yellow"))
    print_table(console, _checks(result))
    if result.explanation:
        console.print(Text(printable(result.explanation), style="yellow"))
    console.print(Text(_verdict(result), style="bold green" if result.passed else "bold red"))
    print_written(console, plan_file)


def _checks(result: BisectResult) -> Table:
    table = Table.grid(padding=(0, 2))
    for check in result.checks:
        mark, style = ("holds", "green") if check.answer.passed else ("FAILS", "bold red")
        table.add_row("", Text(mark, style=style), Text(_checked(check, _base(result))))
    return table


def plan_text(result: BisectResult) -> str:
    """precision.yaml: the plan, with the evidence as comments."""
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    for check in result.checks:
        verdict = "holds" if check.answer.passed else "FAILS"
        header.append(f"{_checked(check, _base(result))}: {verdict}")
    header.append(_verdict(result))
    why = dict.fromkeys(
        (name for name in result.pinned_by_plan), "by the plan that was searched from"
    )
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
    yield _base(result), measured(search.baseline)
    if search.ceiling is not None:
        to = " and ".join(sorted({str(precision) for _, precision in search.ceiling_pins}))
        yield "everything pinned", f"{measured(search.ceiling)}" + (f", to {to}" if to else "")
    if result.selected_point is not None:
        yield "search's answer", _own_answer(result, result.selected_point)
    if result.found:
        count = len(result.layers)
        demanded = result.user_pinned
        text = f"{measured(search.achieved)} with {count} of {result.candidates + demanded}"
        text += f" layers {'added' if result.pinned_by_plan else 'pinned'}"
        text += f", {demanded} of them by --pin" if demanded else ""
        if result.selected_point is not None:
            yield "taken by hand", f"{text}: {_point(result.selected_point)}"
        else:
            yield "found", text
        if count:
            yield "cost", _cost(result)
    replayed = sum(e.replayed for e in search.history)
    seconds = sum(e.measurement.seconds for e in search.history if not e.replayed)
    text = f"{search.evaluations}, {seconds:.1f} s added up"
    if 0 < replayed == len(search.history):
        text = f"{search.evaluations}, all from the journal; FP32, the layers' own errors and the "
        text += "checks of the answer were run again"
    elif replayed:
        text += f"; {replayed} from the journal"
    yield "evaluations", text
    yield "run", result.execution


def _base(result: BisectResult) -> str:
    """What the search started from."""
    return "the plan alone" if result.pinned_by_plan else "nothing pinned"


def _by_plan(result: BisectResult) -> str:
    """Which layers the plan itself keeps in higher precision, and in which."""
    kinds: dict[str, list[str]] = {}
    for name, precision in result.pinned_by_plan.items():
        kinds.setdefault(str(precision), []).append(name)
    return "; ".join(
        f"{counted(len(names), 'layer')} to {precision}: {some(names, _MOST_NAMED)}"
        for precision, names in kinds.items()
    )


def _own_answer(result: BisectResult, taken: SelectedPoint) -> str:
    answer = taken.search
    if answer.achieved is None:
        return "none"
    cost = share(way_share(result, answer.cost))
    pinned = counted(len(answer.pins), "layer")
    return f"{measured(answer.achieved)} with {pinned} pinned, {cost} of the way"


def _point(taken: SelectedPoint) -> str:
    return f"point {taken.point} of {len(taken.search.pareto)} of the list of error against cost"


def _facts(result: BisectResult) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(result):
        table.add_row(Text(name), Text(text))
    return table


def _cost(result: BisectResult) -> str:
    cost = result.cost
    more = cost.plan / cost.base - 1 if cost.base else 0.0
    return (
        f"{number(cost.plan, 3)} {cost.unit}, {share(more)} more than with {_base(result)}; "
        f"{share(cost.pinned_share)} of the way to everything in {cost.all_pinned_to}"
    )


def _print_reasons(console: Console, result: BisectResult) -> None:
    """What to do instead of pinning: each remedy once, with the layer that shows it best."""
    said: set[str] = set()
    for layer in result.layers:
        for cause in layer.causes[:1]:
            if cause.label in said:
                continue
            said.add(cause.label)
            text = f"{cause.label}: {printable(cause.evidence)}. {cause.remedy}"
            print_indented(console, text, 2)


def _checked(check: Check, base: str) -> str:
    took = ", which took part in the choice" if check.used_in_search else ""
    text = f"{check.samples} {check.on}{took}: {measured(check.answer).split(' ')[0]}"
    text += f", {base} {measured(check.baseline).split(' ')[0]}"
    if check.reference_metric is not None:
        text += f", FP32 {number(check.reference_metric, 6)}"
    return text


def _why(result: BisectResult, layer: PinnedLayer) -> str:
    parts = []
    if layer.local_sqnr_db is not None:
        parts.append(f"{in_decibels(layer.local_sqnr_db)} in {layer.start}")
    if layer.user_pinned:
        parts.append("demanded by --pin")
    elif layer.if_unpinned is not None:
        parts.append(f"without it {measured(layer.if_unpinned)}")
    parts += [f"{cause_title(c)}: {c.evidence}" for c in layer.causes[:1]]
    return "; ".join(parts)


def _verdict(result: BisectResult) -> str:
    if not result.found:
        return f"NOT FOUND: no set that was tried meets {result.target}."
    if result.engine is not None and not result.engine.passed:
        audit = result.engine.audit
        count = len(audit.mismatches) if audit else 0
        return f"NOT CONFIRMED: {counted(count, 'layer')} of the engine not built as planned."
    achieved = result.search.achieved
    if result.selected_point is not None and achieved is not None and not achieved.passed:
        return (
            f"TARGET NOT MET: {_point(result.selected_point)}, taken by hand, is at "
            f"{measured(achieved).split(' ')[0]}; the target is {result.target}."
        )
    if not result.passed:
        failed = next(c for c in result.checks if not c.answer.passed)
        which = "point taken" if result.selected_point else "set found"
        return (
            f"NOT CONFIRMED: the {which} meets {result.target} on the samples searched, but not "
            f"on {failed.samples} {failed.on}. Search on more samples, or ask for a little more."
        )
    count, demanded = len(result.layers), result.user_pinned
    beside = (
        f" beside the plan's {counted(len(result.pinned_by_plan), 'layer')}"
        if result.pinned_by_plan
        else ""
    )
    if count == demanded:
        by_hand = f"the {counted(count, 'layer')} of --pin" if count else "nothing pinned"
        return f"PASSED: {result.target} holds with {by_hand}{beside}."
    which = "each of the others" if demanded else "each" if count > 1 else "it"
    proof = (
        f"{which} was shown to be needed"
        if result.search.minimal
        else "not every one was shown to be needed"
    )
    by_hand = f", {demanded} of them by --pin" if demanded else ""
    if result.selected_point is not None:
        by_hand += f" ({_point(result.selected_point)}, taken by hand)"
    return f"PASSED: {counted(count, 'layer')} pinned{beside}{by_hand}, {proof}."
