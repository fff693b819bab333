"""Every remedy, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from qdebug.decide.remedies import (
    bias_correction,
    calibrator,
    channel_scales,
    equalization,
    head_shift,
    least_squares,
    offsets,
    ranges,
    smoothing,
    weight_scales,
)
from qdebug.decide.remedies.remedy import Remedy

# By what they are expected to gain for the time that they take. Scales of weights take one
# judgement, and decide with what weights the others are tried; the calibrator costs little more and
# often wins most. What rewrites the network decides which ranges there are to choose. Each of the
# others makes up for what those before it have left: bias correction, which takes seconds, before
# ranges and least squares, which take a minute each (and correct biases, too). What shifts the
# answers comes when nothing else changes them any more.
_ALL: tuple[Remedy, ...] = (
    weight_scales.REMEDY,
    calibrator.REMEDY,
    channel_scales.REMEDY,
    equalization.REMEDY,
    smoothing.REMEDY,
    offsets.REMEDY,
    bias_correction.REMEDY,
    ranges.REMEDY,
    least_squares.REMEDY,
    head_shift.REMEDY,
)
REMEDIES: Mapping[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
