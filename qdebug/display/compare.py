"""What a person sees of a comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from qdebug.analyse.causes.engine import ENGINE_LABELS
from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    Style,
    conditions,
    facts,
    failures,
    flat,
    notes,
    number_column,
    table_of,
)
from qdebug.display.engine import doubt, engine_blocks
from qdebug.display.framework import framework_blocks
from qdebug.display.groups import group_blocks
from qdebug.display.summary import change, is_certain, precisions, sentence
from qdebug.metrics.effect import is_masked
from qdebug.metrics.parts import ErrorParts
from qdebug.metrics.tasks.base import BoxCounts
from qdebug.metrics.tensor import EFFECT_METRICS, LAYER_METRICS, Metric, Metrics
from qdebug.results.compare import (
    Cause,
    CompareResult,
    Correspondence,
    LayerResult,
    TaskResult,
)
from qdebug.results.curve import Curve, Figure, Order
from qdebug.results.stage_report import StageState
from qdebug.results.words import (
    FP16_KERNELS,
    decibel,
    figure,
    first_names,
    in_decibels,
    number,
)
from qdebug.types import Fp16Kernels
from qdebug.wording import counted, option, printable

_FIGURES = tuple(m for m in LAYER_METRICS if m.column and m.name not in EFFECT_METRICS)
"""The metrics that the table of layers shows where no effects were measured."""
_DETAILED = tuple(m for m in LAYER_METRICS if m.column and m.name != "ref_amax")
_WITH_EFFECTS = tuple(m for m in _DETAILED if m.name != "alone_sqnr_db")
"""Those it shows with that, and in detail."""
_BY = {
    Order.EFFECT: "Layers, the largest gain first: what keeping only this one in FP32 gains",
    Order.TOGETHER: "Layers, in the order in which the first ones help most in FP32 together",
}
"""The title of the table by the order of its rows."""
_BARS = "▁▂▃▄▅▆▇█"
_MOST_REASONS = 3
_LEAST_OF_FIRST = 0.1
_TINY = 0.001
"""Smaller probabilities are not told apart."""
_MOST_OUTPUTS = 4
_MOST_MISMATCHES = 10
_LEAST_GAIN = 0.05
"""Smaller ones are shown as 0.0."""
_LEAST_LOSS = 2.0**-23
"""Of a metric, the mean of the samples: one rounding of 1 in FP32, such as of a probability."""
_LEAST_UNEXPLAINED = 0.001
"""A smaller part of an error has no column."""


def run_file_line(run_file: Path | None) -> Line:
    """The run file that was written, or how to get one."""
    if run_file is not None:
        return Line(f"Run file: {run_file}")
    keeps = option("output", "run.h5")
    return Line(f"No run file was written ({keeps} keeps the evidence).", "muted")


_ENGINE_FAILED = (
    "The engine could not be run on {}: all that follows is the simulation, and says nothing of it."
)


def view(result: CompareResult, *, top: int = 10, detailed: bool = False) -> list[Block]:
    """A comparison: what its leading layers cost together, facts, the `top` worst layers, the
    reasons, notes, the verdict. `detailed` adds facts about how it was compared, and what the
    errors of these layers consist of."""
    shown, opening = result.layers[:top], sentence(result)
    failed = Line(_ENGINE_FAILED.format(result.backend), "bad")
    reasons = [*_why([*_engine_reasons(result), *_reasons(result, shown, detailed)])]
    return flat(
        (failed, Line()) if result.engine_failure else None,
        (Line(opening, "strong"), Line()) if opening else None,
        Line(_title(result), "title"),
        facts(_facts(result, detailed)),
        Line(),
        framework_blocks(result, detailed=detailed),
        group_blocks(result),
        Line(_layers_title(result, len(shown)), "title"),
        _legend(result, shown, detailed),
        table_of(
            shown,
            [
                (Column("#", "number"), lambda x: x.rank),
                (Column("layer", "name"), lambda x: x.name),
                (Column("op", "op"), lambda x: x.op_type),
                (Column("prec."), lambda x: x.precision),
                _ordering_column(result),
                *(
                    (Column(m.column, "number"), partial(_cell, m))
                    for m in _columns(result, detailed)
                ),
            ],
            lambda x: (
                "worst" if x.rank == 1 and x.local_sqnr_db is not None and not x.harmless else ""
            ),
        ),
        Line(),
        (Line("Why", "title"), reasons, Line()) if reasons else None,
        _remedies(result),
        _parts(shown) if detailed else None,
        engine_blocks(result.engine, _MOST_MISMATCHES) if result.engine else None,
        failures(result.failed),
        notes((*result.notes, *_unlike(result))),
        table_of(
            result.stages,
            [
                (Column("stage"), lambda s: s.between),
                (Column(""), lambda s: s.state.words),
                (Column("", "rest"), lambda s: ": ".join(filter(None, (s.told, s.next_step)))),
            ],
            lambda s: _STATE_STYLES[s.state],
        ),
        Line(),
        conditions(result.conditions),
        _verdict(result),
    )


_STATE_STYLES: dict[StageState, Style] = {
    StageState.PASSED: "good",
    StageState.FAILED: "bad",
    StageState.MEASURED: "",
    StageState.NOT_RUN: "muted",
}


def _ordering_column(result: CompareResult) -> Cells[LayerResult] | None:
    """What the rows are ordered by, where no other column shows it."""
    curve = result.curve
    if curve is None or curve.order is not Order.TOGETHER or not curve.shown:
        return None
    points = {p.layers: p.restored for p in curve.shown}
    return Column("together", "number"), lambda x: figure(points.get(x.rank), "whole share")


def _title(result: CompareResult) -> str:
    engine = result.engine
    how = f"on {engine.library}" if engine and engine.executed else "simulated on ONNX Runtime"
    reference = "ONNX Runtime's FP16" if result.reference_in_fp16 else "FP32"
    return (
        f"{printable(result.model.name)}: {precisions(result)} {how} against {reference}, "
        f"{counted(result.samples, 'sample')}"
    )


def _facts(result: CompareResult, detailed: bool) -> Iterator[tuple[str, str]]:
    if metric := result.metric:
        now = f"{figure(metric.candidate, 'metric')} in {precisions(result)}"
        told = f"{figure(metric.reference, 'metric')} in FP32, {now}"
        yield printable(metric.name), f"{told} ({change(metric, result.samples)})"
        yield from _of_metric(metric, detailed)
    broken_first = sorted(result.outputs, key=lambda o: (o.metrics.is_finite, o.metrics.sqnr_db))
    listed = broken_first[:_MOST_OUTPUTS]
    for output in (o for o in result.outputs if o in listed):
        name = printable(output.name)
        yield f"output {name}", _metrics_text(output.metrics, output.worst_file)
        for part in output.parts:
            where = f"{part.places} from {printable(part.branch)}"
            yield f"part of {name}", f"SQNR {in_decibels(part.sqnr_db)}, {where}"
    if others := [o.metrics.sqnr_db for o in result.outputs if o not in listed]:
        text = f"SQNR {in_decibels(min(others))} and more ({option('json')} lists them)"
        yield counted(others, "other output"), text
    if len(result.outputs) > 1 and result.summary is not None:
        worst = ", each by its worst part" if any(x.parts for x in result.outputs) else ""
        of = f"of the mean of their noise-to-signal ratios{worst}"
        yield "all outputs", f"SQNR {in_decibels(result.summary.sqnr_db)}, {of}"
    if result.curve and result.curve.shown and not _loses_nothing(result.curve):
        yield "kept in FP32", _curve_text(result, result.curve)
    harmless = {x.tensor for x in result.layers if x.harmless}
    if broken := [t for t in result.tensors if not (t.metrics.is_finite or t.name in harmless)]:
        text = f"{counted(broken, 'tensor')}, first in {printable(broken[0].name)}"
        yield "NaN or Inf", text
    yield from (fact for fact, as_usual in _how(result) if detailed or not as_usual)


def _of_metric(metric: TaskResult, detailed: bool) -> Iterator[tuple[str, str]]:
    """What stands behind the metric's change: whether it may be chance, boxes, samples."""
    found = metric.uncertainty
    if found is not None and metric.candidate != metric.reference:
        low, high = (figure(end, "change") for end in found.change)
        said = [f"95% interval {low} to {high}"]
        if found.p_value is not None:
            if metric.lost is not None:
                said.insert(0, f"{counted(metric.lost, 'sample')} lost, {metric.won} won")
            real = "" if is_certain(metric) else ": may be chance"
            p = f"= {number(found.p_value, 2)}" if found.p_value >= _TINY else f"< {_TINY:g}"
            said.append(f"p {p} by {found.test}{real}")
        yield "its change", "; ".join(said)
    if metric.boxes is not None:
        yield "boxes", _boxes_text(metric.boxes, metric.reference_boxes)
    yield "read as", printable(metric.described)
    if detailed:
        yield "worst by the task", ", ".join(f"sample {w.sample}" for w in metric.worst)


def _boxes_text(boxes: BoxCounts, fp32: BoxCounts | None) -> str:
    """Next to FP32's boxes where these are the true ones, next to the labels otherwise."""
    there = boxes.kept + boxes.lost
    if fp32 is None or not (fp32.lost or fp32.new):
        return f"{boxes.kept} of {there} kept, {boxes.lost} lost, {boxes.new} new"
    return (
        f"{boxes.kept} of {there} found ({fp32.kept} in FP32), {boxes.lost} missed ({fp32.lost}), "
        f"{boxes.new} false ({fp32.new})"
    )


def _loses_nothing(curve: Curve) -> bool:
    """Whether the metric's loss is that of FP32: a curve of it would be one of rounding."""
    return curve.figure is Figure.LOSS and abs(curve.planned - curve.reference) < _LEAST_LOSS


def _curve_text(result: CompareResult, curve: Curve) -> str:
    """What the first layers of the table give back together: a sparkline, and figures."""
    points = curve.shown
    heights = [0.0, *(min(1.0, max(0.0, p.restored)) for p in points)]
    bars = "".join(_BARS[round(h * (len(_BARS) - 1))] for h in heights)
    name = printable(result.metric.name) if result.metric else ""
    units = {Figure.SQNR: "SQNR in dB", Figure.LOSS: f"per-sample loss of {name}"}
    unit = units[curve.figure]
    if curve.samples < result.samples:
        unit += f", on {curve.samples} of the {counted(result.samples, 'sample')}"
    if curve.is_told_in_gains(result.samples):
        gains = (f"{p.layers}: {figure(p.value - curve.planned, 'gain')}" for p in points)
        return f"{bars} gain in {unit}: first {', '.join(gains)}"
    is_sqnr = curve.figure is Figure.SQNR
    none, *values, full = (
        decibel(v) if is_sqnr else number(v, 3)
        for v in (curve.planned, *(p.value for p in points), curve.reference)
    )
    first = ", ".join(f"{p.layers}: {v}" for p, v in zip(points, values, strict=True))
    return f"{bars} {unit}: none {none}, first {first}{'' if is_sqnr else f', all {full}'}"


def _how(result: CompareResult) -> Iterator[tuple[tuple[str, str], bool]]:
    """Facts about how it was compared, each with whether it is as usual."""
    if (first := result.first_divergence) is not None:
        where = f"{printable(first.layer or first.tensor)} ({in_decibels(first.sqnr_db)})"
        yield (f"first under {first.threshold_db:g} dB", where), result.summary is not None
    if (kernels := result.fp16_kernels) is not None:
        yield ("FP16 layers", FP16_KERNELS[kernels]), kernels is Fp16Kernels.TENSORRT
    if (matched := result.correspondence) is not None:
        as_usual = not matched.unmatched and all(m.proven for m in matched.matches)
        yield ("matched", _matched(matched)), as_usual
    text = f"{counted(result.tensors, 'tensor')} of {counted(result.layers, 'layer')}"
    skipped = sum(s.reason != "not floating point" for s in result.skipped)
    text += f"; {skipped} skipped ({option('json')} says why)" if skipped else ""
    yield ("compared", text), not skipped


def _matched(found: Correspondence) -> str:
    """How the tensors of the two models were matched, and whether that is proven."""
    matches, proven = found.matches, sum(m.proven for m in found.matches)
    other = Counter(f"by {m.how}" for m in matches if m.how != "name")
    done = Counter(m.transformation for m in matches if m.transformation)
    parts = ", ".join(f"{n} {how}" for how, n in (*other.items(), *done.items()))
    wrong = len(matches) - proven
    judged = f"{proven} proven, {wrong} not" if wrong else "all proven"
    text = counted(matches, "tensor") + (f" ({parts})" if parts else "")
    return f"{text}; {judged} on {counted(found.samples, 'sample')}"


def _unlike(result: CompareResult) -> Iterator[str]:
    """Notes on tensors that do not correspond, and on those of which it is not proven."""
    found = result.correspondence
    wrong = [(m.tensor, m.reason) for m in found.matches if not m.proven] if found else []
    missing = [(u.tensor, u.reason) for u in found.unmatched] if found else []
    for what, listed in (
        ("No counterpart", missing),
        ("Not proven to be the same quantity", wrong),
    ):
        if listed:
            tensor, reason = next((x for x in listed if x[1]), listed[0])
            more = f" ({len(listed) - 1} more: {option('json')} lists them)" if listed[1:] else ""
            why = f": {reason}" if reason else ", whose layer does not run alone"
            yield f"{what}: '{tensor}'{why}{more}."


def _metrics_text(metrics: Metrics, worst_file: str) -> str:
    if not metrics.is_finite:
        return f"{metrics.nan_count} NaN, {metrics.inf_count} Inf"
    return (
        f"SQNR {in_decibels(metrics.sqnr_db)}, cosine {metrics.cosine:.5f}, "
        f"largest error {number(metrics.max_abs_err, 3)} of {number(metrics.ref_amax, 3)}, "
        f"worst sample {metrics.worst_sample}{f', {printable(worst_file)}' if worst_file else ''} "
        f"({in_decibels(metrics.worst_sample_sqnr_db)})"
    )


def _layers_title(result: CompareResult, shown: int) -> str:
    by = "Layers, the largest error of their own first"
    if result.effect is not None:
        by = _BY[result.curve.order if result.curve else Order.EFFECT]
    simulated = ", in the simulation" if result.engine and result.engine.executed else ""
    hidden = result.layers[shown:]
    without = sum(layer.effect is None for layer in hidden) if result.effect is not None else 0
    of_these = f", {without} of them without a gain" if without else ""
    more = f" ({len(hidden)} more{of_these}: {option('top', str(len(result.layers)))})"
    return f"{by}{simulated}{more if hidden else ''}"


def _columns(result: CompareResult, detailed: bool) -> Sequence[Metric]:
    if result.effect is None:
        return _FIGURES
    return _DETAILED if detailed else _WITH_EFFECTS


def _legend(result: CompareResult, shown: Sequence[LayerResult], detailed: bool) -> Line | None:
    """What the reader must know of the table's figures: which are estimates, which are of other
    samples than the rest, what a negative gain means, and which layers come first whatever they
    gain."""
    effect, summary, all_of_them = result.effect, result.summary, result.samples
    of, known = f"of the {counted(all_of_them, 'sample')}", effect is not None
    some, alone = (effect.samples, effect.alone_samples) if effect else (all_of_them, all_of_them)
    negative = {x.name for x in shown if (x.gain_db or 0.0) <= -_LEAST_GAIN}
    # Where the loss comes from elsewhere, the first sentence names no layers.
    named = summary and summary.elsewhere is None and negative.intersection(summary.layers)
    helps = ", and those that the first sentence names help only together" if named else ""
    said = (
        (
            known and any(map(_is_estimate, shown)),
            f"≈: estimated{f' from {some} {of}' if some < all_of_them else ''}.",
        ),
        (
            known and _ordering_column(result) is not None,
            "together: the part of what was lost that it and all above give back.",
        ),
        (detailed and alone < all_of_them, f"alone dB: from {alone} {of}."),
        (
            known and any(o.parts for o in result.outputs),
            "gain dB counts all parts of the outputs alike; the first sentence is about the worst.",
        ),
        (0 < result.local_samples < all_of_them, f"local dB: from {result.local_samples} {of}."),
        (
            negative,
            f"A negative gain: the error of the layer offsets that of others{helps}.",
        ),
        (
            known and any(x.overflows and (x.gain_db or 0.0) < _LEAST_GAIN for x in shown),
            "Layers that overflow come first: one of them in FP32 gains nothing as long as another "
            "overflows.",
        ),
        (
            _is_masked_above(result, shown),
            "Layers that do as much harm alone as all together come first, whatever their gain: "
            "one of them in FP32 gains little as long as another is quantized.",
        ),
    )
    text = " ".join(sentence for holds, sentence in said if holds)
    return Line(text, "muted") if text else None


def _is_masked_above(result: CompareResult, shown: Sequence[LayerResult]) -> bool:
    """Whether a layer that others mask stands above one that gains more, in the order of gains."""
    effect, order = result.effect, result.curve.order if result.curve else Order.EFFECT
    if effect is None or order is not Order.EFFECT:
        return False
    above = math.inf
    for layer in shown:
        gain = layer.gain_db or 0.0
        if layer.effect is not None and not layer.overflows:
            if is_masked(layer.effect, effect.noise):
                above = min(above, gain)
            elif gain > above:
                return True
    return False


def _is_estimate(layer: LayerResult) -> bool:
    """Whether its gain is not that of all samples."""
    return bool(layer.effect and layer.output_share is not None and layer.effect.output_share_std)


def _signed(gain: float, layer: LayerResult) -> str:
    """A gain of the layer, in dB."""
    if not math.isfinite(gain):
        return decibel(gain)
    return f"{_about(layer)}{figure(gain, 'gain') if abs(gain) >= _LEAST_GAIN else '0.0'}"


def _about(layer: LayerResult) -> str:
    return "≈" if _is_estimate(layer) else ""


def _cell(metric: Metric, layer: LayerResult) -> str:
    """A metric of a layer; of its gain, what keeping only this layer in FP32 gains, in dB."""
    if metric.name == "local_sqnr_db" and layer.harmless:
        return "harmless"
    if metric.name != "gain_db":
        return figure(layer.figure(metric.name), metric.unit, 3)
    if layer.gain_db is not None:
        return _signed(layer.gain_db, layer)
    return "finite" if layer.effect is not None and layer.effect.gain == math.inf else "–"


def _parts(layers: Sequence[LayerResult]) -> Parts:
    """What the errors at the layers' outputs consist of, as shares of each."""
    found = [(x, x.error_parts) for x in layers if x.error_parts is not None]
    if not found:
        return None
    unexplained = any((p.unexplained or 0) >= _LEAST_UNEXPLAINED * p.total for _, p in found)
    shown = _PARTS if unexplained else _PARTS[:-1]
    samples = max(p.samples for _, p in found)
    negative = any((p.share(part) or 0.0) < 0 for _, p in found for _, part in shown)
    return (
        Line(f"What the cumulative errors consist of, on {counted(samples, 'sample')}", "title"),
        Line("A negative share: parts of the error offset each other.", "muted")
        if negative
        else None,
        table_of(
            found,
            [
                (Column("#", "number"), lambda x: x[0].rank),
                (Column("layer", "name"), lambda x: x[0].name),
                *(
                    number_column(head, partial(_error_share, part), "share")
                    for head, part in shown
                ),
            ],
        ),
        Line(),
    )


def _error_share(part: str, of: tuple[LayerResult, ErrorParts]) -> float | None:
    return of[1].share(part)


_PARTS = (
    *((part, part) for part in ("inherited", "weights", "clipping", "rounding")),
    ("interact.", "interaction"),
    ("unexpl.", "unexplained"),
)
"""Of the error of a layer: the heads of columns, and what they show."""


def _remedies(result: CompareResult) -> Parts:
    """What was tried on the leading layers: of each the best."""
    found = [(x, x.remedies[0]) for x in result.layers if x.remedies]
    if not found:
        none = Line("No remedy applies to the first layers.")
        return (none, Line()) if result.remedy_samples else None
    metric = result.metric.name if result.metric else ""
    worst = ", with its gain at the worst output" if len(result.outputs) > 1 else ""
    samples, without = counted(result.remedy_samples, "sample"), result.remedy_metric
    than = "" if without is None else f" ({metric} {number(without, 4)} without)"
    return (
        Line(f"The best remedy for each layer by itself{worst}, on {samples}{than}", "title"),
        table_of(
            found,
            [
                (Column("#", "number"), lambda x: x[0].rank),
                (Column("layer", "name"), lambda x: x[0].name),
                (Column("remedy"), lambda x: x[1].remedy if x[1].helps else "none helps"),
                number_column("gain dB", lambda x: x[1].gain_db if x[1].helps else None, "gain"),
                number_column(metric, lambda x: x[1].metric if x[1].helps else None)
                if metric
                else None,
            ],
        ),
        Line(),
    )


_Reason = tuple[Sequence[str], Cause, str]
"""The layers that a cause is the main one of, and its evidence."""


def _why(reasons: Iterable[_Reason]) -> Iterator[Line]:
    """Each reason, and each remedy once."""
    said: set[str] = set()
    for names, cause, evidence in reasons:
        yield Line(first_names(names, None), indent=2)
        yield Line(f"{cause}: {evidence}.", indent=4)
        if cause.remedy not in said:
            yield Line(cause.remedy, "fine", 4)
        said.add(cause.remedy)


def _reasons(
    result: CompareResult, shown: Sequence[LayerResult], detailed: bool
) -> Iterator[_Reason]:
    """The main cause of each of the worst layers, those that the opening sentence names first; the
    evidence of the same cause and remedy only once, unless it is `detailed`."""
    named = result.summary.layers if result.summary else ()
    leading = [x for x in result.layers if x.name in named]
    others = [x for x in shown if x.name not in named and _matters(x, shown[0])]
    own = [
        (layer, [c for c in layer.causes if c.label not in ENGINE_LABELS])
        for layer in (*leading, *others)
        if not layer.harmless
    ]
    main = [(layer, causes[0]) for layer, causes in own if causes][:_MOST_REASONS]
    for layer, cause in main:
        alike = [x.name for x, c in main if (c.label, c.remedy) == (cause.label, cause.remedy)]
        if detailed or layer.name == alike[0]:
            names = [layer.name] if detailed else alike
            where = "in the first, " if len(names) > 1 else ""
            yield names, cause, f"{where}{cause.evidence}"


def _matters(layer: LayerResult, first: LayerResult) -> bool:
    """Whether the layer costs a part of what the first one costs that is worth a reason."""
    if layer.overflows or not layer.output_share or not first.output_share:
        return True
    return layer.output_share >= _LEAST_OF_FIRST * first.output_share


def _engine_reasons(result: CompareResult) -> Iterator[_Reason]:
    """For each cause that only an engine shows, the first layer in execution order."""
    order = {t.name: k for k, t in enumerate(result.tensors)}
    layers = sorted(result.layers, key=lambda x: order.get(x.tensor, 0))
    for label in ENGINE_LABELS:
        found = [(x, c) for x in layers for c in x.causes if c.label == label]
        more = f", and in {counted(len(found) - 1, 'more layer')}" if len(found) > 1 else ""
        for layer, cause in found[:1]:
            yield [layer.name], cause, f"{cause.evidence}{more}"


def _verdict(result: CompareResult) -> Line:
    """An engine that is as planned is not a gate by itself."""
    checked, engine = counted(result.conditions, "condition"), result.engine
    if engine is not None and not engine.passed and engine.audit:
        count = counted(engine.audit.mismatches, "layer")
        return Line(f"FAILED: {count} of the engine not built as planned.", "bad")
    if not result.conditions:
        return Line(f"No gate was set ({option('fail_on')}).")
    if failed := sum(not c.passed for c in result.conditions):
        of = f"{failed} of " if len(result.conditions) > 1 else ""
        return Line(f"FAILED: {of}{checked} failed.", "bad")
    return Line(f"PASSED: {checked} passed{doubt(engine.audit if engine else None)}.", "good")
