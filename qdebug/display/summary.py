"""The sentence that opens a comparison: which layers, why, and what keeping them in FP32 gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qdebug.display.words import decibel, in_decibels, share
from qdebug.measure.result import CompareResult
from qdebug.measure.summary import Summary
from qdebug.wording import counted, printable

REASONS = {
    "accumulation": "errors come in with what they read",
    "amplification": "they amplify the errors that they read",
    "clipping": "their ranges clip values",
    "coarse-step": "a few values stretch the ranges of all others",
    "fp16-overflow": "values exceed the maximum of FP16",
    "fp16-sums": "FP16 kernels round partial sums",
    "fp16-underflow": "values are too small for FP16",
    "index-flip": "an index is chosen otherwise",
    "other-weights": "their weights were changed, not only rounded",
    "rounding": "so few steps are too coarse for them",
    "stale-calibration": "their ranges seem to be of another network or other data",
    "unrepresentative-calibration": "the calibration samples are unlike these samples",
    "weight-range": "one scale serves weight channels of unequal range",
}
"""A clause for each cause that a comparison without an engine finds."""
_MOST_NAMES = 3
_MOST = 0.5
_LEAST_SHARE = 0.005


def sentence(result: CompareResult) -> str:
    """The sentence, "" where nothing was measured to say it."""
    summary = result.summary
    if summary is None:
        return ""
    where = " in the simulation" if result.engine and result.engine.executed else ""
    if not summary.layers:
        return f"{_unharmed(result, summary)}{where}."
    measured = f"measured on {counted(summary.samples, 'sample')}{where}"
    task = summary.metric
    said = f"{_blamed(result, summary)}; {_restored(summary)}, {measured}."
    if task is None or not task.kept:
        return said[0].upper() + said[1:] if said.startswith("no ") else said
    same = f"{precisions(result)} keeps {printable(task.name)} at {task.reference:.4f}"
    return f"{same}; {said}"


def precisions(result: CompareResult) -> str:
    """The precisions that layers run in, the plan's own first."""
    used = {str(layer.precision) for layer in result.layers}
    others = sorted(used - {result.precision, "fp32"})
    return " + ".join(p.upper() for p in [result.precision, *others])


def _unharmed(result: CompareResult, summary: Summary) -> str:
    change = "does not change the outputs"
    if math.isfinite(summary.sqnr_db):
        at = in_decibels(summary.sqnr_db)
        change = f"changes the outputs by less than a thousandth (SQNR {at})"
    task = summary.metric
    same = f" and keeps {printable(task.name)} at {task.reference:.4f}" if task else ""
    return f"{precisions(result)} {change}{same}"


def _joined(layers: Sequence[str]) -> str:
    names = [printable(name) for name in layers[:_MOST_NAMES]]
    if len(layers) > _MOST_NAMES:
        names.append(f"{len(layers) - _MOST_NAMES} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _blamed(result: CompareResult, summary: Summary) -> str:
    names = _joined(summary.layers)
    many, used = len(summary.layers) > 1, precisions(result)
    because = f", because {REASONS[summary.cause]}" if summary.cause else ""
    if math.isnan(summary.sqnr_db):
        return f"{used} gives NaN or Inf at the outputs{because} in {names}"
    part = summary.output_share
    if part is not None and part >= _MOST:
        make = "make" if many else "makes"
        return f"{names} {make} {share(part)} of {used}'s error at the outputs{because}"
    makes = "none" if part is None or part < _LEAST_SHARE else share(part)
    s = "" if many else "s"
    if result.effect is not None and result.effect.grouped_layers:  # others may cost more
        measured = summary.of_layers - result.effect.grouped_layers
        found = f"of the {counted(measured, 'layer')} measured one by one"
        return f"{names}, the costliest {found}, make{s} {makes} of {used}'s error at the outputs"
    count = len(summary.layers)
    most = f"the {count} of {summary.of_layers} that cost most" if many else "the worst"
    return (
        f"no small group of layers makes {used}'s error at the outputs: {most} ({names}) "
        f"make{s} {makes} of it"
    )


def _restored(summary: Summary) -> str:
    kept, they = "kept in FP32", "it"
    if len(summary.layers) > 1:
        kept, they = "kept in FP32 together", "they"
    before, after = summary.sqnr_db, summary.restored_sqnr_db
    if after is None or math.isnan(after):
        return f"{kept}, {they} leave{'s' if they == 'it' else ''} NaN or Inf there"
    moved, same = [], []
    task = summary.metric
    if task is not None and task.restored is not None and not task.kept:
        name, fp32 = printable(task.name), f"({task.reference:.4f} in FP32)"
        planned, restored = f"{task.planned:.4f}", f"{task.restored:.4f}"
        if planned == restored:
            same.append(f"{name} stays at {planned} {fp32}")
        else:
            moved.append(f"{name} from {planned} to {restored} {fp32}")
    if math.isnan(before):
        moved.append(f"finite outputs (SQNR {in_decibels(after)})")
    elif decibel(before) == decibel(after):
        same.append(f"SQNR stays at {in_decibels(after)}")
    else:
        start = decibel(before) if math.isfinite(after) else in_decibels(before)
        moved.append(f"SQNR from {start} to {in_decibels(after)}")
    bring = f"{kept}, {they} bring{'s' if they == 'it' else ''}"
    stays = " and ".join(same)
    if not moved:
        return f"{bring} nothing: {stays}"
    return f"{bring} {' and '.join(moved)}" + (f", while {stays}" if same else "")
