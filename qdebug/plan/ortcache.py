"""The ranges that ONNX Runtime calibrates for its TensorRT execution provider.

`onnxruntime.quantization.write_calibration_table` writes calibration.json, with the lowest and the
highest value of each tensor, calibration.flatbuffers, the table that the provider reads: pairs of a
name and an amax, both as text, and calibration.cache, the same as lines "name 2.25". (Seen with
ONNX Runtime 1.14 to 1.23; older JSON has two numbers in place of the record.)
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qdebug.errors import PlanError
from qdebug.inputfiles import open_file

_LINE = re.compile(rb"(?!#)[^\n]*[^:\s] -?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan)\r?(?:\n|$)")
_DAMAGED = (AttributeError, LookupError, RecursionError, TypeError, ValueError, struct.error)
"""What readers of JSON and flatbuffers raise of other files."""


def is_ort_cache(path: Path) -> bool:
    """Whether a file starts as one of the three: by its content, and by its name where that is
    binary."""
    try:
        with open_file(path) as stream:
            start: bytes = stream.read(4096)
    except OSError:
        return False
    # A plan may be JSON, too.
    written = start.lstrip()[:1] == b"{" and b'"schema"' not in start[:64]
    return written or _LINE.match(start) is not None or path.suffix == ".flatbuffers"


def read_ort_cache(path: Path) -> dict[str, float]:
    """Tensor name -> amax.

    Raises:
        PlanError: the file is cut off or holds something else.
    """
    with open_file(path) as stream:
        data: bytes = stream.read()
    try:
        of_text = _of_json if data.lstrip()[:1] == b"{" else _of_flatbuffers
        entries = (_of_lines if _LINE.match(data) else of_text)(data)
    except _DAMAGED as error:
        raise PlanError(
            f"{path}: not a calibration table of ONNX Runtime: {error}",
            "Give calibration.json, .flatbuffers or .cache as ONNX Runtime wrote it.",
            code="QD-PLAN-CACHE",
        ) from error
    wrong = next((n for n, amax in entries.items() if not (math.isfinite(amax) and amax >= 0)), "")
    if wrong or not entries:
        what = f"the range of '{wrong}' is {entries[wrong]}" if wrong else "it holds no ranges"
        raise PlanError(
            f"{path}: {what}",
            "Calibrate again: a range is a finite number >= 0.",
            code="QD-PLAN-CACHE",
        )
    return entries


def _of_lines(data: bytes) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in data.decode().split("\n") if line.strip()]
    return {name: float(amax) for name, _, amax in lines}


def _of_json(data: bytes) -> dict[str, float]:
    document = json.loads(data)
    return {name: _amax(value) for name, value in document.items()}


def _amax(value: Any) -> float:
    ends = [value["lowest"], value["highest"]] if isinstance(value, Mapping) else list(value)
    numbers = [end["data"] if isinstance(end, Mapping) else end for end in ends]
    flat = [n[0] if isinstance(n, list) else n for n in numbers]
    return max(abs(float(n)) for n in flat)


def _of_flatbuffers(data: bytes) -> dict[str, float]:
    from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable  # takes 0.3 s

    table = TrtTable.GetRootAs(_Whole(data))
    entries = [table.Dict(i) for i in range(table.DictLength())]
    return {entry.Key().decode(): float(entry.Value()) for entry in entries}


class _Whole(bytes):
    """Bytes that no slice may exceed: flatbuffers would take what is left of a text for all."""

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice) and at.stop > len(self):
            raise ValueError("it is cut off")
        return super().__getitem__(at)
