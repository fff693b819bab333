"""What a comparison found of groups of samples; a part of the JSON of `compare`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from qdebug.metrics.uncertainty import Interval, Uncertainty


@dataclass(frozen=True)
class GroupScore:
    """The end-to-end metric on some samples.

    Attributes:
        reference, candidate: of FP32, and of the candidate.
        uncertainty: what of the candidate's value and of the change may be chance; null for one
            sample, and where the metric cannot be computed of some of the samples.
    """

    reference: float
    candidate: float
    uncertainty: Uncertainty | None


@dataclass(frozen=True)
class GroupClipping:
    """A tensor of which more values are clipped in the samples of one group than in the others.

    Attributes:
        layer: that computes it; null for an input of the model.
        clipped_fraction: of the group's values, beyond the range of the Q/DQ pair.
        others_fraction: the same of all other samples.
    """

    tensor: str
    layer: str | None
    clipped_fraction: float
    others_fraction: float

    @property
    def times(self) -> float:
        """How many times as many as in the others; +inf where there are none in those."""
        if not self.others_fraction:
            return math.inf
        return self.clipped_fraction / self.others_fraction


@dataclass(frozen=True)
class GroupResult:
    """One group of samples.

    Attributes:
        samples: how many of those compared are of it.
        calibration_samples: how many of those that the ranges come from; null where that is not
            known.
        noise: Σerr²/Σref² of the outputs on these samples, the mean over them, each part of an
            output that has parts being one; +inf where they hold NaN or Inf; null where errors
            cannot be told by sample.
        noise_interval: of the noise, 95 %; null for one sample.
        score: the end-to-end metric on these samples; null without one, and where it cannot be
            computed of them.
        clipping: tensors of which clearly more is clipped here than in the other samples, the one
            with the most values first.
    """

    name: str
    samples: int
    calibration_samples: int | None
    noise: float | None
    noise_interval: Interval | None
    score: GroupScore | None
    clipping: tuple[GroupClipping, ...] = ()


@dataclass(frozen=True)
class Groups:
    """The samples by group.

    Attributes:
        name: what says which group a sample is of.
        calibration_samples: how many samples the ranges come from; null where that is not known.
        each: the worst first: by what the metric loses; by noise without a metric, and where it
            tells no group from the others but noise does.
        worst: the first of them, where it loses more than the other samples do beyond chance: the
            95 % intervals of both do not meet; null where none is.
        others: all samples but those of the worst group; null where there is none.
        by_noise: the order and `worst` are by noise.
    """

    name: str
    calibration_samples: int | None
    each: tuple[GroupResult, ...]
    worst: str | None = None
    others: GroupResult | None = None
    by_noise: bool = False
