"""Parts of settings that several commands hold, as values: what a stage needs of any of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from qdebug.backends.budget import DEFAULT_BUDGET
from qdebug.backends.registry import DEFAULT
from qdebug.calibrators.registry import DEFAULT_METHOD
from qdebug.config.engine import EngineSettings
from qdebug.network.samplespec import SampleSpec, given_specs

SpecT = TypeVar("SpecT")


@dataclass(frozen=True)
class QuantizationSpec:
    """What is compared, and how it is quantized. The fields that settings have, too, are as there.

    Attributes:
        compared: the samples to compare on.
        calibrates_on: other samples to calibrate on.
        calib_samples: on how many of the compared ones to calibrate, where there are no others.
        fits_remedies: to the samples to calibrate on, so that these are read in any case.
        pin: layers that stay in the fallback precision, as `--pin` of compare names them.
    """

    model: str
    compared: SampleSpec
    calibrates_on: SampleSpec | None = None
    calib_samples: int | None = None
    reference: str | None = None
    backend: str = DEFAULT
    precision: str | None = None
    fallback_precision: str | None = None
    weights: str | None = None
    block_size: int | None = None
    plan: str | None = None
    calibration: str | None = None
    method: str = DEFAULT_METHOD
    allow_unquantized: bool = False
    fits_remedies: bool = False
    pin: tuple[str, ...] = ()

    @property
    def samples(self) -> tuple[SampleSpec, ...]:
        """All that are used."""
        return given_specs(self.compared, self.calibrates_on)

    @property
    def calib_data(self) -> str | None:
        """The data to calibrate on, as they were given."""
        return self.calibrates_on.data if self.calibrates_on else None


@dataclass(frozen=True)
class TargetSpec:
    """What accuracy is asked for; the fields are as in settings."""

    target: str | None = None
    max_drop: float | None = None
    max_rise: float | None = None
    metric: str | None = None
    decode: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is any target."""
        return any(value is not None for value in (self.target, self.max_drop, self.max_rise))


@dataclass(frozen=True)
class PinSearchSpec:
    """How layers to pin are searched for; the fields are as in BisectSettings.

    Attributes:
        engine: how an engine of the answer is built, and where it is written.
    """

    model: str
    backend: str = DEFAULT
    provider: str | None = None
    pin_to: str | None = None
    pin: tuple[str, ...] = ()
    never_pin: tuple[str, ...] = ()
    profile: str | None = None
    profile_layers: str | None = None
    memory_budget: int = DEFAULT_BUDGET
    max_evaluations: int | None = None
    time_limit: float | None = None
    force: bool = False
    select_point: str | None = None
    engine: EngineSettings | None = None


def spec_from(kind: type[SpecT], settings: object, **others: Any) -> SpecT:
    """The fields that `settings` has under the same names; `others` are chosen."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    own = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
    return kind(**(own | others))
