"""What the first layers of an order give back when they run in FP32 together: a curve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Order(StrEnum):
    """How layers are ordered: by the outputs' noise that goes when one alone runs in FP32, or by
    what the first ones give back together."""

    EFFECT = "effect"
    TOGETHER = "together"


class Figure(StrEnum):
    """What is restored: the metric's loss, or without one, and where that loses nothing, the SQNR
    of the outputs, each by its worst part."""

    LOSS = "loss"
    SQNR = "sqnr_db"


@dataclass(frozen=True)
class CurvePoint:
    """The figure with so many layers in FP32.

    Attributes:
        layers: the first ones of `Curve.names`.
        value: the figure; NaN where the outputs hold NaN or Inf.
        restored: the part of what was lost that this gives back, as of `part_restored`.
        rises: it gives back more than any point before. A screen leaves out the others.
        std: the standard error of `restored`: 0 where every sample took part, null where it is not
            known.
    """

    layers: int
    value: float
    restored: float
    rises: bool = True
    std: float | None = None


@dataclass(frozen=True)
class Curve:
    """How fast the outputs recover as layer after layer runs in FP32.

    Attributes:
        order: of the layers: of those that were tried, the one whose curve rises fastest.
        figure: what the values are of.
        samples: they are of these, by which the order was chosen too.
        planned: the figure with no layer in FP32; `reference` with all: exact, +inf, for an SQNR.
        points: by their number of layers.
        names: of the layers in that order, up to the last point. The table follows it up to the
            last point that rises; the layers behind that follow by effect.
        fits: the layers of the summary gained on all samples, within 1 dB, the SQNR that they
            gained on these; as far as that was tested. A screen leaves out the curve otherwise.
        rises: of each order that was tried, the mean part restored by its first 1, 3, 5 and 13
            layers, as far as there are so many.
    """

    order: Order
    figure: Figure
    samples: int
    planned: float
    reference: float
    points: tuple[CurvePoint, ...]
    rises: Mapping[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    fits: bool = True

    @property
    def shown(self) -> tuple[CurvePoint, ...]:
        """The points that a screen shows."""
        return tuple(p for p in self.points if p.rises) if self.fits else ()

    def is_told_in_gains(self, samples: int) -> bool:
        """Whether SQNRs are shown as what they gain, beside figures of more `samples`."""
        fewer = self.samples < samples
        return fewer and self.figure is Figure.SQNR and math.isfinite(self.planned)


def part_restored(planned: float, value: float, reference: float) -> float:
    """The part of what was lost that a value gives back: 1 is as good as FP32, below 0 is worse
    than as planned; 0 where the value is not finite.

    Args:
        planned: the figure as planned, and `reference` that of FP32, which differs. Where it is
            infinite, it is the noise of broken outputs: they are as bad as outputs that are all 0,
            whose noise is 1.
    """
    if not math.isfinite(value):
        return 0.0
    if math.isinf(planned):
        planned = 1.0
    return (planned - value) / (planned - reference)
