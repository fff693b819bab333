"""What a person sees of the training framework against its ONNX export."""

from __future__ import annotations

from collections.abc import Iterator

from qdebug.display.blocks import Line, Parts, facts
from qdebug.results.compare import CompareResult
from qdebug.results.framework import FrameworkResult, FrameworkTensor
from qdebug.results.words import first_names, in_decibels, number
from qdebug.wording import counted, option, printable

_MOST_OUTPUTS = 4
_MOST_NAMES = 3
_UNDECIDED = (
    "Rounding alone changes the FP32 outputs as much, so whether the export is right cannot be "
    "told from them. Activations by module, as qdebug.capture keeps them, show where they part."
)
_UNLOCATED = "Activations by module, as qdebug.capture keeps them, show where it begins."


def framework_blocks(result: CompareResult, *, detailed: bool) -> Parts:
    """How far the ONNX model is from the framework, and where it differs; nothing without."""
    found = result.framework
    if found is None:
        return None
    unlocated = _UNLOCATED if found.agrees is False and not found.modules else ""
    advice = _UNDECIDED if found.agrees is None else unlocated
    return (
        Line(f"Export: {printable(found.data)} against the ONNX model in FP32", "title"),
        facts(_facts(found, detailed=detailed)),
        Line(advice, indent=2) if advice else None,
        Line(),
    )


def unlike_export(found: FrameworkResult) -> str:
    """How the ONNX model differs from what the framework gave, as sentences; "" where it does
    not."""
    if found.agrees is not False:
        return ""
    worst = found.worst
    said = (
        "The ONNX model differs from the framework before anything is quantized: "
        f"'{printable(worst.tensor)}' in FP32 is {in_decibels(worst.sqnr_db)} from the "
        f"framework's, and rounding explains {in_decibels(found.limit_db)} "
        f"({counted(found.samples, 'sample')})."
    )
    after = f", after {printable(found.last_agreeing)} agrees" if found.last_agreeing else ""
    for first in [t for t in found.compared if t.tensor == found.first_differing][:1]:
        at = f"{printable(first.tensor)}, {in_decibels(first.sqnr_db)}"
        said += f" The first difference is at {at}{after}."
    return said


def _facts(found: FrameworkResult, *, detailed: bool) -> Iterator[tuple[str, str | None]]:
    for output in found.outputs[:_MOST_OUTPUTS]:
        yield f"output {printable(output.tensor)}", _told(output)
    right, first = sum(m.agrees is True for m in found.modules), found.first_differing
    where = f"; first different: {printable(first)}" if first else ""
    agree = f"{right} of {len(found.modules)} agree{where}"
    yield "activations", agree if found.modules else None
    for module in found.modules if detailed else ():
        yield printable(module.name), f"{_told(module)}; {printable(module.tensor)}"
    names = first_names([skipped.tensor for skipped in found.unmatched], _MOST_NAMES)
    yield "not compared", f"{names} ({option('json')} says why)" if names else None


def _told(tensor: FrameworkTensor) -> str:
    how = {True: "agrees", False: "differs", None: "cannot be told"}[tensor.agrees]
    return (
        f"{how}: SQNR {in_decibels(tensor.sqnr_db)}, largest error {number(tensor.max_abs_err, 3)} "
        f"of {number(tensor.amax, 3)}, worst sample {tensor.worst_sample}"
    )
