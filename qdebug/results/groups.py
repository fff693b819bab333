"""What a comparison found of groups of samples; a part of the JSON of `compare`."""

from __future__ import annotations

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
    """

    name: str
    samples: int
    calibration_samples: int | None
    noise: float | None
    noise_interval: Interval | None
    score: GroupScore | None


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
