"""Settings of commands that read samples: how these become inputs of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.config.option import SAMPLED, Option, PreprocessingLike
from qdebug.network.inputshapes import checked_shapes, parse_shapes
from qdebug.network.preprocessing import parse_preprocessing, preset_names
from qdebug.network.samplespec import SampleSpec

SHAPE = Option(
    "The shape of an input whose axes are free, such as images:1x3x640x640; N leaves an axis free; "
    "repeatable.",
    SAMPLED,
    metavar="NAME:SHAPE",
    parse=checked_shapes,
)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """How samples are read. Commands call their model `model`, or `source`."""

    preprocess: Annotated[
        PreprocessingLike | None,
        Option(
            f"How pictures become the model's input: {preset_names()}, or a YAML file.",
            SAMPLED,
            metavar="NAME|FILE.yaml",
            unset="what a file beside the model or its metadata say, else a guess",
            parse=parse_preprocessing,
        ),
    ] = None
    shape: Annotated[tuple[str, ...], SHAPE] = ()
    skip_bad: Annotated[
        bool, Option("Leave out pictures that cannot be read, instead of refusing them.", SAMPLED)
    ] = False

    @property
    def told_apart_by(self) -> str | None:
        """What says which group a sample is of, in commands that have groups."""
        return None

    def calibration_spec(self, data: str | None, limit: int | None) -> SampleSpec | None:
        """The samples of `calib_data`, as far as it is given; `limit` is `calib_samples`."""
        if data is None:
            return None
        return self.sample_spec(data, limit, setting="calib_data", limited_by="calib_samples")

    def sample_spec(
        self,
        data: str,
        limit: int | None = None,
        batch_size: int | None = None,
        setting: str = "inputs",
        limited_by: str = "samples",
    ) -> SampleSpec:
        """The samples of one setting; see SampleSpec."""
        return SampleSpec(
            data,
            limit,
            batch_size,
            setting,
            limited_by,
            model=getattr(self, "model", None) or getattr(self, "source", None) or "",
            preprocess=self.preprocess,
            skip_bad=self.skip_bad,
            shapes=parse_shapes(self.shape),
            group=self.told_apart_by,
        )
