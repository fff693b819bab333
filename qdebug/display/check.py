"""What a person sees of a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qdebug.display.blocks import Block, Column, Facts, Line, Style, table_of
from qdebug.network.macs import listed_work
from qdebug.results.check import CheckedTensor, CheckResult, Finding, Severity
from qdebug.results.words import number
from qdebug.wording import counted, printable

_WORDS: Mapping[Severity, str] = {"error": "Wrong", "warning": "Suspicious", "note": "Note"}
_STYLES: Mapping[Severity, Style] = {"error": "bad", "warning": "note", "note": ""}
_MOST_TENSORS = 8


def view(result: CheckResult) -> list[Block]:
    """The model, the samples' values, what was tried, the findings; the verdict last."""
    blocks: list[Block] = [
        Line(f"{printable(result.model.name)}", "title"),
        Facts(tuple(_facts(result))),
        Line(),
    ]
    if result.variants:
        title = f"FP32 on {counted(result.samples, 'sample')}, prepared in other ways"
        blocks += [
            Line(title, "title"),
            table_of(
                result.variants,
                [
                    (Column("samples"), lambda v: v.name),
                    (
                        Column(result.score, "number"),
                        lambda v: f"{v.value:.3f}" if v.judged else f"({v.value:.3f})",
                    ),
                ],
            ),
            Line(),
        ]
    for finding in result.findings:
        blocks += finding_lines(finding)
    blocks.append(Line(_verdict(result), "good" if result.passed else "bad"))
    return blocks


def _facts(result: CheckResult) -> Iterator[tuple[str, str]]:
    for kind, tensors in (("input", result.inputs), ("output", result.outputs)):
        for tensor in tensors[:_MOST_TENSORS]:
            yield f"{kind} {printable(tensor.name)}", _tensor(tensor)
        if len(tensors) > _MOST_TENSORS:
            yield f"{kind}s", f"and {len(tensors) - _MOST_TENSORS} more"
    by = f", by {printable(result.producer)}" if result.producer else ""
    work = "MACs unknown: an axis is free" if result.macs is None else _macs(result.macs)
    if result.uncounted:
        work += f"; without {listed_work(result.uncounted)}"
    yield "model", f"opset {result.opset}{by}; {counted(result.layers, 'layer')} for INT8; {work}"
    for one in result.ranges:
        text = (
            f"{number(one.low, 3)} to {number(one.high, 3)}, mean {number(one.mean, 3)}, standard "
            f"deviation {number(one.std, 3)}"
        )
        yield f"values of {printable(one.name)}", text


def _macs(macs: float) -> str:
    return f"{macs / 1e9:.3g} GMACs a sample" if macs >= 1e8 else f"{macs / 1e6:.3g} MMACs a sample"


def _tensor(tensor: CheckedTensor) -> str:
    axes = "x".join(_axis(axis) for axis in tensor.shape)
    meaning = f": {tensor.meaning}" if tensor.meaning else ""
    return f"{tensor.dtype} {axes or 'scalar'}{meaning}"


def _axis(axis: int | str | None) -> str:
    """A length, or a name; "?" for the expressions that some exporters write."""
    text = str(axis)
    named = axis is not None and (text.isidentifier() or text.isdecimal())
    return text if named else "?"


def finding_lines(finding: Finding) -> Iterator[Block]:
    """What was seen, and what to do about it."""
    yield Line(
        f"{_WORDS[finding.severity]}: {printable(finding.message)}", _STYLES[finding.severity]
    )
    if finding.remedy:
        yield Line(printable(finding.remedy), indent=2)


def _verdict(result: CheckResult) -> str:
    wrong = sum(finding.severity == "error" for finding in result.findings)
    doubtful = sum(finding.severity == "warning" for finding in result.findings)
    if wrong:
        return f"FAILED: {counted(wrong, 'thing')} certainly wrong."
    if doubtful:
        return f"Nothing is certainly wrong; {counted(doubtful, 'thing')} suspicious."
    return "Nothing suspicious was found."
