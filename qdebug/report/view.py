"""What a person should see of a comparison: data first, rendered elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from qdebug.measure.engine import EngineReport
from qdebug.measure.engine_causes import ENGINE_LABELS
from qdebug.measure.metrics import LAYER_METRICS, Metric, Metrics
from qdebug.measure.result import Cause, CompareResult, LayerResult
from qdebug.types import Fp16Kernels

FIGURES = tuple(metric for metric in LAYER_METRICS if metric.column)
"""The metrics that the table of layers shows."""
_MOST_REASONS = 3


@dataclass(frozen=True)
class LayerRow:
    """One row of the table of layers; every cell is ready to be printed, one of `figures` for each
    of FIGURES."""

    rank: str
    layer: str
    op_type: str
    precision: str
    figures: tuple[str, ...]
    worst: bool


@dataclass(frozen=True)
class CompareView:
    """The report of a comparison.

    Attributes:
        title: what was compared with what.
        facts: (name, text) pairs, most important first.
        layers: the worst layers; `hidden` more were left out.
        reasons: (layer, why it is wrong, what to do), for the very worst.
        local_samples: how many samples their local errors come from.
        notes: what the reader must know.
        verdict: one line; `passed` is None when no gate was set.
        conditions: (passed, text) of each condition.
        engine: that was built of the candidate.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    layers: tuple[LayerRow, ...]
    reasons: tuple[tuple[str, str, str], ...]
    hidden: int
    local_samples: int
    notes: tuple[str, ...]
    verdict: str
    passed: bool | None
    conditions: tuple[tuple[bool, str], ...]
    engine: EngineReport | None = None


def compare_view(result: CompareResult, limit: int = 10) -> CompareView:
    """The view of `result` with at most `limit` layers."""
    shown = result.layers[:limit]
    return CompareView(
        title=_title(result),
        facts=tuple(_facts(result)),
        layers=tuple(_row(layer) for layer in shown),
        reasons=(*_engine_reasons(result), *_reasons(shown)),
        hidden=len(result.layers) - len(shown),
        local_samples=result.local_samples,
        notes=tuple(printable(note) for note in result.notes),
        verdict=_verdict(result),
        passed=_judged(result),
        conditions=tuple(
            (c.passed, f"{c.expression}: {'no value' if c.value is None else number(c.value)}")
            for c in result.conditions
        ),
        engine=result.engine,
    )


def number(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits; words for what is not finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.{digits}g}"


def decibel(value: float | None) -> str:
    """An SQNR in dB with one decimal; "exact" where there is no error at all."""
    if value is None:
        return "–"
    if math.isinf(value) and value > 0:
        return "exact"
    return number(value) if not math.isfinite(value) else f"{value:.1f}"


def in_decibels(value: float | None) -> str:
    """As `decibel`, with its unit where it is a number."""
    text = decibel(value)
    return text if text in ("exact", "–") else f"{text} dB"


def share(value: float | None) -> str:
    """A share as a percentage that shows small ones too."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if value < 1e-4:
        return "<0.01%"
    return f"{100 * value:.2g}%" if value < 0.995 else f"{100 * value:.0f}%"


def _title(result: CompareResult) -> str:
    name = printable(result.model.name)
    simulated = result.engine.not_executed_because if result.engine else True
    how = "simulated on ONNX Runtime" if simulated else f"on {result.backend}"
    count = f"{result.samples} sample{'s' if result.samples != 1 else ''}"
    return f"{name}: {_precision(result)} {how} against FP32, {count}"


def _precision(result: CompareResult) -> str:
    """The precisions that layers run in, most layers' first where the plan's own has none."""
    used = {str(layer.precision) for layer in result.layers}
    others = sorted(used - {result.precision, "fp32"})
    return " + ".join(p.upper() for p in [result.precision, *others])


def _facts(result: CompareResult) -> list[tuple[str, str]]:
    facts = []
    if result.metric:
        task = result.metric
        change = task.candidate - task.reference
        text = f"{task.reference:.4f} in FP32, {task.candidate:.4f} now ({change:+.4f})"
        facts.append((task.name, text))
    facts += [(f"output {printable(t.name)}", _metrics_text(t.metrics)) for t in result.outputs[:4]]
    if result.first_divergence:
        first = result.first_divergence
        where = printable(first.layer or first.tensor)
        name = f"first under {first.threshold_db:g} dB"
        facts.append((name, f"{where} ({in_decibels(first.sqnr_db)})"))
    harmless = {x.tensor for x in result.layers if x.harmless}
    broken = [t for t in result.tensors if not (t.metrics.is_finite or t.name in harmless)]
    if broken:
        facts.append(("NaN or Inf", f"{len(broken)} tensors, first in {printable(broken[0].name)}"))
    if result.fp16_kernels is not None:
        facts.append(("FP16 layers", _FP16_KERNELS[result.fp16_kernels]))
    facts.append(("compared", _coverage(result)))
    return facts


_FP16_KERNELS = {
    Fp16Kernels.TENSORRT: "simulated as TensorRT's kernels compute them: sums in FP16",
    Fp16Kernels.EXACT: "simulated with exact sums; TensorRT's kernels sum in FP16",
}


def _metrics_text(metrics: Metrics) -> str:
    if not metrics.is_finite:
        return f"{metrics.nan_count} NaN, {metrics.inf_count} Inf"
    return (
        f"SQNR {in_decibels(metrics.sqnr_db)}, cosine {metrics.cosine:.5f}, "
        f"largest error {number(metrics.max_abs_err, 3)} of {number(metrics.ref_amax, 3)}, "
        f"worst sample {metrics.worst_sample} ({in_decibels(metrics.worst_sample_sqnr_db)})"
    )


def _coverage(result: CompareResult) -> str:
    text = f"{len(result.tensors)} tensors of {len(result.layers)} layers"
    floats = sum(1 for s in result.skipped if s.reason != "not floating point")
    return text + (f"; {floats} skipped (see --json)" if floats else "")


def _row(layer: LayerResult) -> LayerRow:
    return LayerRow(
        rank=str(layer.rank),
        layer=printable(layer.name),
        op_type=printable(layer.op_type),
        precision=str(layer.precision),
        figures=tuple(_figure(layer, metric) for metric in FIGURES),
        worst=layer.rank == 1 and layer.local_sqnr_db is not None and not layer.harmless,
    )


def _figure(layer: LayerResult, metric: Metric) -> str:
    if metric.name == "local_sqnr_db" and layer.harmless:
        return "harmless"
    value = layer.figure(metric.name)
    if metric.unit == "dB":
        return decibel(value)
    if metric.unit == "share":
        return share(value)
    return "–" if value is None else number(value, 3)


def _judged(result: CompareResult) -> bool | None:
    """None where nothing was to hold: an engine that is as planned is no gate by itself."""
    if result.conditions or not result.passed:
        return result.passed
    return None


def _reasons(layers: Sequence[LayerResult]) -> Iterator[tuple[str, str, str]]:
    """The main cause of each of the worst layers; the same remedy for the same cause only once."""
    said: set[str] = set()
    found = [x for x in layers if not x.harmless]
    explained = [x for x in found if any(c.label not in ENGINE_LABELS for c in x.causes)]
    for layer in explained[:_MOST_REASONS]:
        cause = next(c for c in layer.causes if c.label not in ENGINE_LABELS)
        text = f"{cause_title(cause)}: {printable(cause.evidence)}."
        yield printable(layer.name), text, "" if cause.remedy in said else cause.remedy
        said.add(cause.remedy)


def _engine_reasons(result: CompareResult) -> Iterator[tuple[str, str, str]]:
    """For each cause that only an engine shows, the first layer in execution order."""
    order = {t.name: k for k, t in enumerate(result.tensors)}
    layers = sorted(result.layers, key=lambda x: order.get(x.tensor, 0))
    for label in ENGINE_LABELS:
        found = [(x, c) for x in layers for c in x.causes if c.label == label]
        if found:
            layer, cause = found[0]
            more = f", and in {len(found) - 1} more layers" if len(found) > 1 else ""
            text = f"{cause_title(cause)}: {printable(cause.evidence)}{more}."
            yield printable(layer.name), text, printable(cause.remedy)


def _verdict(result: CompareResult) -> str:
    conditions = result.conditions
    if result.engine is not None and not result.engine.passed:
        audit = result.engine.audit
        count = len(audit.mismatches) if audit else 0
        return f"FAILED: {counted(count, 'layer')} of the engine not built as planned."
    if not conditions:
        return "No gate was set (--fail-on)."
    failed = sum(not c.passed for c in conditions)
    if failed:
        return f"FAILED: {failed} of {len(conditions)} conditions do not hold."
    return f"PASSED: all {len(conditions)} conditions hold."


def cause_title(cause: Cause) -> str:
    """Such as "clipping (80%)"."""
    return cause.label if cause.share is None else f"{cause.label} ({100 * cause.share:.0f}%)"


def printable(name: str) -> str:
    """A user's name with what would move the cursor or end the line written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def counted(count: int, what: str) -> str:
    """Such as "1 tensor" and "3 tensors"."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def some(names: Sequence[str], most: int | None) -> str:
    """The first `most` names, and how many more there are; None lists them all."""
    shown = [printable(n) for n in names[:most]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more


def widest(texts: Sequence[str], least: int) -> int:
    """The width in cells of the widest text, at least `least`."""
    return max([least, *(cell_len(t) for t in texts)])
