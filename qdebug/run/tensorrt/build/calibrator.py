"""A calibrator for TensorRT 10 that does not calibrate: it serves the ranges of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdebug.errors import UsageError
from qdebug.plan.quantize import QMAX
from qdebug.plan.trtcache import DEFAULT_KIND, KINDS, CalibrationCache, cache_text
from qdebug.run.tensorrt.library import Library

_CLASSES = {
    "EntropyCalibration2": "IInt8EntropyCalibrator2",
    "MinMaxCalibration": "IInt8MinMaxCalibrator",
    "EntropyCalibration": "IInt8EntropyCalibrator",
}


def make_calibrator(library: Library, ranges: Mapping[str, float], kind: str = DEFAULT_KIND) -> Any:
    """A `trt.IInt8Calibrator` whose calibration cache holds `ranges`.

    The builder reads the cache and asks for no batch. If it does ask, it did not accept the cache
    (github.com/NVIDIA/TensorRT/issues/1378); there is none to give, and `refused` of the
    calibrator turns true.

    Args:
        library: TensorRT 10.
        ranges: amax by tensor name.
        kind: of the cache, as its header says; decides the class.

    Raises:
        UsageError: the library knows no calibrators, or not this kind.
    """
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no INT8 calibrators",
            "Build the lowered model (explicit Q/DQ): it needs none.",
        )
    if kind not in _CLASSES:
        known = ", ".join(k for k in KINDS if k in _CLASSES)
        raise UsageError(f"no calibrator can serve a cache of kind '{kind}'", f"Use {known}.")
    scales = {name: amax / QMAX for name, amax in ranges.items()}
    content = cache_text(CalibrationCache(cache_version(library), kind, scales)).encode()
    base: Any = getattr(library.module, _CLASSES[kind])

    class PlanCalibrator(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)  # pybind11: a trampoline without it crashes
            self.refused = False

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            self.refused = True
            return None

        def read_calibration_cache(self) -> bytes:
            return content

        def write_calibration_cache(self, cache: Any) -> None:
            """Nothing new can be in it."""

    return PlanCalibrator()


def cache_version(library: Library) -> int:
    """The library's version as a cache's header has it: 101601 for 10.16.1."""
    major, minor, patch = (*library.version, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch
