"""What a person sees of the training framework against its ONNX export."""

from __future__ import annotations

from collections.abc import Iterator

from qdebug.display.blocks import Block, Facts, Line
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


def framework_blocks(result: CompareResult, *, detailed: bool) -> Iterator[Block]:
    """How far the ONNX model is from the framework, and where it differs; nothing without."""
    found = result.framework
    if found is None:
        return
    yield Line(f"Export: {printable(found.data)} against the ONNX model in FP32", "title")
    yield Facts(tuple(_facts(found, detailed=detailed)))
    if found.agrees is None:
        yield Line(_UNDECIDED, indent=2)
    if found.agrees is False and not found.modules:
        yield Line(_UNLOCATED, indent=2)
    yield Line()


def unlike_export(found: FrameworkResult) -> str:
    """How the ONNX model differs from what the framework gave, as sentences; "" where it does
    not."""
    if found.agrees is not False:
        return ""
    worst = found.worst
    said = [
        "The ONNX model differs from the framework before anything is quantized: "
        f"'{printable(worst.tensor)}' in FP32 is {in_decibels(worst.sqnr_db)} from the "
        f"framework's, and rounding explains {in_decibels(found.limit_db)} "
        f"({counted(found.samples, 'sample')})."
    ]
    first = next((t for t in found.compared if t.tensor == found.first_differing), None)
    if first is not None:
        after = f", after {printable(found.last_agreeing)} agrees" if found.last_agreeing else ""
        at = f"{printable(first.tensor)}, {in_decibels(first.sqnr_db)}"
        said.append(f"The first difference is at {at}{after}.")
    return " ".join(said)


def _facts(found: FrameworkResult, *, detailed: bool) -> Iterator[tuple[str, str]]:
    for output in found.outputs[:_MOST_OUTPUTS]:
        yield f"output {printable(output.tensor)}", _told(output)
    if found.modules:
        right = sum(module.agrees is True for module in found.modules)
        text = f"{right} of {len(found.modules)} agree"
        if found.first_differing:
            text += f"; first different: {printable(found.first_differing)}"
        yield "activations", text
    if detailed:
        for module in found.modules:
            yield printable(module.name), f"{_told(module)}; {printable(module.tensor)}"
    if found.unmatched:
        names = [skipped.tensor for skipped in found.unmatched]
        why = f" ({option('json')} says why)"
        yield "not compared", f"{first_names(names, _MOST_NAMES)}{why}"


def _told(tensor: FrameworkTensor) -> str:
    how = {True: "agrees", False: "differs", None: "cannot be told"}[tensor.agrees]
    return (
        f"{how}: SQNR {in_decibels(tensor.sqnr_db)}, largest error {number(tensor.max_abs_err, 3)} "
        f"of {number(tensor.amax, 3)}, worst sample {tensor.worst_sample}"
    )
