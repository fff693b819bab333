"""Open a file that describes an engine: its kind is recognized by its content, not its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from qdebug.engine_info.files.build_log import is_build_log, lines_of, read_build_log, times_in_log
from qdebug.engine_info.files.device import (
    Device,
    device_in_log,
    is_device_metadata,
    read_device_metadata,
)
from qdebug.engine_info.files.layer_info import is_layer_info, read_layer_info
from qdebug.engine_info.files.onnx_file import info_of_graph
from qdebug.engine_info.files.polygraphy_text import is_polygraphy_text, read_polygraphy_text
from qdebug.engine_info.files.profile import (
    LayerTime,
    info_of_profile,
    is_profile,
    read_profile,
)
from qdebug.engine_info.files.timing import ExecutionTimes, is_times, read_times
from qdebug.engine_info.layers import EngineInfo
from qdebug.errors import ModelError, UsageError
from qdebug.inputfiles import HDF5_MAGIC, open_file
from qdebug.network.foreign import ENGINE_SUFFIXES, recognized
from qdebug.network.inputshapes import InputShapes
from qdebug.network.load import ModelFile, read_model
from qdebug.network.prepare import prepare_model
from qdebug.wording import option

_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a]")
_LOGGED = re.compile(r"\s*\[(?:[VIWEFX]|\d\d/\d\d/\d{4}-[\d:]+)\]")
"""How a line of a log begins that has its level or its time in brackets; no JSON does."""
_MODEL_BEGINS = b"\x08"
"""The tag of ir_version, which is first in a message that is written in the order of its fields.
Text, run files and engines do not begin this way."""
_NO_MODEL = ("QD-MODEL-TRUNCATED", "QD-MODEL-NO-GRAPH", "QD-MODEL-NO-OPSET")
_NO_SOURCES = (*ENGINE_SUFFIXES, ".npz", ".npy")
"""Names of files that no model can be made of."""
_TAKES = (
    "Accepted files: an ONNX model, a serialized engine, the JSON of trtexec --exportLayerInfo or "
    "--exportProfile, a verbose build log, or the text of polygraphy inspect model --show layers."
)


_HEAD = 1000
"""Characters in which a file says what it is."""


def open_engine_file(
    path: Path,
    read_serialized: Callable[[bytes, str], EngineInfo | None],
    shapes: InputShapes = (),
) -> EngineInfo:
    """What the file at `path` says about an engine.

    Args:
        path: the file.
        read_serialized: reads a serialized engine, given its bytes and the name of the file, which
            takes a runtime; None for any other data.
        shapes: that the inputs of a model are given.

    Raises:
        UsageError: the file cannot be read, is an engine that this machine cannot read, or is
            none of the known kinds; or `shapes` do not fit.
        ModelError: an ONNX model that cannot be read.
    """
    if _read(path, len(_MODEL_BEGINS)) != _MODEL_BEGINS:  # a model is not read twice
        data = _read(path)
        serialized = read_serialized(data, str(path))
        if serialized is not None:
            return serialized
        _refuse_run_file(data, path)
        text = _text(data)
        if text is not None:
            return _described(text, path)
        del data
    return info_of_graph(prepare_model(_model(path), shapes=shapes, fed=False).graph)


def _refuse_run_file(data: bytes, path: Path) -> None:
    if data.startswith(HDF5_MAGIC):
        raise _not_taken(f"{path} is a run file of qdebug, not an engine")


def _described(text: str, path: Path) -> EngineInfo:
    if not text.strip():
        raise _not_taken(f"{path} is empty")
    printed = times_in_log(text)
    if printed and not is_build_log(text):
        return info_of_profile(printed)
    logged = _LOGGED.match(text) is not None
    if text.lstrip()[0] in "{[" and not (logged or is_build_log(text) or is_polygraphy_text(text)):
        return _from_json(text, path)
    if is_polygraphy_text(text):
        return read_polygraphy_text(text, str(path))
    if is_build_log(text):
        return read_build_log(text, str(path))
    if text.startswith("TRT-"):
        raise UsageError(
            f"{path} is a calibration cache of TensorRT, which holds ranges and no layers",
            f"Compare its ranges: {option('from_cache', str(path))} of calibrate.",
            code="QD-USAGE-ENGINE-FILE",
        )
    if text.lstrip().startswith("<?xml") and re.search(r"<net\s", text[:_HEAD]):
        raise UsageError(
            f"{path} is a model of OpenVINO (its intermediate representation)",
            "Give the ONNX model that it was converted from; "
            f"{option('backend', 'openvino')} of compare runs that.",
            code="QD-USAGE-ENGINE-FILE",
        )
    if logged and re.search(r"Comparing Output: |Accuracy Summary", text):
        raise UsageError(
            f"{path} is a comparison that Polygraphy printed: outputs, and no layers",
            "`qdebug compare` shows which layer makes a difference; of an engine, give the text of "
            "polygraphy inspect model ENGINE --show layers.",
            code="QD-USAGE-ENGINE-FILE",
        )
    known = recognized(path)
    if known is not None and path.suffix not in (".yaml", ".yml"):
        what = f"{path} is text, and neither layers nor a build log of TensorRT: by its name, "
        raise UsageError(f"{what}{known.what}", known.hint, code="QD-USAGE-ENGINE-FILE")
    raise _not_taken(f"{path} is text, but not a build log of TensorRT")


def _model(path: Path) -> ModelFile:
    try:
        return read_model(path)
    except ModelError as error:
        damaged = error.code in _NO_MODEL or path.suffix in _NO_SOURCES
        if path.suffix == ".onnx" or not damaged:
            raise
        why = f"{path} is neither an engine nor a model, nor does it describe one"
        if path.suffix in ENGINE_SUFFIXES:
            why = (
                f"{path} is named like a serialized engine, and does not begin like one of TensorRT"
            )
        raise _not_taken(why) from error


def open_device(path: Path) -> Device:
    """The GPU in the metadata of an engine, or in trtexec's log.

    Raises:
        UsageError: the file cannot be read or names no GPU.
    """
    text = _text(_read(path)) or ""
    if text.lstrip()[:1] in ("{", "["):
        return read_device_metadata(_parsed(text, path), str(path))
    found = device_in_log(lines_of(text))
    if found is None:
        raise UsageError(
            f"{path} names no GPU",
            "Give FILE.metadata.json of trex, or a log of trtexec.",
            code="QD-USAGE-ENGINE-FILE",
        )
    return found


def open_times(path: Path) -> ExecutionTimes:
    """The times of executions.

    Raises:
        UsageError: the file cannot be read or holds none.
    """
    text = _text(_read(path))
    return read_times(_parsed(text, path) if text is not None else None, str(path))


def open_profile(path: Path) -> tuple[LayerTime, ...]:
    """The times in a profile, or in the table that trtexec --dumpProfile printed into a log.

    Raises:
        UsageError: the file cannot be read or is not a profile.
    """
    text = _text(_read(path))
    printed = times_in_log(text) if text is not None else ()
    if printed:
        return printed
    document = _parsed(text, path) if text is not None else None
    return read_profile(document, str(path))  # type: ignore[arg-type]


def describes_engine(path: Path) -> bool:
    """Whether a file holds an engine's layers as text or JSON; False for one that cannot be read,
    for a model and for a serialized engine."""
    try:
        text = _text(_read(path))
    except UsageError:
        return False
    if text is None or not text.strip():
        return False
    if text.lstrip()[0] not in "{[" or is_polygraphy_text(text):
        return is_polygraphy_text(text) or is_build_log(text)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return is_build_log(text)
    return is_layer_info(document)


def addition_of(path: Path) -> Literal["profile", "timing", "metadata"] | None:
    """The setting of `inspect` that takes a JSON file, which tells of an engine but not of its
    layers; None for any other file, and for one that cannot be read."""
    try:
        text = _text(_read(path)) if path.suffix == ".json" else None
        document = json.loads(text) if text is not None else None
    except (UsageError, ValueError, RecursionError):
        return None
    if is_times(document):
        return "timing"
    if is_device_metadata(document):
        return "metadata"
    return "profile" if is_profile(document) else None


def _from_json(text: str, path: Path) -> EngineInfo:
    document = _parsed(text, path)
    if is_profile(document):
        return info_of_profile(read_profile(document, str(path)))  # type: ignore[arg-type]
    if is_layer_info(document):
        return read_layer_info(document, str(path))  # type: ignore[arg-type]
    for found, what, setting in (
        (is_times(document), "times of executions (trtexec --exportTimes)", "timing"),
        (is_device_metadata(document), "metadata of an engine (trex)", "metadata"),
    ):
        if found:
            raise UsageError(
                f"{path} holds {what}, and no layers",
                f"Inspect the layer information of the engine with {option(setting, str(path))}.",
                code="QD-USAGE-ENGINE-FILE",
            )
    raise _not_taken(f"{path} is JSON, but neither layer information nor a profile")


def _parsed(text: str, path: Path) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg}",
            "Was the file written to its end? trtexec writes it when it has finished.",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        ) from error
    except (RecursionError, ValueError) as error:  # a number of thousands of digits
        raise UsageError(
            f"{path}: JSON that is nested too deep, or holds a number of too many digits",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        ) from error


def _read(path: Path, most: int = -1) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(most)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}",
            _TAKES,
            code="QD-USAGE-FILE-UNREADABLE",
        ) from error


def _text(data: bytes) -> str | None:
    """The text of a file, None for a binary one."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell redirects in UTF-16
        return data.decode("utf-16", errors="replace")
    # A small ONNX model may hold no zero byte, but the number of a field it always does.
    if b"\0" in data or _CONTROL.search(data[:64]):
        return None
    text = data.decode("utf-8-sig", errors="replace")
    return None if text.count("\ufffd") > len(text) // 100 else text


def _not_taken(why: str) -> UsageError:
    return UsageError(why, _TAKES, code="QD-USAGE-ENGINE-FILE")
