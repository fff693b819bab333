"""What a person sees of a repair."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from qdebug.decide.remedies.result import (
    Figures,
    Outcome,
    Proof,
    Reason,
    RepairResult,
    Step,
)
from qdebug.decide.search.find import Outcome as SearchOutcome
from qdebug.display.bisect import checked_line, proves_nothing, value_of
from qdebug.display.blocks import (
    Block,
    Checks,
    Column,
    Facts,
    Line,
    Style,
    Table,
    notes,
    table_of,
)
from qdebug.display.names import shorten
from qdebug.metrics.tasks.worst_group import metric_of
from qdebug.plan.planfile import plan_to_yaml
from qdebug.results.words import apart, decibel, first_names, in_decibels, interval, score, share
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
    blocks: list[Block] = [Line(_title(result), "title")]
    blocks += notes([result.suspect] if result.suspect else [])
    blocks.append(Facts(tuple(_rows(result))))
    if result.steps:
        on = counted(result.choosing_samples, "selection sample")
        blocks += [Line(), Line(f"Remedies in the order tried, on {on}", "title"), _steps(result)]
        if any(step.outcome is Outcome.DROPPED for step in result.steps):
            why = "kept at first, but held-out samples are better without it."
            blocks.append(Line(f"dropped: {why}", indent=2))
        if any(step.outcome is Outcome.NO_USE for step in result.steps):
            why = "all layers that it changes are pinned, and pinned layers need no remedy."
            blocks.append(Line(f"no use: {why}", indent=2))
    if result.best_guess:
        blocks.append(Line(_undecided(result), "note", 2))
    blocks += (Line(printable(text), "muted", 2) for text in _not_tried(result))
    if result.pinning is not None:
        blocks += [Line(), *_pins(result)]
    blocks.append(Line())
    blocks += notes(n for n in result.notes if n != result.suspect)
    blocks.append(Checks(tuple(_checks(result))))
    if result.pinning is not None and (weak := proves_nothing(result.pinning, _alone(result))):
        blocks.append(Line(weak, "note"))
    if result.explanation:
        blocks.append(Line(printable(result.explanation), "note"))
    blocks.append(Line(_verdict(result), _style(result)))
    return blocks


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
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    kept = (step for step in result.steps if step.outcome is Outcome.KEPT)
    header += [f"{step.remedy}: {_done(step)}" for step in kept]
    header += [_verdict(result), result.record().comment]
    if result.network.bound.corrections:
        header.append(
            "These figures are of the model with Q/DQ: weights and biases other than those in FP32 "
            "are there alone. With this plan the network is without them."
        )
    return plan_to_yaml(result.plan, result.model.path, header=header, why={})


def _title(result: RepairResult) -> str:
    return f"{printable(result.model.name)}: {result.precision.upper()} repaired without training"


def _rows(result: RepairResult) -> Iterator[tuple[str, str]]:
    proof = result.proof
    if result.target:
        yield "target", proof.target_text or proof.target
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
    if (outputs := len(result.network.bound.layers.graph.outputs)) > 1:
        yield "SQNR", f"that of the worst of {outputs} outputs"
    before = f"{_figures(result, proof.start)}{_beside_fp32(proof, proof.start)}"
    yield "before", before
    if result.applied:
        yield "repaired", f"{_figures(result, proof.repaired)}{_regained(result)}"
    elif result.requantized:
        how = "; quantized anew, no remedy was kept"
        yield "repaired", f"{_figures(result, proof.repaired)}{_regained(result)}{how}"
    else:
        tried = "no remedy was kept" if result.steps else "no remedy was tried"
        holds = not result.steps and result.holds and proof.passed
        yield "repaired", f"unchanged: {'the target holds as it is' if holds else tried}"
    if result.pinning is not None and result.pinning.found:
        check = result.pinning.verified_on
        if check is not None and check.answer.value is not None and result.pinning.layers:
            value = value_of(result.pinning, check.answer.value)
            yield "with pins", f"{result.pinning.figure} {value}"


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
    text = f"SQNR {in_decibels(figures.sqnr_db)}"
    if figures.metric is not None:
        worst = figures.worst_group
        group = f" (by '{printable(worst)}', the worst group)" if worst else ""
        text = f"{_name(result)} {score(figures.metric)}{interval(figures.interval)}{group}, {text}"
    return text


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
    if proof.recovered is None or lost is not None:
        return _moved(proof) + better
    error = proof.recovered_error
    if error is None or error >= 1:
        return _moved(proof) + better
    part = f"{100 * proof.recovered:.0f}"
    chance = f"{100 * error:.0f}"
    # So few samples that none of them matters tell nothing of chance.
    part += "%" if chance == "0" else f" ± {chance}%"
    return f"; {part} of the loss recovered{better}" if proof.recovered >= 0 else _moved(proof)


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
    needed: dict[str, int] = {}
    for step in result.steps:
        if step.samples_needed is not None and not step.accepted:
            before = needed.get(step.remedy, step.samples_needed)
            needed[step.remedy] = min(before, step.samples_needed)
    names = [
        f"{name} (about {needed[name]} would do)" if name in needed else name
        for name in result.best_guess
    ]
    few = f"{counted(result.choosing_samples, 'selection sample')} are too few to tell"
    return (
        f"{few} whether these remedies help: {', '.join(names)}. The best guess is that they do: "
        f"{option('keep_undecided')} keeps them."
    )


def _steps(result: RepairResult) -> Block:
    """Every step, below what the network was before on the same samples: other ones than those of
    the figures above."""
    columns: list[tuple[Column, Callable[[Step], str]]] = [
        (Column("remedy"), lambda s: s.remedy),
        (Column("layers", "number"), lambda s: str(len(s.layers))),
        (Column("SQNR dB", "number"), lambda s: decibel(s.after.sqnr_db) if s.after else "–"),
        (Column("change", "number"), _gain),
        (Column("in the end"), lambda s: _OUTCOMES[s.outcome]),
        (Column("why", "rest"), _done),
    ]
    begun = {"before": result.baseline}
    if result.started is not None:
        begun["quantized anew"] = result.started
    rows = [[name, "", decibel(each.sqnr_db), "", "", ""] for name, each in begun.items()]
    if result.metric:
        columns.insert(2, (Column(_name(result), "number"), _metric))
        for row, each in zip(rows, begun.values(), strict=True):
            row.insert(2, score(each.metric))
        full = score(result.choosing_reference_metric)
        rows.insert(0, ["FP32", "", full, "exact", "", "", ""])
    kept = Outcome.KEPT
    steps = table_of(result.steps, columns, lambda s: "" if s.outcome is kept else "muted")
    first = tuple(tuple(row) for row in rows)
    styles: list[Style] = ["" for _ in first]
    return Table(steps.columns, (*first, *steps.rows), (*styles, *steps.styles))


def _metric(step: Step) -> str:
    return score(step.after.metric if step.after else None)


def _gain(step: Step) -> str:
    if step.gain_db is None:
        return "–"
    shown = round(step.gain_db, 1)
    return f"{shown:+.1f}" if shown else "0.0"


def _done(step: Step) -> str:
    reason = _REASONS[step.reason]
    if step.reason is Reason.NO_GAIN and (step.gain_db or 0.0) <= -_SEEN:
        reason = "more error"
    if step.reason is Reason.LESS_NOISE and (step.gain_db or 0.0) <= -_SEEN:
        reason = "less error in most samples"  # and more in all together
    if step.samples_needed is not None:
        reason += f": about {step.samples_needed} would do"
    return f"{reason}; {printable(step.what)}" if step.what else reason


def _pins(result: RepairResult) -> Iterator[Block]:
    pinning = result.pinning
    assert pinning is not None
    if not pinning.found:
        yield Line(_no_pins(result), "bad")
        return
    count = len(pinning.layers)
    if not count:
        yield Line("Nothing had to be pinned.", "title")
        return
    cost = share(pinning.cost.pinned_share)
    named = first_names(pinning.pinned, _MOST_NAMED)
    instead = " in place of the remedies" if result.reverted else ""
    if pinning.pins_everything:
        every = f"All {count} layers that may be pinned are{instead}, to {pinning.raised_to}."
        yield Line(every, "title")
    else:
        text = f"{counted(count, 'layer')} pinned{instead}, at {cost} of the cost of pinning every"
        yield Line(f"{text} layer to {pinning.cost.all_pinned_to}: {named}", "title")
    if pinning.search.outcome is SearchOutcome.UNFINISHED and not pinning.minimal:
        tried = counted(pinning.history, "set")
        yield Line(
            f"The search for them ended early, after {tried} of layers: with more time "
            f"({option('time_limit')}) it may find fewer.",
            "note",
            2,
        )


def _no_pins(result: RepairResult) -> str:
    """Why there are no pins: that none suffice, and that the search had no time to find some, are
    two things."""
    pinning = result.pinning
    assert pinning is not None
    if pinning.search.outcome is SearchOutcome.IMPOSSIBLE:
        return "Even with everything pinned that may be pinned, the target does not hold."
    tried = counted(len(pinning.history), "set")
    return (
        f"The search for layers to pin ended after {tried} of layers, before one met the target. "
        f"More time ({option('time_limit')}) may find one, and so may qdebug bisect."
    )


def _checks(result: RepairResult) -> Iterator[tuple[bool, str]]:
    """The target on every sample set that it was checked on, with the value that decided."""
    if result.pinning is not None:
        for check in result.pinning.checks:
            yield check.answer.passed, checked_line(result.pinning, check, _alone(result))
        return
    if result.holds is not None:
        text = _value(result, result.repaired, result.choosing_reference_metric)
        yield result.holds, f"{result.choosing_samples} selection samples: {text}"
    if result.proof.passed is not None:
        text = _value(result, result.proof.repaired, result.proof.reference_metric)
        yield result.proof.passed, f"{result.proof.samples} held-out samples: {text}"


def _alone(result: RepairResult) -> str:
    """What the search for pins started from."""
    return "remedies alone" if result.applied else "nothing pinned"


def _value(result: RepairResult, figures: Figures, full: float | None) -> str:
    text = _figures(result, figures)
    if result.target.startswith("metric") and not figures.failure:
        text = f"{_name(result)} {score(figures.metric)}"
    return text if full is None else f"{text}, FP32 {_name(result)} {score(full)}"


def _style(result: RepairResult) -> Style:
    if result.passed is None:
        return "strong"
    return "good" if result.passed else "bad"


def _verdict(result: RepairResult) -> str:
    if result.passed is None:
        return _improved(result)
    kept, target = ", ".join(result.accepted), result.proof.target_text or result.proof.target
    pins = counted(len(result.pinned), "layer")
    how = kept or ("no remedy" if result.steps or result.pinned else "nothing changed")
    if result.requantized:
        how = "the model quantized anew"
    pinned = f" and {pins} pinned" if result.pinned else ", nothing pinned" if kept else ""
    if result.pinning is not None and result.pinning.pins_everything:
        pinned += ", which are all: nothing is left in lower precision"
    if result.passed:
        return f"PASSED with {how}{pinned}: {target}."
    return f"NOT REACHED with {how}{pinned}: {target}."


def _improved(result: RepairResult) -> str:
    """The verdict where no target was set."""
    proof = result.proof
    change = f"SQNR {_change(proof.start.sqnr_db, proof.repaired.sqnr_db)}"
    if proof.start.metric is not None and proof.repaired.metric is not None:
        moved = f"{score(proof.start.metric)} to {score(proof.repaired.metric)}"
        change = f"{_name(result)} {moved}, {change}"
    if result.accepted:
        worse = (proof.worse(proof.repaired.metric) or 0.0) > (proof.lost or 0.0)
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
            f"({gain:+.1f} dB on the selection samples)."
        )
    if not result.steps:
        return "UNCHANGED: no remedy was tried to its end."
    if result.untried:
        return "UNCHANGED: no remedy that was tried makes the network measurably better."
    return "UNCHANGED: no remedy makes the network measurably better."


def _change(before: float, after: float) -> str:
    first = decibel(before) if math.isfinite(after) else in_decibels(before)
    return f"{first} to {in_decibels(after)}"
