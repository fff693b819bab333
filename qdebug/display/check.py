"""What a person sees of a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qdebug.display.blocks import (
    Block,
    Cells,
    Column,
    Line,
    Parts,
    Style,
    facts,
    flat,
    table_of,
)
from qdebug.network.macs import listed_work
from qdebug.results.check import CheckedTensor, CheckResult, Finding, Severity, TriedVariant
from qdebug.results.words import figure, number
from qdebug.wording import counted, printable

_WORDS: Mapping[Severity, str] = {"error": "Wrong", "warning": "Suspicious", "note": "Note"}
_STYLES: Mapping[Severity, Style] = {"error": "bad", "warning": "note", "note": ""}
_MOST_TENSORS = 8


def view(result: CheckResult) -> list[Block]:
    """The model, the samples' values, what was tried, the findings; the verdict last."""

    def value(variant: TriedVariant) -> str:
        text = figure(variant.value, "thousandths")
        return text if variant.judged else f"({text})"

    what = "The quantized model" if result.quantized else "FP32"
    tried = f"{what} on {counted(result.samples, 'sample')}, prepared in other ways"
    columns: list[Cells[TriedVariant]] = [
        (Column("samples"), lambda v: v.name),
        (Column(result.score, "number"), value),
    ]
    return flat(
        Line(f"{printable(result.model.name)}", "title"),
        facts(_facts(result)),
        Line(),
        (Line(tried, "title"), table_of(result.variants, columns), Line())
        if result.variants
        else None,
        map(finding_lines, result.findings),
        Line(_verdict(result), "good" if result.passed else "bad"),
    )


def _facts(result: CheckResult) -> Iterator[tuple[str, str]]:
    for kind, tensors in (("input", result.inputs), ("output", result.outputs)):
        for tensor in tensors[:_MOST_TENSORS]:
            yield f"{kind} {printable(tensor.name)}", _tensor(tensor)
        if len(tensors) > _MOST_TENSORS:
            yield f"{kind}s", f"and {len(tensors) - _MOST_TENSORS} more"
    by = f", by {printable(result.producer)}" if result.producer else ""
    work = figure(result.macs, "work")
    if result.macs is None:
        work = "MACs unknown: an axis is free"
    without = f"; without {listed_work(result.uncounted)}" if result.uncounted else ""
    layers = f"{counted(result.layers, 'layer')} for INT8"
    yield "model", f"opset {result.opset}{by}; {layers}; {work}{without}"
    for one in result.ranges:
        low, high, mean, std = (number(v, 3) for v in (one.low, one.high, one.mean, one.std))
        text = f"{low} to {high}, mean {mean}, standard deviation {std}"
        yield f"values of {printable(one.name)}", text


def _tensor(tensor: CheckedTensor) -> str:
    axes = "x".join(_axis(axis) for axis in tensor.shape)
    meaning = f": {tensor.meaning}" if tensor.meaning else ""
    return f"{tensor.dtype} {axes or 'scalar'}{meaning}"


def _axis(axis: int | str | None) -> str:
    """A length, or a name; "?" for the expressions that some exporters write."""
    text = str(axis)
    named = axis is not None and (text.isidentifier() or text.isdecimal())
    return text if named else "?"


def finding_lines(finding: Finding) -> Parts:
    """What was seen, and what to do about it."""
    text = f"{_WORDS[finding.severity]}: {printable(finding.message)}"
    remedy = Line(printable(finding.remedy), indent=2) if finding.remedy else None
    return Line(text, _STYLES[finding.severity]), remedy


def _verdict(result: CheckResult) -> str:
    wrong = sum(finding.severity == "error" for finding in result.findings)
    doubtful = sum(finding.severity == "warning" for finding in result.findings)
    if wrong:
        return f"FAILED: {counted(wrong, 'thing')} certainly wrong."
    if doubtful:
        return f"Nothing is certainly wrong; {counted(doubtful, 'thing')} suspicious."
    return "Nothing suspicious was found."
