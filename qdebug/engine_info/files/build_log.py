"""An engine's layers, and what happened on the way, from a verbose build log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qdebug.engine_info.files.build_errors import meaning_of
from qdebug.engine_info.files.device import device_in_log
from qdebug.engine_info.files.layer_info import BRIEF, NAMES_ONLY, NO_METADATA
from qdebug.engine_info.files.optimization_profiles import first_profile
from qdebug.engine_info.files.profile import LayerTime, info_of_profile, times_in_table, with_times
from qdebug.engine_info.files.text_form import parse_dims, parse_io_tensor, parse_layer
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

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME = r"\d[\d/.-]*[-T ]?\d\d:\d\d:\d\d[\d.,Z]*"
_LEVEL = r"(?:VERBOSE|DEBUG|INFO|WARNING|ERROR|INTERNAL_ERROR|CRITICAL)"
# "[11/21/2026-14:23:05] [TRT] [V] ", "[V] [TRT] ", "[VERBOSE] ", "[TensorRT] VERBOSE: ",
# "2026-11-21 14:23:05,123 DEBUG trt: ", "[2025-01-01 10:00:00 VERBOSE] ", "DEBUG:trt:",
# "DEBUG: [Torch-TensorRT] - ", ONNX Runtime's "… [V:onnxruntime:Default, file.h:88 log] ":
# a time, a library and a severity in any order.
_PREFIX = re.compile(
    rf"\s*(?:\[?{_TIME}\]?\s*(?:-\s+)?"
    rf"|\[{_TIME}\s+{_LEVEL}\]\s*"
    r"|\[(?:TRT|TRT-RTX|TensorRT|TensorRT-RTX|TRT_LOGGER)\]\s*(?::|-(?=\s))?\s*"
    r"|\[(?:TRTorch|Torch-TensorRT)[^\]]*\]\s*(?::|-(?=\s))?\s*"
    r"|\[[VIWEF]:onnxruntime:[^\]]*\]\s*"
    r"|\.\.?/\S*\.cpp:\d+\s+"
    rf"|{_LEVEL}:(?:[\w.-]+:)?\s*"
    rf"|\[?{_LEVEL}\]?:?\s+(?:-\s+)?"
    r"|(?:trt|tensorrt|TRT|TensorRT|TRT_LOGGER):? -?\s+"
    r"|\[[VIWEFXSUC!]\]\s*)+"
)
_SEVERITY = re.compile(r"\b(INTERNAL_ERROR|ERROR|CRITICAL|WARNING)\b|\[([WEFC!])\]")
_LAYERS = re.compile(r"^(?:Layers|Engine Layer Information):\s*(.*)$")
_LISTED = re.compile(r"Layer\(\w+\): .*, Tactic: |Name: .*, LayerType: ")
_BUILD_BEGINS = re.compile(
    r"&&&& RUNNING|Starting engine build|Building an engine|Engine generation completed|"
    r"Applying generic optimizations to the graph"
)
_TACTIC_NAME = re.compile(r"Set Tactic Name: (\S+) Tactic: (-?\w+)")
_NODE = re.compile(r"^(?P<name>.+) \[(?P<op>[\w.:]+)\] (?P<way>inputs|outputs): (?P<list>.*)$")
_OPERAND = re.compile(r"\[(?P<name>.*?) -> \((?P<dims>[-\d, ]*)\)\[\w+\]\](?:, |$)")
_FUSION = re.compile(
    r"\bfusing |part of self-attention pattern|merging layers|horizontal merg", re.IGNORECASE
)
_FALLBACK = re.compile(
    r"fall ?back to non-int8|non-int8 implementation|rejecting int8|without int8|"
    r"no implementation (?:of layer .* )?obeys|requested layer computation precision|"
    r"overflow|subnormal|missing scale|may cause (?:accuracy|overflow)|"
    r"calibrator is not being used|falling back|converting .* to fp32|"
    r"platform doesn't support|not supported natively",
    re.IGNORECASE,
)
# A word of each alternative: they are found many times faster, and most lines of a log have none.
_FUSION_WORDS = ("fusing ", "self-attention", "merging layers", "horizontal merg")
_FALLBACK_WORDS = (
    *("int8", "obeys", "computation precision", "overflow", "subnormal", "missing scale"),
    *("may cause", "calibrator is not", "falling back", "to fp32", "platform doesn't"),
    "not supported natively",
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

    Logs of trtexec, Polygraphy, Python's `trt.Logger`, Torch-TensorRT, ONNX Runtime and of loggers
    that write a line's severity before it are read; of several engines in one log, the last. What
    happened is told of the whole build, and times where trtexec printed its profile.

    Args:
        text: the log.
        name: of the file, for errors.

    Raises:
        UsageError: the log does not list the engine's layers; the builder's error is in front
            where the build failed.
    """
    lines = [_COLOUR.sub("", line) for line in lines_of(text)]
    stripped = [_PREFIX.sub("", line, count=1) for line in lines]
    engines = _engines(_lists(lines, stripped), stripped)
    times = times_in_table(stripped) if not engines else ()
    if times:
        return info_of_profile(times)
    if not engines:
        error: UsageError = _no_layers(lines, stripped, name)
        raise error
    found = _fullest(engines[-1])
    before = engines[-2][-1].end if len(engines) > 1 else 0
    layers = _with_kernels(found.layers, stripped[before:])
    names_only = all(not layer.inputs and not layer.outputs for layer in layers)
    layers, notes = first_profile(layers)
    notes += (NAMES_ONLY,) if names_only else ()
    if not names_only and any(layer.named_only for layer in layers):
        brief = any(message.startswith("Layer(") for message in stripped[found.start : found.end])
        notes += (BRIEF if brief else NO_METADATA,)
    if found.unread:
        notes += (
            f"{found.unread} lines in the list of layers could not be read: some may be missing.",
        )
    if len(engines) > 1:
        notes += (f"The log holds {len(engines)} engines; this is the last.",)
    info = EngineInfo(
        layers=layers,
        source=InfoSource.BUILD_LOG,
        io=tuple(_io(lines[found.start :], stripped[found.start :])),
        detailed=not names_only,
        library=_library(stripped),
        nodes=tuple(_nodes(stripped[before : found.start])),
        events=tuple(_events(lines[before:], stripped[before:])),
        notes=notes,
        device=device_in_log(stripped),
    )
    times = times_in_table(stripped[before:])
    try:
        return with_times(info, times, name) if times else info
    except UsageError:  # the layers are told all the same
        note = "The profile in the log is of other layers, or cut: its times are left out."
        return replace(info, notes=(*info.notes, note))


def times_in_log(text: str) -> tuple[LayerTime, ...]:
    """The times of the last profile that trtexec printed into a log; none without one."""
    if "=== Profile (" not in text:
        return ()
    return times_in_table([_PREFIX.sub("", _COLOUR.sub("", x), count=1) for x in lines_of(text)])


def lines_of(text: str) -> list[str]:
    """The lines of a log. TensorRT parts entries by U+001E and U+001F, which `str.splitlines` takes
    for the ends of lines."""
    return text.replace("\r\n", "\n").split("\n")


def is_build_log(text: str) -> bool:
    """Whether a text looks like a log of TensorRT, with an engine's layers or without."""
    return bool(
        re.search(r"^.*(?:Layers|Engine Layer Information):\s*$", text, re.MULTILINE)
        or re.search(r"\[(?:TRT|TensorRT)\]|Parsing node: |Engine generation", text)
        or _LISTED.search(text)
    )


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


def _lists(lines: Sequence[str], messages: Sequence[str]) -> list[_List]:
    """All lists of layers, with a heading or without."""
    found = []
    i = 0
    while i < len(lines):
        heading = _LAYERS.match(messages[i])
        if heading or _LISTED.match(messages[i]):
            start = i
            layers, unread, i = _layers(lines, messages, i + bool(heading), heading)
            found.append(_List(start, i, tuple(layers), unread))
        else:
            i += 1
    return found


def _layers(
    lines: Sequence[str], messages: Sequence[str], start: int, heading: re.Match[str] | None
) -> tuple[list[EngineLayer], int, int]:
    """The layers from the line `start` on, how many lines make no sense, and where they end: at a
    line that starts with a time or a severity and is no layer, or at empty ones."""
    first = parse_layer(heading[1].strip()) if heading else None  # as some loggers write it
    found, unread, i = [first] if first else [], 0, start
    for i in range(start, len(lines)):
        text = messages[i].strip()
        layer = parse_layer(text)
        if layer:
            found.append(layer)
        elif not text and _goes_on(messages, i):
            continue
        elif not text or text in _ENDINGS or lines[i] != messages[i] or _LAYERS.match(text):
            return found, unread, i
        else:
            unread += 1
    return found, unread, max(i + 1, start)


def _goes_on(messages: Sequence[str], empty: int) -> bool:
    """Whether another layer follows an empty line, as in logs that passed through an editor."""
    after = (message.strip() for message in messages[empty : empty + _GAP])
    return bool(_LISTED.match(next((text for text in after if text), "")))


_GAP = 3


def _engines(lists: Sequence[_List], messages: Sequence[str]) -> list[list[_List]]:
    """The lists by engine: one that is printed twice, as by --verbose and --dumpLayerInfo, has the
    same layers, and nothing was built between."""
    found: list[list[_List]] = []
    for listed in lists:
        if not listed.layers:
            continue
        last = found[-1][-1] if found else None
        if last and _same(last, listed) and not _builds(messages[last.end : listed.start]):
            found[-1].append(listed)
        else:
            found.append([listed])
    return found


def _same(one: _List, other: _List) -> bool:
    return sorted(x.name for x in one.layers) == sorted(x.name for x in other.layers)


def _builds(messages: Iterable[str]) -> bool:
    return any(_BUILD_BEGINS.search(message) for message in messages)


def _fullest(lists: Sequence[_List]) -> _List:
    """The last of the lists that tell most."""
    return max(
        reversed(lists),
        key=lambda x: (
            not any(layer.named_only for layer in x.layers),
            any(layer.inputs or layer.outputs for layer in x.layers),
        ),
    )


def _with_kernels(
    layers: Sequence[EngineLayer], messages: Sequence[str]
) -> tuple[EngineLayer, ...]:
    """`layers` with the name of the kernel in place of its number, where the log names it."""
    names = {}
    for message in messages:
        match = _TACTIC_NAME.search(message)
        if match:
            names[_number(match[2])] = match[1]
    return tuple(
        replace(layer, tactic=names.get(_number(layer.tactic), layer.tactic))
        if layer.named_only
        else layer
        for layer in layers
    )


def _number(tactic: str) -> int | None:
    """A tactic's number: TensorRT 8.0 writes it in decimal digits and signed."""
    try:
        return int(tactic, 0) % 2**64 or None
    except ValueError:
        return None


def _no_layers(lines: Sequence[str], messages: Sequence[str], name: str) -> UsageError:
    """The error of a log without layers: that of the builder, where it failed."""
    errors = [e.text for e in _events(lines, messages) if e.kind is EventKind.ERROR]
    heading = next((i for i, m in enumerate(messages, 1) if _LAYERS.match(m)), None)
    if errors:
        first = next((e for e in errors if meaning_of(e)), errors[0])
        return UsageError(
            f"{name}: the build failed: {first}",
            meaning_of(first) or "TensorRT's documentation lists its errors.",
            code="QD-USAGE-ENGINE-NOT-BUILT",
        )
    if heading:
        return UsageError(
            f"{name}: the list of the engine's layers in line {heading} is cut",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        )
    return UsageError(
        f"{name} is not a build log that lists the engine's layers",
        "Build with a verbose logger (trtexec --verbose, trt.Logger.VERBOSE) and "
        "--profilingVerbosity=detailed.",
        code="QD-USAGE-ENGINE-FILE",
    )


def _io(lines: Sequence[str], messages: Sequence[str]) -> Iterator[EngineTensor]:
    start = next((i for i, text in enumerate(messages) if text.strip() in _ENDINGS[:2]), None)
    if start is None:
        return
    prefixed = lines[start] != messages[start]
    for i in range(start + 1, len(lines)):
        text = messages[i].strip()
        if messages[start].strip() != "Bindings:":
            tensor = parse_io_tensor(text)
        else:  # TensorRT 8 and 10 list names only
            named = text and (lines[i] != messages[i]) == prefixed
            tensor = EngineTensor(text) if named else None
        if tensor is None:
            return
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
    words = message.lower()
    if any(word in words for word in _FUSION_WORDS) and _FUSION.search(message):
        return EventKind.FUSION
    falls_back = any(word in words for word in _FALLBACK_WORDS) and _FALLBACK.search(message)
    return EventKind.PRECISION if falls_back else None
