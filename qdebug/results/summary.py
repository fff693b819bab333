"""What the layers that cost most cost together, which opens the report of a comparison."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from qdebug.result import MaybeText, in_json
from qdebug.results.attribution import RELEVANT_DB as RELEVANT_DB

MOST_LEADERS = 5
"""So many layers are few in any network."""
HOLDS = 0.75
"""A set of layers in FP32 that gives back so much of what was lost makes the result hold."""


HALF = 0.5
"""Of what was lost: as long as MOST_LEADERS layers give back so much, the error is theirs."""
_SLACK = 0.1
"""A set is chosen on some samples by what it gives back there; on all of them it may be less."""
_FEW, _ALL = 1 / 4, 0.95
"""Of the layers, so many are few; where they give back nearly all, up to a half of the layers."""


_OF_EACH_LAYER = ("rounding", "weight-rounding", "amplification", "fp16-sums", "other-weights")
"""Causes that no setting cures in many layers at once."""


class Finding(StrEnum):
    """What the error is: that of a few layers, or of many, most of it for one cause, or spread; or
    none of quantization at all."""

    NOTHING_LOST = "nothing-lost"
    FEW_LAYERS = "few-layers"
    ONE_CAUSE = "one-cause"
    SPREAD = "spread"
    NOT_QUANTIZATION = "not-quantization"


class Origin(StrEnum):
    """Where a loss comes from that is not quantization's."""

    DATA = "data"
    MODEL = "model"
    KERNEL = "kernel"


@dataclass(frozen=True)
class Elsewhere:
    """Why quantization is not the reason for what is lost.

    Attributes:
        share: the part of the outputs' error that the origin makes; null where that is not known.
        evidence: the measured numbers, for people.
        remedy: what to do; "" where a cause says it.
    """

    origin: Origin
    share: float | None
    evidence: str
    remedy: MaybeText = ""


@dataclass(frozen=True)
class RestoredMetric:
    """The end-to-end metric: as planned, with the leading layers in FP32 (null where nothing was
    restored), and all in FP32."""

    name: str
    planned: float
    restored: float | None
    reference: float

    @property
    def kept(self) -> bool:
        """Whether the plan keeps that of FP32."""
        return self.planned == self.reference


@dataclass(frozen=True)
class Summary:
    """What the leading layers cost together: one further run of the simulation kept them in FP32.

    Attributes:
        samples: all figures are of these.
        layers: those that were kept in FP32 together, the costliest first; none where the outputs
            are at 60 dB or better, and the metric is that of FP32: then nothing was restored.
        of_layers: how many do not run in FP32.
        output_share: the part of that noise power that goes with all of them in FP32;
            negative where it grows; null where the outputs hold NaN or Inf before or after.
        cause: the main cause of the layers that make most of their error; "" where there is no
            such.
        sqnr_db: of the outputs as planned, from their mean noise Σerr²/Σref², where an output that
            has parts counts by its worst one; NaN where they hold NaN or Inf.
        restored_sqnr_db: the same with all of the layers in FP32; null where nothing was restored.
        metric: the same for the end-to-end metric; null without one.
        restored: the part of what was lost that they give back together, of the curve's figure
            where there is a curve: 1 is as good as FP32, below 0 is worse than as planned; null
            where nothing was restored, or nothing was lost by that figure.
        elsewhere: where the loss comes from, if not from quantization: no layer is to blame then.
    """

    samples: int
    layers: tuple[str, ...]
    of_layers: int
    output_share: float | None
    cause: MaybeText
    sqnr_db: float
    restored_sqnr_db: float | None
    metric: RestoredMetric | None = None
    restored: float | None = None
    elsewhere: Elsewhere | None = None

    @property
    @in_json
    def finding(self) -> Finding:
        """What the error is, as far as the simulation tells."""
        if self.elsewhere is not None:
            return Finding.NOT_QUANTIZATION
        if not self.layers:
            return Finding.NOTHING_LOST
        if self.restored is None:
            return Finding.SPREAD
        count = len(self.layers)
        least = HALF if count <= MOST_LEADERS else HOLDS - _SLACK
        if are_few(count, self.of_layers, self.restored) and self.restored >= least:
            return Finding.FEW_LAYERS
        cured = self.cause and self.cause not in _OF_EACH_LAYER
        return Finding.ONE_CAUSE if cured else Finding.SPREAD


def are_few(layers: int, of_layers: int, restored: float) -> bool:
    """Whether so many are a small set, given the part of what was lost that they give back."""
    if restored >= _ALL:
        return layers <= max(MOST_LEADERS, of_layers // 2)
    return layers <= max(MOST_LEADERS, int(of_layers * _FEW))


def joint_share(before: float, after: float) -> float | None:
    """The part of the noise `before` that is gone `after`; None where one is not finite, or there
    was none."""
    if not (math.isfinite(before) and math.isfinite(after)) or before <= 0:
        return None
    return 1 - after / before


def common_cause(causes: Sequence[tuple[str, float]]) -> str:
    """The cause of more than half of the error; "" where there is no such.

    Args:
        causes: of each layer its main cause, "" for none, and the part of the error that it makes.
    """
    parts: dict[str, float] = defaultdict(float)
    for label, part in causes:
        parts[label] += max(0.0, part)
    total = sum(parts.values())
    return next((label for label in parts if 2 * parts[label] > total), "")
