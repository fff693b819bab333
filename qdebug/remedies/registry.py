"""Every remedy, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from qdebug.remedies import (
    bias_correction,
    channel_scales,
    equalization,
    least_squares,
    ranges,
    rounding,
    smoothing,
    weight_ranges,
)
from qdebug.remedies.remedy import Remedy

_ALL: tuple[Remedy, ...] = (
    ranges.REMEDY,
    channel_scales.REMEDY,
    equalization.REMEDY,
    smoothing.REMEDY,
    weight_ranges.REMEDY,
    least_squares.REMEDY,
    bias_correction.REMEDY,
    rounding.REMEDY,
)
REMEDIES: Mapping[str, Remedy] = {remedy.name: remedy for remedy in _ALL}
_AGAIN = ("ranges",)
"""Tried again after the remedies that rewrite the network, which changes what ranges are best."""


def _sequence() -> tuple[str, ...]:
    rewrites = [i for i, one in enumerate(_ALL) if one.rewrites]
    names = [one.name for one in _ALL]
    if not rewrites:
        return tuple(names)
    again = [name for name in names[: rewrites[0]] if name in _AGAIN]
    return (*names[: rewrites[-1] + 1], *again, *names[rewrites[-1] + 1 :])


SEQUENCE = _sequence()
"""Names, in the order in which the remedies are tried; one may be tried twice."""
