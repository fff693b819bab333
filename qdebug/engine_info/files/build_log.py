"""An engine's layers, and what happened on the way, from a verbose build log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from qdebug.engine_info.files.layer_info import engine_of
from qdebug.engine_info.files.layer_text import LISTED, dims_in, io_tensor_in_line, layer_in_line
from qdebug.engine_info.files.timing import (
    info_of_profile,
    measured_in_log,
    times_in_table,
    with_times,
)
from qdebug.engine_info.layers import (
    BuildEvent,
    EngineInfo,
    EngineLayer,
    EventKind,
    InfoSource,
    OnnxNode,
)
from qdebug.engine_info.tensors import EngineTensor
from qdebug.errors import UsageError
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.network.macs import known_macs
from qdebug.wording import option

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"\d[\d/.-]*[-T ]?\d\d:\d\d:\d\d[\d.,Z]*(?:[+-]\d\d:?\d\d)?"
_LEVEL = r"(?:VERBOSE|DEBUG|INFO|WARNING|ERROR|INTERNAL_ERROR|CRITICAL)"
# "[11/21/2026-14:23:05] [TRT] [V] ", "[V] [TRT] ", "[VERBOSE] ", "[TensorRT] VERBOSE: ",
# "2026-11-21 14:23:05,123 DEBUG trt: ", "[2025-01-01 10:00:00 VERBOSE] ", "DEBUG:trt:",
# "DEBUG: [Torch-TensorRT] - ", ONNX Runtime's "… [V:onnxruntime:Default, file.h:88 log] ":
# a time, a library and a severity in any order, behind docker compose's "trt-1  | " or syslog's
# "Nov 21 14:23:05 host trtexec[7]: ".
_PREFIX = re.compile(
    r"(?:[\w.-]+ +\| )?"
    rf"(?:(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d|{_TIME}) \S+ [\w./-]+(?:\[\d+\])?: )?"
    rf"\s*(?:\[?{_TIME}\]?\s*(?:-\s+)?"
    rf"|\[{_TIME}\s+{_LEVEL}\]\s*"
    r"|\[(?:TRT|TRT-RTX|TensorRT|TensorRT-RTX|TRT_LOGGER)\]\s*(?::|-(?=\s))?\s*"
    r"|\[(?:TRTorch|Torch-TensorRT)[^\]]*\]\s*(?::|-(?=\s))?\s*"
    r"|\[[VIWEF]:onnxruntime:[^\]]*\]\s*"
    r"|\.\.?/\S*\.cpp:\d+\s+"
    rf"|{_LEVEL}:(?:[\w.-]+:)?\s*"
    rf"|\[?{_LEVEL}\]?:?\s+(?:-\s+)?"
    r"|(?:trt|tensorrt|TRT|TensorRT|TRT_LOGGER):? -?\s+"
    r"|\[[VIWEFXSUC!]\]\s*)*"
)
_SEVERITY = re.compile(r"\b(INTERNAL_ERROR|ERROR|CRITICAL|WARNING)\b|\[([WEFC!])\]")
_HEADING = re.compile(r"^(?:Layers|Engine Layer Information):\s*(.*)$")
_ENDINGS = ("I/O Tensors:", "Bindings:", "Engine Metadata:")
_BUILD_BEGINS = re.compile(
    r"&&&& RUNNING|Starting engine build|Building an engine|Engine generation completed|"
    r"Applying generic optimizations to the graph"
)
_TACTIC_NAME = re.compile(r"Set Tactic Name: (\S+) Tactic: (-?\w+)")
_OUTPUT = re.compile(r"Marking .+ as output: (.+)")
_NODE = re.compile(r"^(?P<name>.+) \[(?P<op>[\w.:]+)\] (?P<way>inputs|outputs): (?P<list>.*)$")
_OPERAND = re.compile(r"\[(?P<name>.*?) -> \((?P<dims>[-\d, ]*)\)\[\w+\]\](?:, |$)")
_VERSION = re.compile(
    r"(?:TensorRT(?:-RTX| for RTX)? version|Loaded Module: tensorrt\w* \| Version): ([\d.]+)"
)
# Before each pattern a word of each alternative: they are found many times faster, and most lines
# of a log have none.
_EVENTS = (
    (EventKind.TACTIC, ("tactic", "runner"), r"set tactic name: |chose runner type: "),
    (
        EventKind.FUSION,
        ("fusing ", "self-attention", "merging layers", "horizontal merg"),
        r"\bfusing |part of self-attention pattern|merging layers|horizontal merg",
    ),
    (
        EventKind.PRECISION,
        (
            *("int8", "obeys", "computation precision", "overflow", "subnormal", "missing scale"),
            *("may cause", "calibrator is not", "falling back", "to fp32", "platform doesn't"),
            "not supported natively",
        ),
        r"fall ?back to non-int8|non-int8 implementation|rejecting int8|without int8|"
        r"no implementation (?:of layer .* )?obeys|requested layer computation precision|"
        r"overflow|subnormal|missing scale|may cause (?:accuracy|overflow)|"
        r"calibrator is not being used|falling back|converting .* to fp32|"
        r"platform doesn't support|not supported natively",
    ),
)
# Most lines of a log: nothing happens in them, and the user's names in them may hold any word.
_NO_EVENT = (
    *("Name: ", "Layer(", "Parsing node: ", "Static check for parsing node: ", "Searching for "),
    *("Registering ", "Importing initializer: ", "Tactic: ", "Fastest Tactic", "Skipping tactic"),
    *("***", "---", "===", "Plugin creator", "Registered plugin", "CONSTANT ", "Running: "),
)
_GAP = 3
"""Empty lines between two layers, of a log that passed through an editor, and one more."""


class LogLine(NamedTuple):
    """A line of a log: time, library and severity in front, and what it says."""

    prefix: str
    text: str


def log_lines(text: str) -> list[LogLine]:
    """The lines of a log. TensorRT parts entries by U+001E and U+001F, which `str.splitlines` takes
    for the ends of lines."""
    found = []
    for line in _COLOUR.sub("", text.replace("\r\n", "\n")).split("\n"):
        match = _PREFIX.match(line)
        end = match.end() if match else 0
        found.append(LogLine(line[:end].strip() and line[:end], line[end:]))
    return found


def is_build_log(text: str) -> bool:
    """Whether a text looks like a log of TensorRT, with an engine's layers or without."""
    return bool(
        re.search(r"^.*(?:Layers|Engine Layer Information):\s*$", text, re.MULTILINE)
        or re.search(r"\[(?:TRT|TensorRT)\]|Parsing node: |Engine generation|=== Profile \(", text)
        or re.search(r"&&&& RUNNING TensorRT|=== Performance summary ===", text)
        or LISTED.search(text)
    )


def read_build_log(text: str, name: str) -> EngineInfo:
    """The engine that a verbose build log describes.

    Logs of trtexec, Polygraphy, Python's `trt.Logger`, Torch-TensorRT, ONNX Runtime and of loggers
    that write a line's severity before it are read; of several engines in one log, the last. What
    happened is told of the whole build, and times where trtexec printed them.

    Args:
        text: the log.
        name: of the file, for errors.

    Raises:
        UsageError: the log does not list the engine's layers; the builder's error is in front
            where the build failed.
    """
    lines = log_lines(text)
    messages = [line.text for line in lines]
    engines = _engines(list(_lists(lines)), messages)
    before = engines[-2][-1].end if len(engines) > 1 else 0
    measured, times = measured_in_log(messages[before:]), times_in_table(messages[before:])
    if engines:
        found = _fullest(engines[-1])
        info = engine_of(
            _with_kernels(found.layers, messages[before:]),
            InfoSource.BUILD_LOG,
            list(_io(lines[found.start :])),
        )
        info = replace(
            info,
            library=next((m[1] for m in map(_VERSION.search, messages) if m), ""),
            nodes=tuple(_nodes(messages[before : found.start])),
            events=_events(lines[before:]),
            notes=(*info.notes, *_doubts(found, lines, len(engines))),
        )
    elif times:
        info = info_of_profile(times)
    else:
        error: UsageError = _no_layers(lines, name, measured.executions is not None)
        raise error
    info = replace(info, device=measured.device, executions=measured.executions)
    if not engines or not times:
        return info
    try:
        return with_times(info, times, name)
    except UsageError:  # the layers are told all the same
        note = "The profile in the log is of other layers, or cut: its times are left out."
        return replace(info, notes=(*info.notes, note))


# ---- lists of layers


@dataclass(frozen=True)
class _List:
    """A list of an engine's layers.

    Attributes:
        start, end: its lines, the heading and what follows it.
        unread: lines that make no sense.
    """

    start: int
    end: int
    layers: tuple[EngineLayer, ...]
    unread: int


def _lists(lines: Sequence[LogLine]) -> Iterator[_List]:
    """All lists of layers, with a heading or without."""
    end = 0
    for i, line in enumerate(lines):
        if i >= end and (_HEADING.match(line.text) or LISTED.match(line.text)):
            found = _list_at(lines, i)
            end = found.end
            if found.layers:
                yield found


def _list_at(lines: Sequence[LogLine], start: int) -> _List:
    """The list that begins in a line. It ends at a line that starts with a time or a severity and
    is no layer, or at empty ones."""
    heading = _HEADING.match(lines[start].text)
    first = layer_in_line(heading[1].strip()) if heading else None  # as some loggers write it
    layers, unread = [first] if first else [], 0
    for end in range(start + bool(heading), len(lines)):
        text = lines[end].text.strip()
        layer = layer_in_line(text)
        if layer:
            layers.append(layer)
        elif not text:
            after = (line.text.strip() for line in lines[end : end + _GAP])
            if not LISTED.match(next(filter(None, after), "")):
                return _List(start, end, tuple(layers), unread)
        elif text in _ENDINGS or lines[end].prefix or _HEADING.match(text):
            return _List(start, end, tuple(layers), unread)
        else:
            unread += 1
    return _List(start, len(lines), tuple(layers), unread)


def _engines(lists: Sequence[_List], messages: Sequence[str]) -> list[list[_List]]:
    """The lists by engine: one that is printed twice, as by --verbose and --dumpLayerInfo, has the
    same layers, and nothing was built between."""
    found: list[list[_List]] = []
    for listed in lists:
        last = found[-1][-1] if found else None
        names = sorted(x.name for x in listed.layers)
        if (
            last
            and names == sorted(x.name for x in last.layers)
            and not any(map(_BUILD_BEGINS.search, messages[last.end : listed.start]))
        ):
            found[-1].append(listed)
        else:
            found.append([listed])
    return found


def _fullest(lists: Sequence[_List]) -> _List:
    """The last of the lists that tell most."""
    return max(
        reversed(lists),
        key=lambda x: (
            not any(layer.named_only for layer in x.layers),
            any(layer.inputs or layer.outputs for layer in x.layers),
        ),
    )


def _doubts(found: _List, lines: Sequence[LogLine], engines: int) -> Iterator[str]:
    """Why the layers may not be those of the engine, or not all."""
    if found.unread:
        yield f"{found.unread} lines in the list of layers could not be read: some may be missing."
    rest = [line.text for line in lines[found.end :] if line.text.strip()]
    outputs = {m[1].strip() for line in lines if (m := _OUTPUT.match(line.text))}
    written = {t.name for layer in found.layers for t in layer.outputs}
    if all(text.startswith(("Layer(", "Name: ")) for text in rest) and not (
        outputs and outputs <= written
    ):
        yield "The log ends with the list of layers: if it was cut there, layers are missing."
    if engines > 1:
        yield f"The log holds {engines} engines; this is the last."


def _with_kernels(layers: Sequence[EngineLayer], messages: Iterable[str]) -> list[EngineLayer]:
    """`layers` with the name of the kernel in place of its number, where the log names it."""
    named = (m for m in map(_TACTIC_NAME.search, messages) if m)
    names = {_number(m[2]): m[1] for m in named}
    return [
        replace(x, tactic=names.get(_number(x.tactic), x.tactic)) if x.named_only else x
        for x in layers
    ]


def _number(tactic: str) -> int | None:
    """A tactic's number: TensorRT 8.0 writes it in decimal digits and signed."""
    try:
        return int(tactic, 0) % 2**64 or None
    except ValueError:
        return None


# ---- what else the log tells


def _io(lines: Sequence[LogLine]) -> Iterator[EngineTensor]:
    start = next((i for i, x in enumerate(lines) if x.text.strip() in _ENDINGS[:2]), len(lines))
    for line in lines[start + 1 :]:
        text = line.text.strip()
        tensor = io_tensor_in_line(text)
        if lines[start].text.strip() == "Bindings:":  # TensorRT 8 and 10 list names only
            named = text and bool(line.prefix) == bool(lines[start].prefix)
            tensor = EngineTensor(text) if named else None
        if tensor is None:
            return
        yield tensor


Operands = Sequence[tuple[str, tuple[int, ...] | None]]


def _nodes(messages: Iterable[str]) -> Iterator[OnnxNode]:
    """The nodes of the model, as the parser lists them."""
    pending: dict[tuple[str, str], Operands] = {}
    for found in filter(None, map(_NODE.match, messages)):
        listed = [(m["name"], dims_in(m["dims"])) for m in _OPERAND.finditer(found["list"])]
        operands = [(tensor, None if dims is None else tuple(dims)) for tensor, dims in listed]
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
    if op_type not in QUANTIZABLE_OPS or len(reads) < 2 or not writes:
        return None
    left, out = (
        (1, *shape[1:]) if shape and shape[0] < 0 else shape
        for shape in (reads[0][1], writes[0][1])
    )
    return known_macs(op_type, left, reads[1][1], out)


def _events(lines: Iterable[LogLine]) -> tuple[BuildEvent, ...]:
    told = ((_event(line), line.text.strip()) for line in lines)
    return tuple(dict.fromkeys(BuildEvent(kind, text) for kind, text in told if kind))


def _event(line: LogLine) -> EventKind | None:
    severity = _SEVERITY.search(line.prefix)
    if severity and severity[0] not in ("WARNING", "[W]"):
        return EventKind.ERROR
    if not severity and (line.text.lstrip().startswith(_NO_EVENT) or "puts: [" in line.text):
        return None
    words = line.text.lower()
    told = (
        kind
        for kind, marks, pattern in _EVENTS
        if any(mark in words for mark in marks) and re.search(pattern, words)
    )
    if severity:
        return EventKind.PRECISION if EventKind.PRECISION in told else EventKind.WARNING
    return next(told, None)


# ---- failed builds


def _no_layers(lines: Sequence[LogLine], name: str, timed: bool) -> UsageError:
    """The error of a log without layers: that of the builder, where it failed."""
    errors = [e.text for e in _events(lines) if e.kind is EventKind.ERROR]
    if errors and not timed:
        known = ((e, hint) for e in errors for mark, hint in _MEANINGS if re.search(mark, e, re.I))
        first, hint = next(known, (errors[0], "TensorRT's documentation lists its errors."))
        return UsageError(
            f"{name}: the build failed: {first}", hint, code="QD-USAGE-ENGINE-NOT-BUILT"
        )
    heading = next((i for i, line in enumerate(lines, 1) if _HEADING.match(line.text)), None)
    if heading:
        return UsageError(
            f"{name}: the list of the engine's layers in line {heading} is cut",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        )
    times = f" Its times of executions can be given with {option('timing')}." if timed else ""
    return UsageError(
        f"{name} is not a build log that lists the engine's layers",
        "Build with a verbose logger (trtexec --verbose, trt.Logger.VERBOSE) and "
        f"--profilingVerbosity=detailed.{times}",
        code="QD-USAGE-ENGINE-FILE",
    )


_MEANINGS = (
    (
        r"could not find any implementation|no implementation",
        "No kernel computes this node in the precisions, formats and workspace that are allowed. "
        "Allow FP16 or FP32 beside INT8, lift the precision of the node, or give more workspace "
        "(--memPoolSize=workspace:SIZE).",
    ),
    (
        r"no scaling factors|calibration failure|dynamic range",
        "A tensor of an INT8 layer has no range. Give a calibrator or a calibration cache, or "
        "build from a model with Q/DQ pairs.",
    ),
    (
        r"no optimization profile has been defined|min/opt/max|optimization profile",
        "The model has dynamic axes. Give their sizes: --minShapes, --optShapes and --maxShapes.",
    ),
    (
        r"no importer registered|unsupported[ _]node|plugin not found|not supported by the parser",
        "TensorRT's parser does not know this operator. Replace it, or load the plugin that "
        "implements it (--staticPlugins).",
    ),
    (
        r"out ?of ?memory|outofmemory|cudaMalloc",
        "The GPU's memory is full. Free it, or lower the workspace and the largest shapes.",
    ),
    (
        r"sm ?\d+ is not supported|target gpu|no kernel image|unsupported sm",
        "This version of TensorRT does not support the GPU.",
    ),
    (
        r"version tag|serialization (?:assertion|error)|magic tag|plan file",
        "The engine was built by another version of TensorRT, or its file is damaged: build it "
        "anew with this one.",
    ),
    (
        r"cuda initialization failure|cudaerror|cuda (?:driver|error)|no cuda-capable",
        "CUDA could not be used: compare the driver with the version of CUDA that TensorRT needs.",
    ),
    (
        r"strongly typed|precision constraints|obey",
        "A precision that was asked for cannot be built. Types of a strongly typed network are "
        "those of the model.",
    ),
)
"""What errors of TensorRT's builder mean, and what to do."""
