"""Every remedy, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from qdebug.decide.remedies import (
    bias_correction,
    channel_scales,
    equalization,
    fp16_rewrites,
    least_squares,
    ranges,
    rounding,
    smoothing,
    split,
    weight_ranges,
)
from qdebug.decide.remedies.remedy import Remedy

# What rewrites the network comes first: it decides which ranges there are to choose, and wins most.
# Each of the others makes up for what those before it have left. What adds work comes last.
_ALL: tuple[Remedy, ...] = (
    fp16_rewrites.REMEDY,
    channel_scales.REMEDY,
    equalization.REMEDY,
    smoothing.REMEDY,
    ranges.REMEDY,
    weight_ranges.REMEDY,
    least_squares.REMEDY,
    bias_correction.REMEDY,
    rounding.REMEDY,
    split.REMEDY,
)
REMEDIES: Mapping[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
