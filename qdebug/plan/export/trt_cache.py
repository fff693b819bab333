"""TensorRT's calibration cache: the ranges of a plan for the calibrators of TensorRT 8 and 10."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdebug.errors import PlanError
from qdebug.plan.export.source import ExportSource, Rendered, notes_on
from qdebug.plan.trtcache import DEFAULT_KIND, DEFAULT_VERSION, default_cache_text
from qdebug.types import Precision

_RELEASE = f"{DEFAULT_VERSION // 10000}.{DEFAULT_VERSION // 100 % 100}"


def render_trt_cache(source: ExportSource, path: Path) -> Rendered:
    """The cache alone.

    Raises:
        PlanError: the plan has no range.
    """
    data, notes = calibration_cache(source)
    bound = source.bound
    pinned = (n for n, p in bound.precisions.items() if p is not Precision.INT8)
    others = [name for name in pinned if bound.layers.by_name[name].quantizable]
    notes += notes_on(
        (
            others,
            "layer",
            "A cache holds ranges only: the precision of {these} is not in it (first '{first}'). "
            "The targets 'trtexec', 'polygraphy' and 'python' write both.",
        ),
        (
            source.weight_ranges,
            "weight",
            "A cache holds no ranges of weights; TensorRT derives them from the values.",
        ),
    )
    return Rendered({path: data}, notes)


def calibration_cache(source: ExportSource) -> tuple[bytes, tuple[str, ...]]:
    """The cache of the plan's ranges, and notes.

    Raises:
        PlanError: the plan has no range of an activation.
    """
    data, notes = cache_of(source, source.scales.scales)
    return data, (*source.scales.notes, *notes)


def cache_of(source: ExportSource, scales: Mapping[str, float]) -> tuple[bytes, tuple[str, ...]]:
    """A cache of scales by tensor name, and notes.

    Raises:
        PlanError: there is none that a cache could hold.
    """
    broken = [name for name in scales if name.strip() != name or not name.isprintable()]
    kept = {name: scale for name, scale in scales.items() if name not in broken}
    if not kept:
        if not source.bound.quantized_layers():
            raise PlanError(
                f"{source.name}: no layer is in INT8, and this target is for INT8",
                "The target 'onnx' can express any plan.",
                code="QD-PLAN-NOTHING-TO-QUANTIZE",
            )
        raise PlanError(
            f"{source.name}: no range that a calibration cache could hold",
            "Calibrate first with `qdebug calibrate`.",
            code="QD-PLAN-NO-RANGES",
        )
    origin = (
        f"The calibration cache names TensorRT {_RELEASE} and {DEFAULT_KIND}, the calibrator of "
        "trtexec and Polygraphy. A TensorRT that does not accept this, or a calibrator of another "
        "class, calibrates again: change the first line to that of your own caches."
    )
    text = (
        "The ranges of {these} are not written, because a cache cannot hold their names (first "
        "{first!r})."
    )
    notes = (origin, *notes_on((broken, "tensor", text)))
    return default_cache_text(kept).encode("utf-8"), notes
