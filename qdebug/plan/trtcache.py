"""TensorRT's calibration cache: the text file that its INT8 calibrators write and read.

    TRT-101100-EntropyCalibration2
    input: 3c010a14

After a header with the library's version and the calibrator's kind, one line per tensor: its name
and the big-endian bit pattern of a float32 scale, "0" for zero from TensorRT 10
on; amax = 127 · scale. (The format is that of
IInt8Calibrator::writeCalibrationCache of TensorRT 10; TensorRT 11 and RTX have no calibrators.)
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qdebug.errors import PlanError
from qdebug.formats.registry import INT8
from qdebug.inputfiles import open_file, read_text

CACHE_MAGIC = b"TRT-"
"""What a cache starts with."""
HEADER = re.compile(r"^TRT-(\d+)-(\w+)$")
KINDS = ("EntropyCalibration2", "MinMaxCalibration", "EntropyCalibration", "LegacyCalibration")
DEFAULT_KIND = "EntropyCalibration2"
"""The class of calibrator that trtexec, qdebug and, by default, Polygraphy use. TensorRT ignores a
cache of another class than its reader's, whatever method found the ranges."""
DEFAULT_VERSION = 101600
"""10.16.0, the newest with calibrators; TensorRT ignores a cache of other versions."""


@dataclass(frozen=True)
class CalibrationCache:
    """A parsed cache.

    Attributes:
        version: the library's version number in the header, such as 101100 for 10.11.0.
        kind: the calibrator's kind in the header.
        scales: tensor name -> scale, exactly as in the file.
        unbounded: tensors whose scale is infinite: TensorRT 8.6 and 10 write that for the mask of
            an attention and for constants that hold an infinity.
    """

    version: int
    kind: str
    scales: Mapping[str, float]
    unbounded: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        """The version in dots: 8601 is 8.6.1, and from version 10 on 101600 is 10.16.0."""
        major, rest = divmod(self.version, 10_000 if self.version >= 100_000 else 1000)
        return f"{major}.{rest // 100}.{rest % 100}"

    @property
    def amax(self) -> dict[str, float]:
        """Tensor name -> the magnitude that maps to 127."""
        return {name: INT8.largest * scale for name, scale in self.scales.items()}


def is_cache(path: Path) -> bool:
    """Whether a file starts like a calibration cache."""
    try:
        with open_file(path) as stream:
            return stream.read(len(CACHE_MAGIC)) == CACHE_MAGIC
    except OSError:
        return False


def read_cache(path: str | Path) -> CalibrationCache:
    """Read a calibration cache.

    Raises:
        PlanError: "file:line: what is wrong"; a scale that is NaN or negative among others.
    """
    path = Path(path)
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        raise PlanError(f"{path}: no such file", "Check the path.", code="QD-PLAN-FILE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{path}: cannot be read as text: {error}",
            "Give a calibration cache that TensorRT wrote.",
            code="QD-PLAN-FILE",
        ) from error
    header = HEADER.match(lines[0].strip()) if lines else None
    if header is None:
        raise PlanError(
            f"{path}:1: not a TensorRT calibration cache",
            "Its first line must look like TRT-101100-EntropyCalibration2.",
            code="QD-PLAN-CACHE",
        )
    scales: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        entry = _ENTRY.fullmatch(line.rstrip())
        if entry is None:
            raise PlanError(
                f"{path}:{number}: '{line.strip()[:60]}' is not a line of a calibration cache",
                "A line looks like 'tensor: 3c010a14': a name and eight hexadecimal digits.",
                code="QD-PLAN-CACHE",
            )
        name, scale = entry[1].strip(), struct.unpack(">f", bytes.fromhex(entry[2].zfill(8)))[0]
        if math.isnan(scale) or scale < 0 or name in scales:
            twice = f"tensor '{name}' is listed twice"
            raise PlanError(
                f"{path}:{number}: "
                + (twice if name in scales else f"the scale of '{name}' is {scale}"),
                "Remove one of the two lines."
                if name in scales
                else "Calibrate again: a scale is a number >= 0.",
                code="QD-PLAN-CACHE",
            )
        scales[name] = float(scale)
    finite = {name: scale for name, scale in scales.items() if math.isfinite(scale)}
    unbounded = tuple(name for name in scales if name not in finite)
    return CalibrationCache(int(header[1]), header[2], finite, unbounded)


_ENTRY = re.compile(r"(.+):\s*([0-9a-fA-F]{8}|0)")
"""A name, which may hold ": ", and a scale."""


def cache_text(cache: CalibrationCache) -> str:
    """The text of a cache; reading it gives `cache` back."""
    lines = [f"TRT-{cache.version}-{cache.kind}"]
    for name, scale in cache.scales.items():
        lines.append(f"{name}: {struct.pack('>f', scale).hex()}")
    return "\n".join(lines) + "\n"


def default_cache_text(scales: Mapping[str, float]) -> str:
    """The text of a cache of scales by tensor name, as the newest TensorRT that reads one does."""
    return cache_text(CalibrationCache(DEFAULT_VERSION, DEFAULT_KIND, scales))
