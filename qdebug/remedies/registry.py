"""Every remedy, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from qdebug.remedies import bias_correction, channel_scales, least_squares, smoothing
from qdebug.remedies.remedy import Remedy

_ALL: tuple[Remedy, ...] = (
    channel_scales.REMEDY,
    smoothing.REMEDY,
    least_squares.REMEDY,
    bias_correction.REMEDY,
)
REMEDIES: Mapping[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
