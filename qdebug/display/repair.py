"""What a person sees of a repair."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qdebug.decide.bisect.result import BisectResult
from qdebug.decide.remedies.result import (
    Figures,
    Outcome,
    Proof,
    Reason,
    RepairResult,
    Step,
)
from qdebug.decide.search.find import Outcome as SearchOutcome
from qdebug.display.bisect import by_group, checked_line, proves_nothing, value_of
from qdebug.display.blocks import (
    Block,
    Cells,
    Checks,
    Column,
    Line,
    Parts,
    Style,
    Table,
    facts,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.display.names import shorten
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.plan.planfile import plan_to_yaml
from qdebug.results.words import (
    apart,
    decibel,
    figure,
    first_names,
    in_decibels,
    interval,
    score,
    share,
)
from qdebug.wording import counted, option, printable

_MOST_NAMED = 3
_LONGEST_METRIC = 20
_SEEN = 0.1
"""In dB: the least change that the table shows."""
_CHANCE = 2.0
"""Standard errors within which a change of a metric may be chance."""
_OUTCOMES = {
    Outcome.KEPT: "kept",
    Outcome.NO_USE: "no use",
    Outcome.DROPPED: "dropped",
    Outcome.NOT_KEPT: "not kept",
}
_REASONS = {
    Reason.METRIC: "the metric is better",
    Reason.TARGET: "the target holds",
    Reason.LESS_NOISE: "less error",
    Reason.LESS_LOSS: "the samples lose less",
    Reason.MORE_LOSS: "the samples lose more",
    Reason.UNDECIDED: "too few samples to tell",
    Reason.NO_GAIN: "no gain beyond chance",
    Reason.METRIC_FELL: "the metric is worse",
    Reason.FAILS: "cannot be run",
    Reason.NOTHING_CHANGED: "changes nothing",
}


def view(result: RepairResult) -> list[Block]:
    """What was tried and what it gave, what had to be pinned, and the proof; the verdict last."""
    on = counted(result.choosing_samples, "selection sample")
    ends = {step.outcome for step in result.steps}
    weak = proves_nothing(result.pinning, _alone(result)) if result.pinning is not None else ""
    return flat(
        Line(_title(result), "title"),
        notes([result.suspect] if result.suspect else []),
        facts(_rows(result)),
        (Line(), Line(f"Remedies in the order tried, on {on}", "title"), _steps(result))
        if result.steps
        else None,
        (Line(text, indent=2) for outcome, text in _LEGEND.items() if outcome in ends),
        Line(_undecided(result), "note", 2) if result.best_guess else None,
        (Line(printable(text), "muted", 2) for text in _not_tried(result)),
        (Line(), _pins(result, result.pinning)) if result.pinning is not None else None,
        Line(),
        notes(n for n in result.notes if n != result.suspect),
        Checks(tuple(_checks(result))),
        Line(weak, "note") if weak else None,
        Line(printable(result.explanation), "note") if result.explanation else None,
        Line(_verdict(result), _STYLES[result.passed]),
    )


_STYLES: dict[bool | None, Style] = {None: "strong", True: "good", False: "bad"}
_LEGEND = {
    Outcome.DROPPED: "dropped: kept at first, but held-out samples are better without it.",
    Outcome.NO_USE: "no use: all layers that it changes are pinned, and pinned layers need no "
    "remedy.",
}


def _not_tried(result: RepairResult) -> Iterator[str]:
    """Which remedies need more samples, and which were not needed."""
    told = [f"{s.remedy}: {s.reason}" for s in result.skipped if "samples" in s.reason]
    if told:
        yield f"Not tried: {'; '.join(told)}."
    begun = {step.remedy for step in result.steps}
    untried = [name for name in result.untried if name not in begun]
    if untried and result.holds and result.pinning is None:
        yield f"The target holds; not tried: {', '.join(untried)}."


def plan_text(result: RepairResult) -> str:
    """The plan, with what was done as comments."""
    rows = (f"{name}: {text}" for name, text in _rows(result) if text)
    kept = (f"{s.remedy}: {_done(s)}" for s in result.steps if s.outcome is Outcome.KEPT)
    header = [f"{_title(result)}.", *rows, *kept, _verdict(result), result.record().comment]
    if result.network.bound.corrections:
        header.append(
            "These figures are of the model with Q/DQ: weights and biases other than those in FP32 "
            "are there alone. With this plan the network is without them."
        )
    return plan_to_yaml(result.plan, result.model.path, header=header, why={})


def _title(result: RepairResult) -> str:
    return f"{printable(result.model.name)}: {result.precision.upper()} repaired without training"


def _rows(result: RepairResult) -> Iterator[tuple[str, str | None]]:
    proof, pinning = result.proof, result.pinning
    yield "target", (proof.target_text or proof.target) if result.target else None
    searched = ", and to search for pins" if proof.used_in_search else ""
    if len(proof.answers) > 1:
        searched += f"; they chose among {counted(proof.answers, 'network')}{_chosen(result)}"
    yield (
        "samples",
        f"{result.calibration_samples} to fit remedies to, {result.choosing_samples} to select "
        f"them by, {proof.samples} held out for the figures below{searched}",
    )
    if proof.reference_metric is not None:
        within = interval(proof.reference_interval)
        yield "FP32", f"{_name(result)} {score(proof.reference_metric)}{within}"
    outputs = len(result.network.bound.layers.graph.outputs)
    yield "SQNR", f"that of the worst of {outputs} outputs" if outputs > 1 else None
    yield "before", f"{_figures(result, proof.start)}{_beside_fp32(proof, proof.start)}"
    if result.applied or result.requantized:
        how = "" if result.applied else "; quantized anew, no remedy was kept"
        yield "repaired", f"{_figures(result, proof.repaired)}{_regained(result)}{how}"
    else:
        tried = "no remedy was kept" if result.steps else "no remedy was tried"
        holds = not result.steps and result.holds and proof.passed
        yield "repaired", f"unchanged: {'the target holds as it is' if holds else tried}"
    if pinning is not None and pinning.found and pinning.layers and pinning.verified_on:
        value = pinning.verified_on.answer.value
        told = None if value is None else f"{pinning.figure} {value_of(pinning, value)}"
        yield "with pins", told


def _chosen(result: RepairResult) -> str:
    """What became of the figures of a network by the samples having chosen it."""
    if result.proof.cross_validated:
        return ", so these are cross-validated"
    return ", which may flatter these" if result.applied else ""


def _name(result: RepairResult) -> str:
    """The metric's; of one in a file that of the function. A note says what that of a worst group
    is."""
    return shorten(printable(metric_of(result.metric).rpartition(":")[2]), _LONGEST_METRIC)


def _figures(result: RepairResult, figures: Figures) -> str:
    if figures.failure:
        return f"cannot be run: {printable(figures.failure)}"
    sqnr = f"SQNR {in_decibels(figures.sqnr_db)}"
    if figures.metric is None:
        return sqnr
    metric = f"{_name(result)} {score(figures.metric)}{interval(figures.interval)}"
    return f"{metric}{by_group(figures.worst_group)}, {sqnr}"


def _beside_fp32(proof: Proof, figures: Figures) -> str:
    """That a metric is better than FP32's, which people take for a mistake unless it is said."""
    worse = proof.worse(figures.metric)
    if worse is None or worse >= 0:
        return ""
    return f"; better than FP32 by {apart(worse, proof.samples, is_share=proof.metric_is_share)}"


def _regained(result: RepairResult) -> str:
    """What of the metric's loss came back, as far as the samples can tell."""
    proof = result.proof
    better = _beside_fp32(proof, proof.repaired)
    lost, regained = proof.lost_samples, proof.recovered_samples
    if lost is not None and regained is not None:
        if regained >= 0:
            return f"; {regained} of {counted(lost, 'lost sample')} recovered{better}"
        return f"; {counted(lost - regained, 'sample')} lost, {lost} before the repair"
    error, part = proof.recovered_error, proof.recovered
    if part is None or lost is not None or error is None or error >= 1:
        return _moved(proof) + better
    # So few samples that none of them matters tell nothing of chance.
    chance = f"{100 * error:.0f}"
    within = "%" if chance == "0" else f" ± {chance}%"
    return (
        f"; {100 * part:.0f}{within} of the loss recovered{better}" if part >= 0 else _moved(proof)
    )


def _moved(proof: Proof) -> str:
    """By how much the metric got better or worse where no loss was to be recovered."""
    before, after = proof.worse(proof.start.metric), proof.worse(proof.repaired.metric)
    if before is None or after is None or before == after:
        return ""
    change = "better" if after < before else "worse"
    by = apart(before - after, proof.samples, is_share=proof.metric_is_share)
    chance = proof.change_error
    unsure = chance is None or abs(before - after) <= _CHANCE * chance
    return f"; {change} by {by}{', which may be chance' if unsure else ''}"


def _undecided(result: RepairResult) -> str:
    """What more samples might show, and how to take it without them."""

    def told(name: str) -> str:
        steps = (s for s in result.steps if s.remedy == name and not s.accepted)
        needed = [s.samples_needed for s in steps if s.samples_needed is not None]
        return f"{name} (about {min(needed)} would do)" if needed else name

    few = f"{counted(result.choosing_samples, 'selection sample')} are too few to tell"
    return (
        f"{few} whether these remedies help: {', '.join(map(told, result.best_guess))}. The best "
        f"guess is that they do: {option('keep_undecided')} keeps them."
    )


def _steps(result: RepairResult) -> Block:
    """Every step, below what the network was before on the same samples: other ones than those of
    the figures above."""
    metric: Cells[Step] = (
        Column(_name(result), "number"),
        lambda s: score(s.after.metric if s.after else None),
    )
    columns: list[Cells[Step] | None] = [
        (Column("remedy"), lambda s: s.remedy),
        (Column("layers", "number"), lambda s: len(s.layers)),
        metric if result.metric else None,
        number_column("SQNR dB", lambda s: s.after.sqnr_db if s.after else None, "dB"),
        (
            Column("change", "number"),
            lambda s: (
                "0.0"
                if s.gain_db is not None and not round(s.gain_db, 1)
                else figure(s.gain_db, "gain")
            ),
        ),
        (Column("in the end"), lambda s: _OUTCOMES[s.outcome]),
        (Column("why", "rest"), _done),
    ]
    begun = {"before": result.baseline}
    if result.started is not None:
        begun["quantized anew"] = result.started
    above = [(name, score(each.metric), decibel(each.sqnr_db)) for name, each in begun.items()]
    if result.metric:
        above.insert(0, ("FP32", score(result.choosing_reference_metric), "exact"))
    kept = Outcome.KEPT
    steps = table_of(result.steps, columns, lambda s: "" if s.outcome is kept else "muted")
    first = tuple(
        (name, "", *([value] if result.metric else []), sqnr, "", "", "")
        for name, value, sqnr in above
    )
    styles: list[Style] = ["" for _ in first]
    return Table(steps.columns, (*first, *steps.rows), (*styles, *steps.styles))


def _done(step: Step) -> str:
    reason, more = _REASONS[step.reason], (step.gain_db or 0.0) <= -_SEEN
    if step.reason is Reason.NO_GAIN and more:
        reason = "more error"
    if step.reason is Reason.LESS_NOISE and more:
        reason = "less error in most samples"  # and more in all together
    few = "" if step.samples_needed is None else f": about {step.samples_needed} would do"
    what = f"; {printable(step.what)}" if step.what else ""
    return f"{reason}{few}{what}"


def _pins(result: RepairResult, pinning: BisectResult) -> Parts:
    outcome, tried = pinning.search.outcome, counted(pinning.history, "set")
    if not pinning.found and outcome is SearchOutcome.IMPOSSIBLE:
        text = "Even with everything pinned that may be pinned, the target does not hold."
        return Line(text, "bad")
    if not pinning.found:
        return Line(
            f"The search for layers to pin ended after {tried} of layers, before one met the "
            f"target. More time ({option('time_limit')}) may find one, and so may qdebug bisect.",
            "bad",
        )
    if not pinning.layers:
        return Line("Nothing had to be pinned.", "title")
    instead = " in place of the remedies" if result.reverted else ""
    pinned, cost = counted(pinning.layers, "layer"), pinning.cost
    text = (
        f"{pinned} pinned{instead}, at {share(cost.pinned_share)} of the cost of pinning every "
        f"layer to {cost.all_pinned_to}: {first_names(pinning.pinned, _MOST_NAMED)}"
    )
    early = (
        f"The search for them ended early, after {tried} of layers: with more time "
        f"({option('time_limit')}) it may find fewer."
    )
    unfinished = outcome is SearchOutcome.UNFINISHED and not pinning.minimal
    return Line(text, "title"), Line(early, "note", 2) if unfinished else None


def _checks(result: RepairResult) -> Iterator[tuple[bool, str]]:
    """The target on every sample set that it was checked on, with the value that decided."""
    if result.pinning is not None:
        for check in result.pinning.checks:
            yield check.answer.passed, checked_line(result.pinning, check, _alone(result))
        return
    proof, chosen = result.proof, (result.repaired, result.choosing_reference_metric)
    for holds, samples, (figures, full) in (
        (result.holds, f"{result.choosing_samples} selection", chosen),
        (proof.passed, f"{proof.samples} held-out", (proof.repaired, proof.reference_metric)),
    ):
        if holds is not None:
            yield holds, f"{samples} samples: {_value(result, figures, full)}"


def _alone(result: RepairResult) -> str:
    """What the search for pins started from."""
    return "remedies alone" if result.applied else "nothing pinned"


def _value(result: RepairResult, figures: Figures, full: float | None) -> str:
    text = _figures(result, figures)
    if result.target.startswith("metric") and not figures.failure:
        text = f"{_name(result)} {score(figures.metric)}"
    return text if full is None else f"{text}, FP32 {_name(result)} {score(full)}"


def _verdict(result: RepairResult) -> str:
    if result.passed is None:
        return _improved(result)
    kept, target = ", ".join(result.accepted), result.proof.target_text or result.proof.target
    how = kept or ("no remedy" if result.steps or result.pinned else "nothing changed")
    if result.requantized:
        how = "the model quantized anew"
    pinned = ", nothing pinned" if kept else ""
    if result.pinned:
        pinned = f" and {counted(result.pinned, 'layer')} pinned"
    return f"{'PASSED' if result.passed else 'NOT REACHED'} with {how}{pinned}: {target}."


def _improved(result: RepairResult) -> str:
    """The verdict where no target was set."""
    proof, start, after = result.proof, result.proof.start, result.proof.repaired
    change = f"SQNR {_change(start.sqnr_db, after.sqnr_db)}"
    if start.metric is not None and after.metric is not None:
        change = f"{_name(result)} {score(start.metric)} to {score(after.metric)}, {change}"
    if result.accepted:
        worse = (proof.worse(after.metric) or 0.0) > (proof.lost or 0.0)
        how = "LESS ERROR" if worse else "REPAIRED"
        return f"{how} with {', '.join(result.accepted)}: {change} on held-out samples."
    if result.requantized:
        return f"QUANTIZED ANEW, without a remedy: {change} on held-out samples."
    if any(step.outcome is Outcome.DROPPED for step in result.steps):
        return "UNCHANGED: what helped on the selection samples did harm on the held-out ones."
    if result.best_guess:
        first = result.best_guess[0]
        gain = max(s.gain_db or 0.0 for s in result.steps if s.remedy == first)
        return (
            f"UNDECIDED: the samples are too few to tell; the best guess is {first} "
            f"({figure(gain, 'gain')} dB on the selection samples)."
        )
    if not result.steps:
        return "UNCHANGED: no remedy was tried to its end."
    which = "no remedy that was tried" if result.untried else "no remedy"
    return f"UNCHANGED: {which} makes the network measurably better."


def _change(before: float, after: float) -> str:
    first = decibel(before) if math.isfinite(after) else in_decibels(before)
    return f"{first} to {in_decibels(after)}"
