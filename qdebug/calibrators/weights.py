"""Ranges of weights, per tensor or per channel along an axis: the largest magnitude, or the amax of
least squared error.

Weights are known exactly, so for the latter each candidate is tried on the values themselves. The
range ends at the amax of least squared error

    E(amax) = Σ (w − s · clamp(round(w / s), −128, 127))²,   s = amax / 127

in INT8, and likewise with the codes of another format,
among ranges up to the largest magnitude (see mse.py for the source).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.gather import histogram_of
from qdebug.calibrators.histogram import Float32, Float64
from qdebug.calibrators.mse import mse_amax
from qdebug.formats.base import Format
from qdebug.formats.registry import INT8

Weight = npt.NDArray[np.floating[Any]]

_BLOCK = 1 << 16  # elements that are handled together: what they need stays in a core's cache
_COARSE = 24  # ranges that are tried for a channel, at first
_COARSE_SHORT = 96  # the same for a channel of few values, whose error has many narrow valleys
_SHORT = 256
_FINER = 4  # points on either side of the best, twice


def weight_amax(weight: Weight, axis: int | None) -> Float64:
    """The largest magnitude of a weight: of shape [], or [channels] along `axis`; 0 for an empty
    channel."""
    others = None if axis is None else tuple(set(range(weight.ndim)) - {axis % weight.ndim})
    highest, lowest = (f(weight, axis=others, initial=0.0) for f in (np.max, np.min))
    return np.asarray(np.maximum(highest, -lowest), np.float64)


def block_amax(weight: Weight, axis: int, size: int) -> Float64:
    """The largest magnitude of each block of `size` values along an axis, the last of which may be
    shorter: of the weight's rank."""
    first = range(0, weight.shape[axis], size)
    highest, lowest = (f.reduceat(weight, first, axis) for f in (np.maximum, np.minimum))
    return np.asarray(np.maximum(highest, -lowest), np.float64)


def mse_weight_amax(weight: Weight, axis: int | None, form: Format = INT8) -> Float64:
    """The amax of least squared error in a format, at most the largest magnitude.

    Args:
        weight: of any floating type and shape.
        axis: that of the channels; None gives the weight one range.

    Returns:
        float64: a scalar, or one for each channel. 0 for an empty channel. The largest magnitude,
        NaN or Inf, for one that holds such values.
    """
    largest = weight_amax(weight, axis)
    if axis is None:
        usable = weight.size > 0 and np.isfinite(largest)
        return np.asarray(mse_amax(histogram_of(weight), form) if usable else largest, np.float64)
    channels = _channels(weight, axis).astype(np.float32, copy=False)
    if channels.size == 0:
        return largest
    best = largest.copy()
    height = max(1, _BLOCK // channels.shape[1])
    for row in range(0, len(channels), height):
        rows = slice(row, row + height)
        finite = np.isfinite(largest[rows])
        best[rows][finite] = _least(channels[rows][finite], largest[rows][finite], form)
    return best


def _channels(weight: Weight, axis: int) -> Weight:
    moved = np.moveaxis(weight, axis, 0)
    return np.ascontiguousarray(moved).reshape(len(moved), int(np.prod(moved.shape[1:])))


def _least(channels: Float32, largest: Float64, form: Format) -> Float64:
    """The amax of least error of each row."""
    best, least = largest.copy(), _errors(channels, largest, form)
    count = _COARSE if channels.shape[1] > _SHORT else _COARSE_SHORT
    step = (largest - _lower_bound(largest, least, form)) / count
    best, least = _best_of(channels, best, least, step, range(-count, 0), largest, form)
    for _ in range(2):
        step = step / (_FINER + 1)
        offsets = [k for k in range(-_FINER, _FINER + 1) if k]
        best, least = _best_of(channels, best, least, step, offsets, largest, form)
    return best


def _best_of(
    channels: Float32,
    centre: Float64,
    least: Float64,
    step: Float64,
    offsets: Any,
    largest: Float64,
    form: Format,
) -> tuple[Float64, Float64]:
    best = centre
    for k in offsets:
        amax = np.minimum(centre + k * step, largest)
        errors = _errors(channels, amax, form)
        better = errors < least
        best, least = np.where(better, amax, best), np.where(better, errors, least)
    return best, least


def _lower_bound(largest: Float64, error: Float64, form: Format) -> Float64:
    """The amax below which clipping the largest magnitude alone, in INT8 to at most 128/127 · amax,
    costs more than `error`, that of no clipping."""
    return np.maximum((largest - np.sqrt(error)) * form.largest / -form.lowest, largest / 256)


def _errors(channels: Float32, amax: Float64, form: Format) -> Float64:
    """E of each row."""
    scale = form.scale_of(amax)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        values = channels / scale
        form.nearest(values, out=values)
        values *= scale
        values -= channels
        errors: Float64 = np.vecdot(values, values).astype(np.float64)
    return errors
