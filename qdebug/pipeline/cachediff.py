"""How an existing calibration differs from a fresh one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qdebug.calibrate.histogram import TensorHistogram
from qdebug.calibrate.methods import Calibrator, parse_method
from qdebug.errors import UsageError
from qdebug.measure.calibration import FACTOR, CacheDifference, RangeDifference
from qdebug.model.prepare import Model
from qdebug.plan.rangesfile import Ranges

_DENORMAL = float(np.finfo(np.float32).tiny) * 127
_BY_KIND = {
    "TensorRT EntropyCalibration": "entropy",
    "TensorRT EntropyCalibration2": "entropy",
}
"""Which of our methods a calibrator of TensorRT goes by; the others keep the largest magnitude."""


def compare_with_cache(
    file: Ranges,
    fresh: Mapping[str, TensorHistogram],
    needed: Sequence[str],
    model: Model,
) -> CacheDifference:
    """Compare the ranges of a file with those that its own method gives now, where that is one of
    ours, else with the largest magnitudes.

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
        calibrator = _same(entry.method)
        amax, now = float(np.max(entry.amax)), calibrator.amax(fresh[tensor])
        if amax < _DENORMAL and now > 0:
            degenerate.append(tensor)
        else:
            difference = RangeDifference(tensor, amax, now, calibrator.name)
            if difference.factor > FACTOR:
                different.append(difference)
    different.sort(key=lambda d: d.factor, reverse=True)
    return CacheDifference(
        missing=tuple(t for t in needed if t not in file.tensors),
        unknown=tuple(t for t in file.tensors if t not in known),
        unused=len([t for t in file.tensors if t in known and t not in needed]),
        different=tuple(different),
        degenerate=tuple(degenerate),
        written_by=file.written_by,
    )


def _same(method: str) -> Calibrator:
    """The calibrator that ranges of `method` are to be compared with."""
    try:
        return parse_method(_BY_KIND.get(method, method))
    except UsageError:  # a user's own, a value set by hand, another calibrator of TensorRT
        return parse_method("minmax")


def _tensors(model: Model) -> set[str]:
    """The names of all tensors of a model, also of those that are folded away: TensorRT writes a
    range for each that it has."""
    found = {*model.graph.producers, *model.graph.initializers}
    found |= {spec.name for spec in model.graph.inputs}
    graph = model.file.proto.graph
    found |= {t for node in graph.node for t in (*node.input, *node.output)}
    return found
