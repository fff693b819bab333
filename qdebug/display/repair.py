"""What a person sees of a repair."""

from __future__ import annotations

from collections.abc import Iterator

from qdebug.display.bisect import checked_line
from qdebug.display.blocks import Block, Checks, Column, Facts, Line, Style, notes, table_of
from qdebug.display.words import decibel, first_names, in_decibels, number, share
from qdebug.plan.planfile import plan_to_yaml
from qdebug.remedies.result import Figures, Reason, RepairResult, Step
from qdebug.wording import counted, printable

_MOST_NAMED = 3
_REASONS = {
    Reason.METRIC: "better",
    Reason.LESS_NOISE: "less error",
    Reason.NO_GAIN: "no gain beyond chance",
    Reason.METRIC_FELL: "the metric fell",
    Reason.FAILS: "cannot be run",
    Reason.NOTHING_CHANGED: "changes nothing",
}


def view(result: RepairResult) -> list[Block]:
    """What was tried and what it gave, what had to be pinned, and the proof; the verdict last."""
    blocks: list[Block] = [Line(_title(result), "title"), Facts(tuple(_rows(result)))]
    if result.steps:
        heading = f"Remedies, judged on {counted(result.choosing_samples, 'selection sample')}"
        heading += ", all dropped in the end" if result.reverted else ""
        blocks += [Line(), Line(heading, "title"), _steps(result)]
    told = [s for s in result.skipped if "samples" in s.reason]
    if told:
        skipped = "; ".join(f"{s.remedy}: {s.reason}" for s in told)
        blocks.append(Line(f"Not tried: {printable(skipped)}.", "muted", indent=2))
    if result.pinning is not None:
        blocks += [Line(), *_pins(result)]
    blocks.append(Line())
    blocks += notes(result.notes)
    if result.pinning is not None:
        alone = "nothing pinned" if result.reverted else "remedies alone"
        checks = ((c.answer.passed, checked_line(c, alone)) for c in result.pinning.checks)
        blocks.append(Checks(tuple(checks)))
    elif result.proof.passed is not None:
        blocks.append(Checks(((result.proof.passed, _proven(result)),)))
    if result.explanation:
        blocks.append(Line(printable(result.explanation), "note"))
    blocks.append(Line(_verdict(result), _style(result)))
    return blocks


def plan_text(result: RepairResult) -> str:
    """The plan, with what was done as comments."""
    header = [f"{_title(result)}.", *(f"{name}: {text}" for name, text in _rows(result))]
    header += [f"{step.remedy}: {_done(step)}" for step in result.steps if step.accepted]
    header.append(_verdict(result))
    if result.network.bound.corrections:
        header.append(
            "These figures are of the model with Q/DQ: weights and biases other than those in FP32 "
            "are there alone. With this plan the network is without them."
        )
    return plan_to_yaml(result.plan, result.model.path, header=header, why={})


def _title(result: RepairResult) -> str:
    name = printable(result.model.name)
    target = f" such that {result.proof.target}" if result.target else ""
    return (
        f"{name}: {result.precision.upper()} repaired with "
        f"{counted(result.calibration_samples, 'sample')}{target}"
    )


def _rows(result: RepairResult) -> Iterator[tuple[str, str]]:
    proof = result.proof
    where = f"on {counted(proof.samples, 'held-out sample')}"
    if proof.used_in_search:
        where += ", which the search for pins used"
    if proof.reference_metric is not None:
        yield "FP32", f"{result.metric} {number(proof.reference_metric, 6)}"
    yield "before", f"{_figures(result, proof.start)}, {where}"
    after = _figures(result, proof.repaired)
    if proof.recovered is not None:
        after += f": {share(proof.recovered)} of the loss recovered"
    yield "repaired", after
    if result.pinning is not None and result.pinning.found:
        check = result.pinning.verified_on
        if check is not None and check.answer.value is not None:
            yield "with pins", f"{result.pinning.figure} {number(check.answer.value, 6)}"
    if result.resumed:
        yield "resumed", f"after {counted(result.resumed, 'step')} of an earlier run"


def _figures(result: RepairResult, figures: Figures) -> str:
    if figures.failure:
        return f"cannot be run: {printable(figures.failure)}"
    text = f"SQNR {in_decibels(figures.sqnr_db)}"
    if figures.metric is not None:
        text = f"{result.metric} {number(figures.metric, 6)}, {text}"
    return text


def _steps(result: RepairResult) -> Block:
    columns = [
        (Column("remedy"), lambda s: s.remedy),
        (Column("layers", "number"), lambda s: str(len(s.layers))),
        (Column("SQNR dB", "number"), lambda s: decibel(s.after.sqnr_db) if s.after else "–"),
        (Column("gain", "number"), _gain),
        (Column("kept"), lambda s: "yes" if s.accepted else "no"),
        (Column("why", "rest"), _done),
    ]
    if result.metric:
        columns.insert(2, (Column(result.metric, "number"), _metric))
    return table_of(result.steps, columns, lambda s: "" if s.accepted else "muted")


def _metric(step: Step) -> str:
    return number(step.after.metric if step.after else None)


def _gain(step: Step) -> str:
    return "–" if step.gain_db is None else f"{step.gain_db:+.1f}"


def _done(step: Step) -> str:
    reason = _REASONS[step.reason]
    return f"{reason}; {printable(step.what)}" if step.what else reason


def _pins(result: RepairResult) -> Iterator[Block]:
    pinning = result.pinning
    assert pinning is not None
    if not pinning.found:
        yield Line("No set of layers to pin was found that reaches the target.", "bad")
        return
    count = len(pinning.layers)
    cost = share(pinning.cost.pinned_share)
    named = f": {first_names(pinning.pinned, _MOST_NAMED)}" if count else ""
    text = f"Pinned besides: {counted(count, 'layer')}{named}; {cost} of the cost of pinning all"
    yield Line(text, "title")


def _proven(result: RepairResult) -> str:
    return f"{result.proof.samples} held-out samples: {result.proof.target}"


def _style(result: RepairResult) -> Style:
    if result.passed is None:
        return "strong"
    return "good" if result.passed else "bad"


def _verdict(result: RepairResult) -> str:
    kept, target = ", ".join(result.accepted) or "no remedy", result.proof.target
    if result.passed is None:
        return f"REPAIRED by {kept}." if result.accepted else "NOTHING HELPED: no remedy was kept."
    pins = counted(len(result.pinned), "layer")
    pinned = f" and {pins} pinned" if result.pinned else ", nothing pinned"
    if result.passed:
        return f"PASSED: {target} holds with {kept}{pinned}."
    return f"NOT REACHED: {target} does not hold everywhere with {kept}{pinned}."
