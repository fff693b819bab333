"""Settings of `qdebug check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.bisect import MAX_DROP
from qdebug.config.candidate import CUSTOM_OPS, DATA, DECODE, FRAMEWORK, METRIC
from qdebug.config.data import DataSettings
from qdebug.config.option import (
    SAMPLED,
    WHAT,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    Positive,
)
from qdebug.network.samplespec import SampleSpec


@dataclass(frozen=True)
class CheckSettings(DataSettings):
    """The settings of `qdebug check`."""

    model: Annotated[
        ModelLike, Option("The ONNX model.", metavar="MODEL", positional=True, reads=True)
    ]
    inputs: Annotated[
        DataLike | None,
        Option(f"Samples to check with the model: {DATA}.", WHAT, metavar="DATA", reads=True),
    ] = None
    calib_data: Annotated[
        DataLike | None,
        Option(
            "Samples to calibrate on: they are compared with the others.",
            WHAT,
            metavar="DATA",
            reads=True,
        ),
    ] = None
    framework: Annotated[DataLike | None, FRAMEWORK] = None
    metric: Annotated[MetricLike | None, METRIC] = None
    decode: Annotated[str | None, DECODE] = None
    max_drop: Annotated[float | None, MAX_DROP] = None
    samples: Annotated[
        Positive, Option("Run the model on N samples, spread over all.", SAMPLED, metavar="N")
    ] = 32
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()

    @property
    def compared(self) -> SampleSpec | None:
        """The samples to check."""
        return None if self.inputs is None else self.sample_spec(self.inputs)

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """Those to calibrate on."""
        return self.calibration_spec(self.calib_data, None)
