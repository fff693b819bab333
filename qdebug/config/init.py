"""Settings of `qdebug init`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.candidate import FORCE, METRIC
from qdebug.config.data import DataSettings
from qdebug.config.option import WRITE, DataLike, MetricLike, ModelLike, Option
from qdebug.network.samplespec import SampleSpec


@dataclass(frozen=True)
class InitSettings(DataSettings):
    """The settings of `qdebug init`."""

    model: Annotated[
        ModelLike, Option("The FP32 ONNX model.", metavar="MODEL", positional=True, reads=True)
    ]
    inputs: Annotated[
        DataLike | None,
        Option("Samples for it, such as a folder of pictures.", metavar="DATA", positional=True),
    ] = None
    metric: Annotated[MetricLike | None, METRIC] = None
    output: Annotated[
        str,
        Option(
            "The file to write.",
            WRITE,
            metavar="FILE.yaml",
            suffixes=(".yaml", ".yml"),
            short="-o",
            writes="new",
        ),
    ] = "qdebug.yaml"
    force: Annotated[bool, FORCE] = False

    @property
    def compared(self) -> SampleSpec | None:
        """The samples."""
        return None if self.inputs is None else self.sample_spec(self.inputs)
