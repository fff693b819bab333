"""How an existing calibration differs from a fresh one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator, parse_method
from qdebug.errors import UsageError
from qdebug.formats.registry import FP32, INT8
from qdebug.network.prepare import Model
from qdebug.plan.rangesfile import Ranges
from qdebug.results.calibrate import FACTOR, CacheDifference, RangeDifference

_DENORMAL = FP32.smallest_normal * INT8.largest
_MINMAX_KIND = "TensorRT MinMaxCalibration"


def compare_with_cache(
    file: Ranges,
    fresh: Mapping[str, TensorHistogram],
    needed: Sequence[str],
    model: Model,
) -> CacheDifference:
    """Compare the ranges of a file with those that its own method gives now, where that is known,
    else with the largest magnitudes. A calibration cache of another kind than minmax may be of any
    method that clips: its ranges are to lie between those of entropy and of minmax.

    Args:
        fresh: what a fresh pass saw of the `needed` tensors, which INT8 layers read.
    """
    known = _tensors(model)
    different = []
    degenerate = []
    for tensor in needed:
        if tensor not in file.tensors:
            continue
        entry = file.tensors[tensor]
        amax = float(np.max(entry.amax))
        if amax < _DENORMAL and fresh[tensor].amax > 0:
            degenerate.append(tensor)
            continue
        now = {c.name: c.amax(fresh[tensor]) for c in _methods(entry.method)}
        if not min(now.values()) <= amax <= max(now.values()):
            found = [RangeDifference(tensor, amax, now[name], name) for name in now]
            different.append(min(found, key=lambda d: d.factor))
    different = [d for d in different if d.factor > FACTOR]
    different.sort(key=lambda d: d.factor, reverse=True)
    return CacheDifference(
        missing=tuple(t for t in needed if t not in file.tensors),
        unknown=tuple(t for t in file.tensors if t not in known),
        unused=len([t for t in file.tensors if t in known and t not in needed]),
        different=tuple(different),
        degenerate=tuple(degenerate),
        written_by=file.written_by,
    )


def _methods(method: str) -> list[Calibrator]:
    """The calibrators that ranges of `method` are to be compared with."""
    if method.startswith("TensorRT ") and method != _MINMAX_KIND:
        return [parse_method("minmax"), parse_method("entropy")]
    try:
        return [parse_method(method)]
    except UsageError:  # TensorRT's minmax, a user's own, a value set by hand
        return [parse_method("minmax")]


def _tensors(model: Model) -> set[str]:
    """The names of all tensors of a model, also of those that are folded away: TensorRT writes a
    range for each that it has."""
    nodes = model.file.proto.graph.node
    return {*model.graph.tensors, *(t for n in nodes for t in (*n.input, *n.output))}
