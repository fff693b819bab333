"""What opens a comparison: what was lost, which few layers in FP32 bring how much of it back, and
why."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from qdebug.analyse.causes.decisions import INDEX_FLIP
from qdebug.analyse.causes.quantization import ACCUMULATION
from qdebug.display.framework import unlike_export
from qdebug.display.groups import worst_group
from qdebug.formats.registry import RANGED
from qdebug.results.compare import CompareResult, TaskResult
from qdebug.results.summary import Elsewhere, Finding, Origin, Summary
from qdebug.results.words import decibel, figure, in_decibels
from qdebug.wording import counted, option, printable

REASONS = {
    "accumulation": "errors come in with what the layers read",
    "amplification": "small errors in what the layers read are amplified",
    "bias-saturation": "an INT32 bias is cut: its scale is too small",
    "clipping": "values beyond the calibrated range are clipped",
    "coarse-step": "a few large values stretch the range, so one INT8 step is coarse for the rest",
    "fp16-overflow": "values exceed the largest number of FP16, 65504",
    "fp16-sums": "FP16 kernels round partial sums",
    "fp16-underflow": "values are too small for FP16",
    "fp8-underflow": "values are too small for FP8 beside the range",
    "bf16-rounding": "BF16 has too few digits for the values",
    "index-flip": "other indices are chosen than in FP32",
    "invalid-scale": "a scale is zero, negative or no number",
    "mixed-scales": "one scale serves parts of unlike scale",
    "other-weights": "the weights were changed, not only rounded",
    "rounding": "one INT8 step is large beside typical values, although the range fits",
    "stale-calibration": "the ranges do not fit these samples: they seem to be from other data, "
    "other preprocessing or another network",
    "unrepresentative-calibration": "the calibration samples differ from these samples",
    "weight-range": "one scale serves weight channels of very different range",
    "weight-rounding": "rounding the weights, although their scales fit them",
}
"""A clause for each cause that a comparison without an engine finds."""
_STALE = "stale-calibration"
_MOST_NAMES = 3
_MUCH_DB = 3.0
"""Layers that bring less do not explain the error: it is halved at 3 dB."""
_NEARLY_ALL = 0.75
"""Of the layers: to keep so many in FP32 is to give INT8 up."""


def sentence(result: CompareResult) -> str:
    """The sentences, "" where nothing was measured to say them. All figures are of all samples."""
    # That the export is wrong, before anything is said of the quantization.
    told = unlike_export(result.framework) if result.framework else ""
    against = "All other figures are those of this ONNX model, against itself in FP32."
    return _said(told and f"{told} {against}", _of_quantization(result))


def _said(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _of_quantization(result: CompareResult) -> str:
    """What the quantization does, by the model's own FP32."""
    summary = result.summary
    if result.reference_in_fp16:
        return (
            f"FP32 is not known: {printable(result.model.name)} is in FP16 itself. The figures "
            "below are those against ONNX Runtime's own computation of it in FP16; "
            f"{option('reference', 'FP32.onnx')} compares it with FP32."
        )
    if summary is None:
        return ""
    suspect, elsewhere = _stale(result), summary.elsewhere
    said = [_chance(result), _lost(result, summary), _reordered(result), suspect]
    if elsewhere is not None and elsewhere.origin is not Origin.DATA:
        said.append(_elsewhere(result, elsewhere))
    elif elsewhere is not None:
        said.append(_cured(result) if suspect else "")
    elif summary.layers:
        said += [_cured(result), _restored(result, summary)]
        told = suspect and summary.cause == _STALE
        said.append("" if told else _cause(result, summary))
    return _said(*said, worst_group(result))


def precisions(result: CompareResult) -> str:
    """The precisions that layers run in, the plan's own first."""
    used = {str(layer.precision) for layer in result.layers}
    others = sorted(used - {result.precision, "fp32"})
    return " + ".join(p.upper() for p in [result.precision, *others])


def change(task: TaskResult, samples: int) -> str:
    """By how much the metric differs from FP32's; of a share of samples also by how many."""
    difference = task.candidate - task.reference
    if task.candidate == task.reference:
        return "no change"
    of = counted(samples, "sample")
    many = f", {abs(round(difference * samples))} of {of}" if task.is_share else ""
    return figure(difference, "change") + many


def _chance(result: CompareResult) -> str:
    task = result.metric
    if task is None or not task.reference_is_chance(result.samples):
        return ""
    reached, chance = figure(task.reference, "metric"), figure(task.chance, "metric")
    return (
        f"FP32 itself is no better than guessing: {printable(task.name)} {reached}, where chance "
        f"gives {chance}. Check the preprocessing and the labels first: `qdebug check` does."
    )


def _elsewhere(result: CompareResult, found: Elsewhere) -> str:
    """That kernels, or another model, are the reason."""
    share = "" if found.share is None else f", {found.share:.0%} of the error"
    what = "The engine's kernels are" if found.origin is Origin.KERNEL else "The model itself is"
    not_this = f"not {result.precision.upper()}"
    return f"{what} the reason{share}, {not_this}: {printable(found.evidence)}. {found.remedy}"


def _reordered(result: CompareResult) -> str:
    """That what a decision chooses only comes in another order, which the SQNR counts as an
    error."""
    flips = (c.brief for x in result.layers for c in x.causes if c.label == INDEX_FLIP)
    return next((f"{printable(brief)}." for brief in flips if brief), "")


def _stale(result: CompareResult) -> str:
    """That the ranges are not those of the samples: until that is mended no layer is to blame."""
    found = (c for x in result.layers for c in x.causes if c.label == _STALE)
    cause = next(found, None)
    if cause is None:
        return ""
    return f"First suspect ({_STALE}): {printable(cause.brief or REASONS[_STALE])}. {cause.remedy}"


def _lost(result: CompareResult, summary: Summary) -> str:
    """What the precision does to the metric; without one, to the outputs."""
    where = " in the simulation" if result.engine and result.engine.executed else ""
    used, on = precisions(result), f"{where} ({counted(summary.samples, 'sample')})"
    at, task = in_decibels(summary.sqnr_db), summary.metric  # of the simulation, as the SQNR is
    if math.isnan(summary.sqnr_db):
        return f"{used} gives NaN or Inf at the outputs{on}."
    name = printable(task.name) if task else ""
    planned = figure(task.planned if task else None, "metric")
    full = figure(task.reference if task else None, "metric")
    if not summary.layers:
        changes = "does not change the outputs"
        if math.isfinite(summary.sqnr_db):
            changes = f"changes the outputs by less than a thousandth of their size (SQNR {at})"
        return f"{used} {changes}{f' and keeps {name} at {full}' if task else ''}{on}."
    if task is None:
        return f"{used} leaves an SQNR of {at} at the outputs{_worst_part(result)}{on}."
    if task.kept:
        return f"{used} keeps {name} at {full}{on}."
    gained, certain = _better(result, task.planned, task.reference), is_certain(result.metric)
    if gained is not None and gained > 0 and certain and not _chance(result):
        return f"{used} scores better than FP32 in {name}: {planned} against {full}{on}."
    return f"{used} takes {name} from {full} to {planned}{on}{_unsure(result)}."


def _unsure(result: CompareResult) -> str:
    return "" if is_certain(result.metric) else ", which may be chance"


def is_certain(task: TaskResult | None) -> bool:
    """Whether a change of the metric is more than chance, as far as that was tested."""
    p_value = task.uncertainty.p_value if task and task.uncertainty else None
    return p_value is None or p_value < _CERTAIN


_CERTAIN = 0.05
"""A p-value below: the usual level of significance."""


def _worst_part(result: CompareResult) -> str:
    """Which part of the outputs the SQNR is about; "" for all of them."""
    worst = [part for output in result.outputs if (part := output.worst_part)]
    if not worst or (result.engine and result.engine.executed):  # then it is the simulation's
        return ""
    if len(result.outputs) > 1:
        return ", each by its worst part"
    return f", in the worst part of them ({printable(worst[0].branch)}, {worst[0].places})"


def _cured(result: CompareResult) -> str:
    """What another way to quantize the model gives, with every layer still quantized: it costs less
    than any layer in FP32."""
    cure = next(iter(result.cures), None)
    if cure is None or not cure.helps:
        return ""
    task, metric = result.metric, ""
    if task is not None and cure.metric is not None:
        if _worsens(result, cure.metric, task.candidate, task.reference):
            return ""
        verb, at = ("leaves", "at") if cure.metric == task.candidate else ("takes", "to")
        metric = f"{verb} {printable(task.name)} {at} {figure(cure.metric, 'metric')}"
    on = f" ({counted(cure.samples, 'sample')})" if cure.samples < result.samples else ""
    gives = _joining(metric, cure.before_sqnr_db, cure.sqnr_db, told=task is None and not on)
    kept = f"with every layer still in {result.precision.upper()}"
    return f"The cheapest fix, {cure.what}, {gives}{on}, {kept}."


def _joined(layers: Sequence[str]) -> str:
    names = [printable(name) for name in layers[:_MOST_NAMES]]
    if len(layers) > _MOST_NAMES:
        names.append(f"{len(layers) - _MOST_NAMES} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _restored(result: CompareResult, summary: Summary) -> str:
    """What the layers in FP32 give, together."""
    before, after, count = summary.sqnr_db, summary.restored_sqnr_db, len(summary.layers)
    named, of = _joined(summary.layers), f"of {summary.of_layers} layers"
    keeping = f"eeping {count} {of} in FP32 ({named})"
    if after == math.inf and count == summary.of_layers:
        which = "the only quantized layer" if count == 1 else "all quantized layers"
        return f"The error comes from {which} ({named})."
    if after is None or math.isnan(after):
        return f"K{keeping} leaves NaN or Inf there."
    task, metric = _metric_too(result, summary), summary.metric
    gives = _joining(task, before, after, told=metric is None)
    if math.isnan(before):
        return f"K{keeping} {gives}."
    falls = decibel(after) != decibel(before) and after < before
    if metric is not None and metric.restored is not None and _harms_metric(result, summary):
        name = printable(metric.name)
        known = result.metric is not None and result.metric.higher_is_better is not None
        helps = f"improve {name}" if known else f"bring {name} nearer to FP32's"
        moved = _moved(before, after, told=False)
        takes = f"takes {name} to {figure(metric.restored, 'metric')}{_unsure(result)}"
        if falls:
            return f"K{keeping} does not help: it {moved}, and {takes}."
        return f"Less noise does not {helps}: k{keeping} {moved}, but {takes}."
    gives, many = f"{gives}.", _many(summary)
    if not many:
        return f"K{keeping} {gives}"
    mends = summary.finding is Finding.SPREAD and any(x.precision in RANGED for x in result.layers)
    tries = " `qdebug repair` tries changes that help many at once." if mends else ""
    if falls and not task:
        return f"{many}: the first of them, in FP32, do not raise the SQNR.{tries}"
    return f"{many}: k{keeping} {gives}{tries}"


def _many(summary: Summary) -> str:
    """That many layers make the error; "" where few do."""
    if len(summary.layers) > 1 and len(summary.layers) >= _NEARLY_ALL * summary.of_layers:
        return "No small group of layers makes the error"
    if summary.finding is Finding.FEW_LAYERS:
        return ""
    one_cause = ", most of it for one cause" if summary.finding is Finding.ONE_CAUSE else ""
    return f"The error is spread over many layers{one_cause}"


def _better(result: CompareResult, value: float, other: float) -> float | None:
    """By how much one value of the metric is better than another; None where it is not known which
    way is better."""
    return result.metric.better(value, other) if result.metric else None


def _harms_metric(result: CompareResult, summary: Summary) -> bool:
    """Whether the metric is worse with these layers in FP32."""
    task = summary.metric
    if task is None or task.restored is None or task.kept:
        return False
    return _worsens(result, task.restored, task.planned, task.reference)


def _worsens(result: CompareResult, value: float, before: float, reference: float) -> bool:
    """Whether one value of the metric is worse than the one before; where it is not known which way
    is better, whether it is farther from FP32's."""
    gained = _better(result, value, before)
    if gained is not None:
        return gained < 0
    return abs(value - reference) > abs(before - reference)


def _metric_too(result: CompareResult, summary: Summary) -> str:
    task = summary.metric
    if task is None or task.restored is None:
        return ""
    name, value = printable(task.name), figure(task.restored, "metric")
    if task.restored == task.planned:
        return f"leaves {name} at {value}"
    better = _better(result, task.restored, task.reference)
    beside = ", better than FP32," if better is not None and better > 0 else ""
    return (
        f"takes {name} to {value}{', that of FP32,' if task.restored == task.reference else beside}"
    )


def _moved(before: float, after: float, *, told: bool) -> str:
    """What became of the SQNR; where the one before is told already, it is not told again."""
    if decibel(before) == decibel(after):
        return f"leaves the SQNR at {in_decibels(after)}"
    only = "only " if 0 < after - before < _MUCH_DB else ""
    how = f"{only}raises" if after > before else "lowers"
    if told:
        return f"{how} it to {in_decibels(after)}"
    start = decibel(before) if math.isfinite(after) else in_decibels(before)
    return f"{how} the SQNR from {start} to {in_decibels(after)}"


def _joining(metric: str, before: float, after: float, *, told: bool) -> str:
    """What became of the metric, "" without one, and of the SQNR."""
    moved = f"makes them finite, at {in_decibels(after)}"
    if not math.isnan(before):
        moved = _moved(before, after, told=told)
        if metric and moved.startswith("lowers"):
            return f"{metric.removesuffix(',')}, although it {moved}"
    return f"{metric} and {moved}" if metric else moved


def _cause(result: CompareResult, summary: Summary) -> str:
    if not summary.cause:
        return ""
    found = [
        (name, layer.causes[0])
        for name in summary.layers
        for layer in result.layers
        if layer.name == name and layer.causes and layer.causes[0].label == summary.cause
    ]
    which = "Main cause" if _is_largest(result, summary) else "A cause"
    text = f"{which} ({summary.cause}): "
    name, cause = found[0] if found else ("", None)
    if cause is None or not cause.brief:
        return f"{text}{REASONS[summary.cause]}."
    where = "in the first, " if name == summary.layers[0] else f"in {printable(name)}, "
    told = _cured(result) and summary.cause in result.cures[0].causes
    cure = f" {cause.remedy}" if summary.finding is Finding.ONE_CAUSE and not told else ""
    return f"{text}{where if len(summary.layers) > 1 else ''}{printable(cause.brief)}.{cure}"


def _is_largest(result: CompareResult, summary: Summary) -> bool:
    """Whether no other cause makes more of the error of the layers that are named: the parts of
    their causes, weighed by what each layer gains in FP32."""
    parts: dict[str, float] = defaultdict(float)
    for layer in result.layers:
        if layer.name in summary.layers:
            share = layer.output_share
            for cause in layer.causes:
                if cause.label != ACCUMULATION:
                    parts[cause.label] += (1.0 if share is None else max(0.0, share)) * cause.part
    return parts[summary.cause] >= max(parts.values())
