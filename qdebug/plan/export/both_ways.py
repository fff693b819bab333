"""The files that both of TensorRT's ways need: the explicit model, and constraints with a cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdebug.plan.export.implicit import Implicit, implicit_form
from qdebug.plan.export.onnx_model import explicit_model
from qdebug.plan.export.source import Source, beside
from qdebug.plan.export.trt_cache import calibration_cache


@dataclass(frozen=True)
class BothWays:
    """What stands beside a script.

    Attributes:
        explicit: the Q/DQ + Cast model.
        cache: the calibration cache of the implicit way; written for INT8 only.
        form: the plan as constraints.
        files: contents by path.
        notes: what of the plan the implicit way does not hold.
    """

    explicit: Path
    cache: Path
    form: Implicit
    files: dict[Path, bytes]
    notes: tuple[str, ...]


def both_ways(source: Source, script: Path, suffix: str) -> BothWays:
    """The files beside `script`, whose name ends in `suffix`.

    Raises:
        PlanError: the plan cannot be lowered.
    """
    explicit = beside(script, ".explicit.onnx", suffix)
    cache = beside(script, ".calibration.cache", suffix)
    form = implicit_form(source)
    files, notes = {script: b"", explicit: explicit_model(source)}, form.notes
    if form.int8:
        files[cache], cache_notes = calibration_cache(source)
        notes += cache_notes
    return BothWays(explicit, cache, form, files, notes)
