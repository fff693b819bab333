"""An engine's layers, and what happened on the way, from a verbose build log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from qdebug.engine_info.layer_info import NAMES_ONLY, NO_METADATA
from qdebug.engine_info.layers import (
    BuildEvent,
    EngineInfo,
    EngineLayer,
    EventKind,
    InfoSource,
    OnnxNode,
)
from qdebug.engine_info.tensors import EngineTensor
from qdebug.engine_info.text_form import parse_dims, parse_io_tensor, parse_layer
from qdebug.errors import UsageError
from qdebug.model.layers import QUANTIZABLE_OPS
from qdebug.model.macs import known_macs

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# "[11/21/2026-14:23:05] [TRT] [V] ", "[V] [TRT] ", "[VERBOSE] ", "[TensorRT] VERBOSE: ",
# "2026-11-21 14:23:05,123 DEBUG trt: ": a time, a library and a severity in any order.
_PREFIX = re.compile(
    r"\s*(?:\[?\d[\d/.-]*[-T ]?\d\d:\d\d:\d\d[\d.,Z]*\]?\s*"
    r"|\[(?:TRT|TRT-RTX|TensorRT|TensorRT-RTX|TRT_LOGGER)\]\s*:?\s*"
    r"|\[?(?:VERBOSE|DEBUG|INFO|WARNING|ERROR|INTERNAL_ERROR|CRITICAL)\]?:?\s+"
    r"|\[[VIWEFXSUC!]\]\s*)+"
)
_SEVERITY = re.compile(r"\b(INTERNAL_ERROR|ERROR|CRITICAL|WARNING)\b|\[([WEFC!])\]")
_LAYERS = re.compile(r"^(?:Layers|Engine Layer Information):\s*(.*)$")
_NODE = re.compile(r"^(?P<name>.+) \[(?P<op>[\w.:]+)\] (?P<way>inputs|outputs): (?P<list>.*)$")
_OPERAND = re.compile(r"\[(?P<name>.*?) -> \((?P<dims>[-\d, ]*)\)\[\w+\]\](?:, |$)")
_FUSION = re.compile(
    r"\bfusing |part of self-attention pattern|merging layers|horizontal merg", re.IGNORECASE
)
_FALLBACK = re.compile(
    r"fall ?back to non-int8|non-int8 implementation|rejecting int8|without int8|"
    r"no implementation (?:of layer .* )?obeys|requested layer computation precision|"
    r"overflow|subnormal|missing scale|may cause (?:accuracy|overflow)|"
    r"falling back|converting .* to fp32|platform doesn't support|not supported natively",
    re.IGNORECASE,
)
_VERSION = re.compile(
    r"(?:TensorRT(?:-RTX| for RTX)? version|Loaded Module: tensorrt\w* \| Version): ([\d.]+)"
)
# Most lines of a log: nothing happens in them, and the user's names in them may hold any word.
_NO_EVENT = (
    *("Name: ", "Layer(", "Parsing node: ", "Static check for parsing node: ", "Searching for "),
    *("Registering ", "Importing initializer: ", "Tactic: ", "Fastest Tactic", "Skipping tactic"),
    *("***", "---", "===", "Plugin creator", "Registered plugin", "CONSTANT ", "Running: "),
)
_ENDINGS = ("I/O Tensors:", "Bindings:", "Engine Metadata:")
_TACTIC = re.compile(r"Set Tactic Name: |Chose Runner Type: ")


def read_build_log(text: str, name: str) -> EngineInfo:
    """The engine that a verbose build log describes.

    Logs of trtexec, Polygraphy, Python's `trt.Logger` and of loggers that write a line's severity
    before it are read; of several builds in one log, the last.

    Args:
        text: the log.
        name: of the file, for errors.

    Raises:
        UsageError: the log does not list the engine's layers.
    """
    lines = [_COLOUR.sub("", line) for line in text.splitlines()]
    stripped = [_PREFIX.sub("", line, count=1) for line in lines]
    starts = [i for i, line in enumerate(stripped) if _LAYERS.match(line)]
    if not starts:
        raise UsageError(
            f"{name} is not a build log that lists the engine's layers",
            "Build with a verbose logger (trtexec --verbose, trt.Logger.VERBOSE) and "
            "--profilingVerbosity=detailed.",
            code="QD-USAGE-ENGINE-FILE",
        )
    layers, unread = _layers(lines[starts[-1] :], stripped[starts[-1] :])
    if not layers:
        raise UsageError(
            f"{name}: the list of the engine's layers in line {starts[-1] + 1} is cut",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        )
    before = starts[-2] + 1 if len(starts) > 1 else 0
    names_only = all(not layer.inputs and not layer.outputs for layer in layers)
    notes = [NAMES_ONLY] if names_only else []
    if not names_only and any(layer.named_only for layer in layers):
        notes.append(NO_METADATA)
    if unread:
        notes.append(
            f"{unread} lines in the list of layers could not be read: some may be missing."
        )
    if len(starts) > 1:
        notes.append(f"The log holds {len(starts)} engines; this is the last.")
    return EngineInfo(
        layers=tuple(layers),
        source=InfoSource.BUILD_LOG,
        io=tuple(_io(stripped[starts[-1] :])),
        detailed=not names_only,
        library=_library(stripped),
        nodes=tuple(_nodes(stripped[before : starts[-1]])),
        events=tuple(_events(lines[before:], stripped[before:])),
        notes=tuple(notes),
    )


def is_build_log(text: str) -> bool:
    """Whether a text looks like a log of TensorRT, with an engine's layers or without."""
    return bool(
        re.search(r"^.*(?:Layers|Engine Layer Information):\s*$", text, re.MULTILINE)
        or re.search(r"\[(?:TRT|TensorRT)\]|Parsing node: |Engine generation", text)
    )


def _layers(lines: Sequence[str], messages: Sequence[str]) -> tuple[list[EngineLayer], int]:
    """The layers listed from the heading on, and how many lines of the list make no sense.

    Args:
        lines: as they are in the log; one that starts with a time or a severity ends the list.
        messages: the same without what comes before the message.
    """
    heading = _LAYERS.match(messages[0])
    first = heading[1] if heading else ""  # some loggers put the first layer behind the heading
    found, unread = [], 0
    for line, message in zip(["", *lines[1:]], [first, *messages[1:]], strict=True):
        text = message.strip()
        layer = parse_layer(text)
        if layer:
            found.append(layer)
        elif line and (not text or text in _ENDINGS or line != message):
            break
        elif text:
            unread += 1
    return found, unread


def _io(lines: list[str]) -> Iterator[EngineTensor]:
    start = next((i for i, line in enumerate(lines) if line.strip() == "I/O Tensors:"), None)
    for line in lines[start + 1 :] if start is not None else []:
        tensor = parse_io_tensor(line.strip())
        if tensor is None:
            break
        yield tensor


def _nodes(lines: Iterable[str]) -> Iterator[OnnxNode]:
    """The nodes of the model, as the parser lists them."""
    pending: dict[tuple[str, str], list[tuple[str, tuple[int, ...] | None]]] = {}
    for line in lines:
        found = _NODE.match(line)
        if not found:
            continue
        operands = [(m["name"], parse_dims(m["dims"])) for m in _OPERAND.finditer(found["list"])]
        key = (found["name"], found["op"])
        if found["way"] == "inputs":
            pending[key] = operands
        elif key in pending:
            reads = pending.pop(key)
            yield OnnxNode(
                *key,
                inputs=tuple(t for t, _ in reads),
                outputs=tuple(t for t, _ in operands),
                input_shapes=tuple(s for _, s in reads),
                output_shapes=tuple(s for _, s in operands),
                macs=_macs(found["op"], reads, operands),
            )


def _macs(op_type: str, reads: Operands, writes: Operands) -> float | None:
    """Multiply-accumulates of a product; a dynamic leading axis is that of the batch, and 1."""
    if op_type not in QUANTIZABLE_OPS or len(reads) < _OPERANDS or not writes:
        return None
    left, right, out = reads[0][1], reads[1][1], writes[0][1]
    return known_macs(op_type, _of_one(left), right, _of_one(out))


def _of_one(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return (1, *shape[1:]) if shape and shape[0] < 0 else shape


Operands = Sequence[tuple[str, tuple[int, ...] | None]]
_OPERANDS = 2


def _library(lines: Iterable[str]) -> str:
    for line in lines:
        found = _VERSION.search(line) if "ersion: " in line else None
        if found:
            return found[1]
    return ""


def _events(lines: Iterable[str], stripped: Iterable[str]) -> Iterator[BuildEvent]:
    seen = set()
    for line, message in zip(lines, stripped, strict=True):
        kind = _kind(line, message)
        event = BuildEvent(kind, message.strip()) if kind else None
        if event and event not in seen:
            seen.add(event)
            yield event


def _kind(line: str, message: str) -> EventKind | None:
    severity = _SEVERITY.search(line[: len(line) - len(message)])
    if severity and severity[0] not in ("WARNING", "[W]"):
        return EventKind.ERROR
    if severity:
        return EventKind.PRECISION if _FALLBACK.search(message) else EventKind.WARNING
    if message.lstrip().startswith(_NO_EVENT) or "puts: [" in message:
        return None
    if _TACTIC.search(message):
        return EventKind.TACTIC
    if _FUSION.search(message):
        return EventKind.FUSION
    return EventKind.PRECISION if _FALLBACK.search(message) else None
