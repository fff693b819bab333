"""TensorRT's calibration cache: the ranges of a plan for the calibrators of TensorRT 8 and 10."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdebug.errors import PlanError
from qdebug.plan.export.ranges import file_scales, weight_ranges
from qdebug.plan.export.source import Rendered, Source, counted
from qdebug.plan.trtcache import DEFAULT_KIND, DEFAULT_VERSION, CalibrationCache, cache_text
from qdebug.types import Precision

SUFFIX = ".cache"


def render_trt_cache(source: Source, path: Path) -> Rendered:
    """The cache alone.

    Raises:
        PlanError: the plan has no range.
    """
    data, notes = calibration_cache(source)
    others = [x.name for x in source.bound.layers if _is_pinned(source, x.name)]
    if others:
        notes += (
            f"A cache holds ranges only: the precision of {counted(others, 'layer')}, first "
            f"'{others[0]}', is not in it. --to trtexec, polygraphy and python write both.",
        )
    if weight_ranges(source.bound):
        notes += ("A cache holds no ranges of weights; TensorRT takes them from the values.",)
    return Rendered({path: data}, notes)


def calibration_cache(source: Source) -> tuple[bytes, tuple[str, ...]]:
    """The cache of the plan's ranges, and notes.

    Raises:
        PlanError: the plan has no range of an activation.
    """
    found = file_scales(source)
    data, notes = cache_of(source, found.scales)
    return data, (*found.notes, *notes)


def cache_of(source: Source, scales: Mapping[str, float]) -> tuple[bytes, tuple[str, ...]]:
    """A cache of scales by tensor name, and notes.

    Raises:
        PlanError: there is none that it could hold.
    """
    broken = [name for name in scales if name.strip() != name or not name.isprintable()]
    kept = {name: scale for name, scale in scales.items() if name not in broken}
    if not kept:
        raise PlanError(
            f"{source.name} has no range that could go into a calibration cache",
            "Calibrate first: qdebug calibrate MODEL --calib-data DATA -o scales.yaml",
        )
    notes: tuple[str, ...] = (
        f"The calibration cache says TensorRT {_version()} and {DEFAULT_KIND}, the calibrator of "
        "trtexec and Polygraphy. A TensorRT that does not accept that, or a calibrator of another "
        "class, calibrates anew: change its first line to what your own caches say.",
    )
    if broken:
        notes += (
            f"The ranges of {counted(broken, 'tensor')} whose names a cache cannot hold, first "
            f"{broken[0]!r}, are not written.",
        )
    cache = CalibrationCache(DEFAULT_VERSION, DEFAULT_KIND, kept)
    return cache_text(cache).encode("utf-8"), notes


def _version() -> str:
    return f"{DEFAULT_VERSION // 10000}.{DEFAULT_VERSION // 100 % 100}"


def _is_pinned(source: Source, layer: str) -> bool:
    known = source.bound.layers.by_name[layer]
    return known.quantizable and source.bound.precisions[layer] is not Precision.INT8
