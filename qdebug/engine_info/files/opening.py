"""Open a file that describes an engine: its kind is recognized by its content, not its name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

from qdebug.engine_info.files.build_log import is_build_log, log_lines, read_build_log
from qdebug.engine_info.files.layer_info import is_layer_info, read_layer_info
from qdebug.engine_info.files.layer_text import is_polygraphy_text, read_polygraphy_text
from qdebug.engine_info.files.onnx_file import info_of_graph
from qdebug.engine_info.files.timing import (
    Measured,
    info_of_profile,
    is_metadata,
    is_profile,
    is_times,
    measured_in_log,
    read_measured,
    read_profile,
    times_in_table,
)
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.measurements import Device, ExecutionTimes, LayerTime
from qdebug.errors import ModelError, UsageError
from qdebug.inputfiles import HDF5_MAGIC, open_file
from qdebug.network.foreign import ENGINE_SUFFIXES, recognized
from qdebug.network.inputshapes import InputShapes
from qdebug.network.load import ModelFile, read_model
from qdebug.network.prepare import prepare_model
from qdebug.wording import option

_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a]")
_JSON = re.compile(r"\s*(?:\{|\[\s*[\[\]{\"])")
"""How JSON of these kinds begins; a log may begin with a time or a level in brackets."""
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
Kind = Literal["layers", "profile", "timing", "metadata"]
_KINDS: tuple[tuple[Kind, Callable[[object], bool], str], ...] = (
    ("layers", is_layer_info, "layer information"),
    ("timing", is_times, "times of executions (trtexec --exportTimes)"),
    ("metadata", is_metadata, "metadata of an engine (trex)"),
    ("profile", is_profile, "a profile"),
)
"""What JSON tells of an engine. All but layers have a setting of `inspect` of this name."""
_OTHER_TEXTS: tuple[tuple[str, str, Callable[[Path], str]], ...] = (
    (
        r"TRT-\d",
        "is a calibration cache of TensorRT, which holds ranges and no layers",
        lambda path: f"Compare its ranges: {option('from_cache', str(path))} of calibrate.",
    ),
    (
        r"(?s)\s*<\?xml.{0,1000}<net\s",
        "is a model of OpenVINO (its intermediate representation)",
        lambda path: (
            "Give the ONNX model that it was converted from; "
            f"{option('backend', 'openvino')} of compare runs that."
        ),
    ),
    (
        r"(?s)\s*\[.*(?:Comparing Output: |Accuracy Summary)",
        "is a comparison that Polygraphy printed: outputs, and no layers",
        lambda path: (
            "`qdebug compare` shows which layer makes a difference; of an engine, give the text of "
            "polygraphy inspect model ENGINE --show layers."
        ),
    ),
)
"""Texts that tell no layers: how one begins, what it is, and what to do."""


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
        if data.startswith(HDF5_MAGIC):
            _not_taken(f"{path} is a run file of qdebug, not an engine")
        text = _text(data)
        if text is not None:
            return _described(text, path)
        del data
    return info_of_graph(prepare_model(_model(path), shapes=shapes, fed=False).graph)


def open_device(path: Path) -> Device:
    """The GPU in the metadata of an engine, or in trtexec's log.

    Raises:
        UsageError: the file cannot be read or names no GPU.
    """
    found = _measured(path).device
    if found is None:
        raise UsageError(
            f"{path} names no GPU",
            "Give FILE.metadata.json of trex, or a log of trtexec.",
            code="QD-USAGE-ENGINE-FILE",
        )
    return found


def open_times(path: Path) -> ExecutionTimes:
    """The times of executions: of trtexec --exportTimes, or its performance summary in a log.

    Raises:
        UsageError: the file cannot be read or holds none.
    """
    found = _measured(path).executions
    if found is None:
        raise UsageError(
            f"{path} does not hold the times of executions",
            "trtexec --exportTimes=FILE writes them; its log ends with a summary.",
            code="QD-USAGE-ENGINE-FILE",
        )
    return found


def open_profile(path: Path) -> tuple[LayerTime, ...]:
    """The times in a profile, or in the table that trtexec --dumpProfile printed into a log.

    Raises:
        UsageError: the file cannot be read or is not a profile.
    """
    text = _text(_read(path)) or ""
    printed = () if _JSON.match(text) else times_in_table([x.text for x in log_lines(text)])
    return printed or read_profile(_document(text, path), str(path))


def engine_file_kind(path: Path) -> Kind | None:
    """What a text or JSON tells of an engine; None for one that tells nothing of any, for a model,
    a serialized engine, and a file that cannot be read."""
    try:
        text = _text(_read(path)) or ""
        document = _document(text, path)
    except UsageError:
        return None
    if is_polygraphy_text(text) or (document is None and is_build_log(text)):
        return "layers"
    return _kind(document)


def _kind(document: object) -> Kind | None:
    return next((kind for kind, recognizes, _ in _KINDS if recognizes(document)), None)


def _described(text: str, path: Path) -> EngineInfo:
    """The engine that a text describes. Raises as `open_engine_file`."""
    if not text.strip():
        _not_taken(f"{path} is empty")
    if is_polygraphy_text(text):
        return read_polygraphy_text(text, str(path))
    document = _document(text, path)
    if document is not None:
        return _of_document(document, path)
    if is_build_log(text):
        return read_build_log(text, str(path))
    for begins, what, hint in _OTHER_TEXTS:
        if re.match(begins, text):
            raise UsageError(f"{path} {what}", hint(path), code="QD-USAGE-ENGINE-FILE")
    known, why = recognized(path), f"{path} is text, but not a build log of TensorRT"
    if known is None or path.suffix in (".yaml", ".yml"):
        raise UsageError(why, _TAKES, code="QD-USAGE-ENGINE-FILE")
    why = f"{path} is text, and neither layers nor a build log of TensorRT: by its name, "
    raise UsageError(f"{why}{known.what}", known.hint, code="QD-USAGE-ENGINE-FILE")


def _of_document(document: Any, path: Path) -> EngineInfo:
    """The engine that a JSON describes. Raises as `open_engine_file`."""
    kind = _kind(document)
    if kind == "layers":
        return read_layer_info(document, str(path))
    if kind == "profile":
        return info_of_profile(read_profile(document, str(path)))
    if kind is None:
        _not_taken(f"{path} is JSON, but neither layer information nor a profile")
    words = next(words for found, _, words in _KINDS if found == kind)
    raise UsageError(
        f"{path} holds {words}, and no layers",
        f"Inspect the layer information of the engine with {option(kind, str(path))}.",
        code="QD-USAGE-ENGINE-FILE",
    )


def _measured(path: Path) -> Measured:
    """What a file tells of executions and of the GPU. Raises as `open_times`."""
    text = _text(_read(path)) or ""
    if _JSON.match(text):
        return read_measured(_document(text, path), str(path))
    return measured_in_log([line.text for line in log_lines(text)])


def _model(path: Path) -> ModelFile:
    try:
        return read_model(path)
    except ModelError as error:
        damaged = error.code in _NO_MODEL or path.suffix in _NO_SOURCES
        if path.suffix == ".onnx" or not damaged:
            raise
        engine = "is named like a serialized engine, and does not begin like one of TensorRT"
        other = "is neither an engine nor a model, nor does it describe one"
        _not_taken(f"{path} {engine if path.suffix in ENGINE_SUFFIXES else other}")


def _document(text: str, path: Path) -> Any:
    """The JSON of a file; None where it is no JSON.

    Raises:
        UsageError: it begins like JSON, and cannot be read.
    """
    if not _JSON.match(text):
        return None
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        if is_build_log(text):
            return None
        how = f"{path}: JSON that is nested too deep, or holds a number of too many digits"
        if isinstance(error, json.JSONDecodeError):
            how = f"{path}:{error.lineno}: not valid JSON: {error.msg}"
        raise UsageError(
            how,
            "Was the file written to its end? trtexec writes it when it has finished.",
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


def _not_taken(why: str) -> NoReturn:
    raise UsageError(why, _TAKES, code="QD-USAGE-ENGINE-FILE")
