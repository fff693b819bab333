"""What a person sees of a comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from qdebug.analyse.causes.engine import ENGINE_LABELS
from qdebug.display.blocks import (
    Block,
    Column,
    Facts,
    Line,
    Style,
    conditions,
    failures,
    notes,
    table_of,
)
from qdebug.display.engine import doubt, engine_blocks
from qdebug.display.framework import framework_blocks
from qdebug.display.groups import group_blocks
from qdebug.display.summary import change, is_certain, precisions, sentence
from qdebug.metrics.effect import gain_db, is_masked
from qdebug.metrics.tasks.base import BoxCounts
from qdebug.metrics.tensor import EFFECT_METRICS, LAYER_METRICS, Metric, Metrics
from qdebug.results.compare import (
    CompareResult,
    Correspondence,
    LayerResult,
    TaskResult,
    TriedRemedy,
)
from qdebug.results.curve import Curve, Figure, Order
from qdebug.results.stage_report import Stage, StageState
from qdebug.results.words import (
    FP16_KERNELS,
    decibel,
    figure,
    first_names,
    in_decibels,
    number,
    share,
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
    Order.WORST_PART: "Layers, the largest gain in the worst part of the outputs first",
    Order.LOSS: "Layers, the one that takes most off the metric's loss first, by itself in FP32",
    Order.SCORE: "Layers, the one that brings the metric most first, by itself in FP32",
    Order.MERGED: "Layers, each the one that helps most in FP32 together with all above it",
    Order.ALONE: "Layers, the noisiest first where only this one is quantized",
    Order.LOCAL: "Layers, the largest error of their own first",
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
_OF_KERNELS = (
    "gain dB is of ONNX Runtime's INT8 kernels, not of the simulation: it may differ by a few "
    "hundredths of the noise."
)
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
    shown = result.layers[:top]
    opening = sentence(result)
    failure = result.engine_failure
    blocks: list[Block] = [
        *([Line(_ENGINE_FAILED.format(result.backend), "bad"), Line()] if failure else []),
        *([Line(opening, "strong"), Line()] if opening else []),
        Line(_title(result), "title"),
        Facts(tuple(_facts(result, detailed))),
        Line(),
        *framework_blocks(result, detailed=detailed),
        *group_blocks(result),
        Line(_layers_title(result, len(shown)), "title"),
        *_legend(result, shown, detailed),
        table_of(
            shown,
            [
                (Column("#", "number"), lambda x: str(x.rank)),
                (Column("layer", "name"), lambda x: x.name),
                (Column("op", "op"), lambda x: x.op_type),
                (Column("prec."), lambda x: str(x.precision)),
                *_ordering_column(result, detailed),
                *((Column(m.column, "number"), _figure(m)) for m in _columns(result, detailed)),
            ],
            _style,
        ),
        Line(),
    ]
    reasons = [*_engine_reasons(result), *_reasons(result, shown, detailed)]
    if reasons:
        blocks += [Line("Why", "title"), *reasons, Line()]
    blocks += _remedies(result)
    if detailed:
        blocks += _parts(shown)
    if result.engine is not None:
        blocks += engine_blocks(result.engine, _MOST_MISMATCHES)
    blocks += failures(result.failed)
    blocks += notes((*result.notes, *_unlike(result)))
    blocks += _stages(result)
    blocks.append(conditions(result.conditions))
    blocks.append(_verdict(result))
    return blocks


_STATE_STYLES: dict[StageState, Style] = {
    StageState.PASSED: "good",
    StageState.FAILED: "bad",
    StageState.MEASURED: "",
    StageState.NOT_RUN: "muted",
}


def _stages(result: CompareResult) -> list[Block]:
    """The steps from the framework to the engine, one line each."""

    def told(stage: Stage) -> str:
        return f"{stage.told}: {stage.next_step}" if stage.next_step else stage.told

    columns: list[tuple[Column, Callable[[Stage], str]]] = [
        (Column("stage"), lambda stage: stage.between),
        (Column(""), lambda stage: stage.state.words),
        (Column("", "rest"), told),
    ]
    return [table_of(result.stages, columns, lambda s: _STATE_STYLES[s.state]), Line()]


def _ordering_column(
    result: CompareResult, detailed: bool
) -> list[tuple[Column, Callable[[LayerResult], str]]]:
    """What the rows are ordered by, where no other column shows it."""
    curve = result.curve

    def loss(layer: LayerResult) -> str:
        part = layer.effect.loss_share if layer.effect else None
        return "–" if part is None else f"{_about(layer)}{-part:+.0%}"

    def worst_part(layer: LayerResult) -> str:
        part = layer.effect.worst_part_share if layer.effect else None
        return "–" if part is None else _signed(gain_db(part), layer)

    def metric(layer: LayerResult) -> str:
        gain = layer.effect.metric_gain if layer.effect else None
        return "–" if gain is None else f"{gain:+.4f}"

    def together(layer: LayerResult) -> str:
        points = curve.shown if curve else ()
        return next((f"{p.restored:.0%}" for p in points if p.layers == layer.rank), "–")

    def alone(layer: LayerResult) -> str:
        return figure(layer.alone_sqnr_db, "dB")

    cells = {
        Order.LOSS: ("loss", loss),
        Order.WORST_PART: ("part dB", worst_part),
        Order.SCORE: ("metric", metric),
        Order.MERGED: ("together", together),
        Order.ALONE: ("alone dB", alone),
    }
    head, cell = cells.get(curve.order if curve else Order.EFFECT, ("", metric))
    if curve and curve.order is Order.MERGED and not curve.shown:
        return []
    shown = head and head not in (m.column for m in _columns(result, detailed))
    return [(Column(head, "number"), cell)] if shown else []


def _title(result: CompareResult) -> str:
    engine = result.engine
    how = f"on {engine.library}" if engine and engine.executed else "simulated on ONNX Runtime"
    reference = "ONNX Runtime's FP16" if result.reference_in_fp16 else "FP32"
    return (
        f"{printable(result.model.name)}: {precisions(result)} {how} against {reference}, "
        f"{counted(result.samples, 'sample')}"
    )


def _facts(result: CompareResult, detailed: bool) -> Iterator[tuple[str, str]]:
    if result.metric:
        metric = result.metric
        now = f"{metric.candidate:.4f} in {precisions(result)}"
        told = change(metric, result.samples)
        yield printable(metric.name), f"{metric.reference:.4f} in FP32, {now} ({told})"
        yield from _of_metric(metric, detailed)
    broken_first = sorted(result.outputs, key=lambda o: (o.metrics.is_finite, o.metrics.sqnr_db))
    listed = broken_first[:_MOST_OUTPUTS]
    for output in (o for o in result.outputs if o in listed):
        yield f"output {printable(output.name)}", _metrics_text(output.metrics, output.worst_file)
        for part in output.parts:
            where = f"{part.places} from {printable(part.branch)}"
            yield f"part of {printable(output.name)}", f"SQNR {in_decibels(part.sqnr_db)}, {where}"
    if others := [o.metrics.sqnr_db for o in result.outputs if o not in listed]:
        text = f"SQNR {in_decibels(min(others))} and more ({option('json')} lists them)"
        yield counted(others, "other output"), text
    if len(result.outputs) > 1 and result.summary is not None:
        together = in_decibels(result.summary.sqnr_db)
        worst = ", each by its worst part" if any(x.parts for x in result.outputs) else ""
        of = f"of the mean of their noise-to-signal ratios{worst}"
        yield "all outputs", f"SQNR {together}, {of}"
    if result.curve and result.curve.shown and not _loses_nothing(result.curve):
        yield "kept in FP32", _curve_text(result, result.curve)
    harmless = {x.tensor for x in result.layers if x.harmless}
    broken = [t for t in result.tensors if not (t.metrics.is_finite or t.name in harmless)]
    if broken:
        text = f"{counted(len(broken), 'tensor')}, first in {printable(broken[0].name)}"
        yield "NaN or Inf", text
    yield from (fact for fact, as_usual in _how(result) if detailed or not as_usual)


def _of_metric(metric: TaskResult, detailed: bool) -> Iterator[tuple[str, str]]:
    """What stands behind the metric's change: whether it may be chance, boxes, samples."""
    found = metric.uncertainty
    if found is not None and metric.candidate != metric.reference:
        low, high = found.change
        said = [f"95% interval {low:+.4f} to {high:+.4f}"]
        if metric.lost is not None and found.p_value is not None:
            said.insert(0, f"{counted(metric.lost, 'sample')} lost, {metric.won} won")
        if found.p_value is not None:
            real = "" if is_certain(metric) else ": may be chance"
            size = f"= {number(found.p_value, 2)}" if found.p_value >= _TINY else f"< {_TINY:g}"
            said.append(f"p {size} by {found.test}{real}")
        yield "its change", "; ".join(said)
    if metric.boxes is not None:
        yield "boxes", _boxes_text(metric.boxes, metric.reference_boxes)
    if metric.described:
        yield "read as", printable(metric.described)
    if detailed and metric.worst:
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
    units = {
        Figure.SQNR: "SQNR in dB",
        Figure.LOSS: f"per-sample loss of {name}",
        Figure.SCORE: name,
    }
    unit, on = units[curve.figure], ""
    if curve.samples < result.samples:
        on = f", on {curve.samples} of the {counted(result.samples, 'sample')}"
    if curve.is_told_in_gains(result.samples):
        gains = ", ".join(f"{p.layers}: {p.value - curve.planned:+.1f}" for p in points)
        return f"{bars} gain in {unit}{on}: first {gains}"
    values = ", ".join(f"{p.layers}: {_of_curve(curve, p.value)}" for p in points)
    all_of_them = (
        "" if curve.figure is Figure.SQNR else f", all {_of_curve(curve, curve.reference)}"
    )
    return f"{bars} {unit}{on}: none {_of_curve(curve, curve.planned)}, first {values}{all_of_them}"


def _of_curve(curve: Curve, value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return decibel(value) if curve.figure is Figure.SQNR else number(value, 3)


def _how(result: CompareResult) -> Iterator[tuple[tuple[str, str], bool]]:
    """Facts about how it was compared, each with whether it is as usual."""
    if (first := result.first_divergence) is not None:
        where = printable(first.layer or first.tensor)
        name = f"first under {first.threshold_db:g} dB"
        yield (name, f"{where} ({in_decibels(first.sqnr_db)})"), result.summary is not None
    if result.fp16_kernels is not None:
        usual = result.fp16_kernels is Fp16Kernels.TENSORRT
        yield ("FP16 layers", FP16_KERNELS[result.fp16_kernels]), usual
    if (matched := result.correspondence) is not None:
        yield (
            ("matched", _matched(matched)),
            not matched.unmatched and all(m.proven for m in matched.matches),
        )
    text = f"{counted(len(result.tensors), 'tensor')} of {counted(len(result.layers), 'layer')}"
    skipped = sum(1 for s in result.skipped if s.reason != "not floating point")
    text += f"; {skipped} skipped ({option('json')} says why)" if skipped else ""
    yield ("compared", text), not skipped


def _matched(found: Correspondence) -> str:
    """How the tensors of the two models were matched, and whether that is proven."""
    matches = found.matches
    other = Counter(m.how for m in matches if m.how != "name")
    done = Counter(m.transformation for m in matches if m.transformation)
    parts = [f"{n} by {how}" for how, n in other.items()]
    parts += [f"{n} {what}" for what, n in done.items()]
    proven = sum(m.proven for m in matches)
    wrong = len(matches) - proven
    judged = "all proven" if not wrong else f"{proven} proven, {wrong} not"
    text = counted(len(matches), "tensor") + (f" ({', '.join(parts)})" if parts else "")
    return f"{text}; {judged} on {counted(found.samples, 'sample')}"


def _unlike(result: CompareResult) -> Iterator[str]:
    """Notes on tensors that do not correspond, and on those of which it is not proven."""
    found = result.correspondence
    if found is None:
        return
    wrong = [(m.tensor, m.reason) for m in found.matches if not m.proven]
    for what, listed in (
        ("No counterpart", [(u.tensor, u.reason) for u in found.unmatched]),
        ("Not proven to be the same quantity", wrong),
    ):
        if listed:
            tensor, reason = next((x for x in listed if x[1]), listed[0])
            others = f" ({len(listed) - 1} more: {option('json')} lists them)"
            more = others if len(listed) > 1 else ""
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
    executed = result.engine is not None and result.engine.executed
    by = "Layers, the largest error of their own first"
    if result.effect is not None:
        by = _BY[result.curve.order if result.curve else Order.EFFECT]
    title = f"{by}{', in the simulation' if executed else ''}"
    hidden = result.layers[shown:]
    more = option("top", str(len(result.layers)))
    without = sum(layer.effect is None for layer in hidden) if result.effect is not None else 0
    of_these = f", {without} of them without a gain" if without else ""
    return title + (f" ({len(hidden)} more{of_these}: {more})" if hidden else "")


def _columns(result: CompareResult, detailed: bool) -> Sequence[Metric]:
    if result.effect is None:
        return _FIGURES
    return _DETAILED if detailed else _WITH_EFFECTS


def _legend(result: CompareResult, shown: Sequence[LayerResult], detailed: bool) -> Iterator[Line]:
    """What the reader must know of the table's figures: which are estimates, which are of other
    samples than the rest, what a negative gain means."""
    effect, said = result.effect, []
    of = f"of the {counted(result.samples, 'sample')}"
    if effect is not None:
        if any(map(_is_estimate, shown)):
            fewer = effect.samples < result.samples
            said.append(f"≈: estimated{f' from {effect.samples} {of}' if fewer else ''}.")
        order = result.curve.order if result.curve else None
        heads = [column.head for column, _ in _ordering_column(result, detailed)]
        if "together" in heads:
            said.append("together: the part of what was lost that it and all above give back.")
        if effect.on_kernels:
            said.append(_OF_KERNELS)
        if (detailed or order is Order.ALONE) and effect.alone_samples < result.samples:
            said.append(f"alone dB: from {effect.alone_samples} {of}.")
    if effect is not None and any(o.parts for o in result.outputs):
        said.append(
            "gain dB counts all parts of the outputs alike; the first sentence is about the worst."
        )
    if 0 < result.local_samples < result.samples:
        said.append(f"local dB: from {result.local_samples} {of}.")
    if negative := {x.name for x in shown if (x.gain_db or 0.0) <= -_LEAST_GAIN}:
        summary = result.summary  # where the loss comes from elsewhere, it names no layers
        named = summary and summary.elsewhere is None and negative.intersection(summary.layers)
        helps = ", and those that the first sentence names help only together" if named else ""
        said.append(f"A negative gain: the error of the layer offsets that of others{helps}.")
    said += _of_first(result, shown)
    if said:
        yield Line(" ".join(said), "muted")


def _of_first(result: CompareResult, shown: Sequence[LayerResult]) -> Iterator[str]:
    """Which layers come first, whatever they gain."""
    is_known = result.effect is not None
    if is_known and any(x.overflows and (x.gain_db or 0.0) < _LEAST_GAIN for x in shown):
        yield (
            "Layers that overflow come first: one of them in FP32 gains nothing as long as another "
            "overflows."
        )
    if _is_masked_above(result, shown):
        yield (
            "Layers that do as much harm alone as all together come first, whatever their gain: "
            "one of them in FP32 gains little as long as another is quantized."
        )


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


def _gain(layer: LayerResult) -> str:
    """What keeping only this layer in FP32 gains, in dB."""
    gain = layer.gain_db
    if gain is None:
        makes_finite = layer.effect is not None and layer.effect.gain == math.inf
        return "finite" if makes_finite else "–"
    return _signed(gain, layer)


def _signed(gain: float, layer: LayerResult) -> str:
    """A gain of the layer, in dB."""
    if not math.isfinite(gain):
        return figure(gain, "dB")
    text = f"{gain:+.1f}" if abs(gain) >= _LEAST_GAIN else "0.0"
    return f"{_about(layer)}{text}"


def _about(layer: LayerResult) -> str:
    return "≈" if _is_estimate(layer) else ""


def _figure(metric: Metric) -> Callable[[LayerResult], str]:
    """What makes the cells of a metric."""
    if metric.name == "gain_db":
        return _gain

    def cell(layer: LayerResult) -> str:
        if metric.name == "local_sqnr_db" and layer.harmless:
            return "harmless"
        return figure(layer.figure(metric.name), metric.unit, 3)

    return cell


def _parts(layers: Sequence[LayerResult]) -> list[Block]:
    """What the errors at the layers' outputs consist of, as shares of each."""
    found = [(x, x.error_parts) for x in layers if x.error_parts is not None]
    if not found:
        return []
    unexplained = any((p.unexplained or 0) >= _LEAST_UNEXPLAINED * p.total for _, p in found)
    shares = {
        "inherited": "inherited",
        "weights": "weights",
        "clipping": "clipping",
        "rounding": "rounding",
        "interact.": "interaction",
        **({"unexpl.": "unexplained"} if unexplained else {}),
    }
    samples = max(p.samples for _, p in found)
    table = table_of(
        found,
        [
            (Column("#", "number"), lambda x: str(x[0].rank)),
            (Column("layer", "name"), lambda x: x[0].name),
            *(
                (Column(head, "number"), lambda x, part=part: share(x[1].share(part)))
                for head, part in shares.items()
            ),
        ],
    )
    title = f"What the cumulative errors consist of, on {counted(samples, 'sample')}"
    negative = any((p.share(part) or 0.0) < 0 for _, p in found for part in shares.values())
    told = [Line("A negative share: parts of the error offset each other.", "muted")]
    return [Line(title, "title"), *(told if negative else []), table, Line()]


def _remedies(result: CompareResult) -> list[Block]:
    """What was tried on the leading layers: of each the best."""
    found = [(x, x.remedies[0]) for x in result.layers if x.remedies]
    if not found:
        none = Line("No remedy applies to the first layers.")
        return [none, Line()] if result.remedy_samples else []
    metric = result.metric.name if result.metric else ""
    columns: list[tuple[Column, Callable[[tuple[LayerResult, TriedRemedy]], str]]] = [
        (Column("#", "number"), lambda x: str(x[0].rank)),
        (Column("layer", "name"), lambda x: x[0].name),
        (Column("remedy"), lambda x: x[1].remedy if x[1].helps else "none helps"),
        (Column("gain dB", "number"), lambda x: f"{x[1].gain_db:+.1f}" if x[1].helps else "–"),
    ]
    if metric:
        columns.append((Column(metric, "number"), _metric_with))
    worst = ", with its gain at the worst output" if len(result.outputs) > 1 else ""
    title = (
        f"The best remedy for each layer by itself{worst}, on "
        f"{counted(result.remedy_samples, 'sample')}"
    )
    if result.remedy_metric is not None:
        title += f" ({metric} {number(result.remedy_metric, 4)} without)"
    return [Line(title, "title"), table_of(found, columns), Line()]


def _metric_with(tried: tuple[LayerResult, TriedRemedy]) -> str:
    """The end-to-end metric with a remedy."""
    found = tried[1]
    return number(found.metric if found.helps else None)


def _style(layer: LayerResult) -> Style:
    wrong = layer.rank == 1 and layer.local_sqnr_db is not None and not layer.harmless
    return "worst" if wrong else ""


def _reasons(result: CompareResult, shown: Sequence[LayerResult], detailed: bool) -> Iterator[Line]:
    """The main cause of each of the worst layers, those that the opening sentence names first; the
    same remedy only once, and the evidence of the same cause where it is `detailed`."""
    said: set[str] = set()
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
        alike = [x for x, c in main if (c.label, c.remedy) == (cause.label, cause.remedy)]
        if layer is not alike[0] and not detailed:
            continue
        names = [layer.name] if detailed else [x.name for x in alike]
        yield Line(first_names(names, None), indent=2)
        where = "in the first, " if len(names) > 1 else ""
        yield Line(f"{cause}: {where}{printable(cause.evidence)}.", indent=4)
        if cause.remedy not in said:
            yield Line(cause.remedy, "fine", 4)
        said.add(cause.remedy)


def _matters(layer: LayerResult, first: LayerResult) -> bool:
    """Whether the layer costs a part of what the first one costs that is worth a reason."""
    if layer.overflows or not layer.output_share or not first.output_share:
        return True
    return layer.output_share >= _LEAST_OF_FIRST * first.output_share


def _engine_reasons(result: CompareResult) -> Iterator[Line]:
    """For each cause that only an engine shows, the first layer in execution order."""
    order = {t.name: k for k, t in enumerate(result.tensors)}
    layers = sorted(result.layers, key=lambda x: order.get(x.tensor, 0))
    for label in ENGINE_LABELS:
        found = [(x, c) for x in layers for c in x.causes if c.label == label]
        if found:
            layer, cause = found[0]
            more = f", and in {counted(len(found) - 1, 'more layer')}" if len(found) > 1 else ""
            yield Line(printable(layer.name), indent=2)
            yield Line(f"{cause}: {printable(cause.evidence)}{more}.", indent=4)
            yield Line(printable(cause.remedy), "fine", 4)


def _verdict(result: CompareResult) -> Line:
    """An engine that is as planned is not a gate by itself."""
    checked = result.conditions
    if result.engine is not None and not result.engine.passed and result.engine.audit:
        count = counted(len(result.engine.audit.mismatches), "layer")
        return Line(f"FAILED: {count} of the engine not built as planned.", "bad")
    if not checked:
        return Line(f"No gate was set ({option('fail_on')}).")
    failed = sum(not c.passed for c in checked)
    if failed:
        of = f"{failed} of " if len(checked) > 1 else ""
        return Line(f"FAILED: {of}{counted(len(checked), 'condition')} failed.", "bad")
    unknown = doubt(result.engine.audit) if result.engine is not None else ""
    return Line(f"PASSED: {counted(len(checked), 'condition')} passed{unknown}.", "good")
