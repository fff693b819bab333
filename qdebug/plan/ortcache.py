"""The ranges that ONNX Runtime calibrates for its TensorRT execution provider.

`onnxruntime.quantization.write_calibration_table` writes calibration.json, with the lowest and the
highest value of each tensor, and calibration.flatbuffers, the table that the provider reads: pairs
of a name and an amax, both as text. (Seen with ONNX Runtime 1.14 to 1.23; older JSON has two
numbers in place of the record.)
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qdebug.errors import PlanError
from qdebug.inputfiles import open_file


def is_ort_cache(path: Path) -> bool:
    """Whether a file starts as one of the two: by its content, and by its name where that is
    binary."""
    try:
        with open_file(path) as stream:
            start: bytes = stream.read(64)
    except OSError:
        return False
    written = start.lstrip()[:1] == b"{" and b'"schema"' not in start  # a plan may be JSON, too
    return written or path.suffix == ".flatbuffers"


def read_ort_cache(path: Path) -> dict[str, float]:
    """Tensor name -> amax.

    Raises:
        PlanError: the file is cut off or holds something else.
    """
    with open_file(path) as stream:
        data: bytes = stream.read()
    try:
        entries = _of_json(data) if data.lstrip()[:1] == b"{" else dict(_of_flatbuffers(data))
    except (ValueError, LookupError, TypeError, RecursionError, struct.error) as error:
        raise PlanError(
            f"{path}: not a calibration table of ONNX Runtime: {error}",
            "Give calibration.json or calibration.flatbuffers as ONNX Runtime wrote it.",
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


def _of_json(data: bytes) -> dict[str, float]:
    document = json.loads(data)
    return {name: _amax(value) for name, value in document.items()}


def _amax(value: Any) -> float:
    ends = [value["lowest"], value["highest"]] if isinstance(value, Mapping) else list(value)
    numbers = [end["data"] if isinstance(end, Mapping) else end for end in ends]
    flat = [n[0] if isinstance(n, list) else n for n in numbers]
    return max(abs(float(n)) for n in flat)


def _of_flatbuffers(data: bytes) -> Iterator[tuple[str, float]]:
    """The entries of TrtTable { dict: [KeyValue { key: string; value: string }] }."""
    root = _offset(data, 0)
    entries = root + _field(data, root, 0)
    vector = entries + _offset(data, entries)
    for i in range(_offset(data, vector)):
        place = vector + 4 + 4 * i
        entry = place + _offset(data, place)
        key, value = (_string(data, entry + _field(data, entry, k)) for k in (0, 1))
        yield key, float(value)


def _offset(data: bytes, at: int) -> int:
    found: int = struct.unpack_from("<I", data, at)[0]
    return found


def _field(data: bytes, table: int, number: int) -> int:
    """The place of a field behind the start of its table, by the table's list of places."""
    places = table - struct.unpack_from("<i", data, table)[0]
    size, place = (struct.unpack_from("<H", data, places + k)[0] for k in (0, 4 + 2 * number))
    if size < 6 + 2 * number or not place:
        raise ValueError("an entry lacks a field")
    return int(place)


def _string(data: bytes, at: int) -> str:
    start = at + _offset(data, at)
    end = start + 4 + _offset(data, start)
    if end > len(data):
        raise ValueError("it is cut off")
    return data[start + 4 : end].decode()
