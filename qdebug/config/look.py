"""Settings of the commands that look at a model, its samples, ranges or engine: `check`, `init`,
`ranges` and `inspect`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.config.flag import (
    ARGUMENT,
    CHECKED,
    GATE,
    LARGE,
    LOOK,
    SAMPLED,
    WHAT,
    WRITE,
    File,
    Positive,
    ReadPath,
)
from qdebug.config.objects import Data, Metric, Model, Plan
from qdebug.config.search import MAX_DROP
from qdebug.config.shared import (
    DATA,
    FRAMEWORK,
    METRIC,
    DataSettings,
    PageSettings,
    RunSettings,
    TaskSettings,
    WritingSettings,
)
from qdebug.config.values import Difference
from qdebug.config.words import word_of
from qdebug.network.inputshapes import checked_shapes
from qdebug.network.samplespec import SampleSpec
from qdebug.results.orders import ORDERS


@dataclass(frozen=True, config=CHECKED)
class CheckSettings(DataSettings, TaskSettings):
    """The settings of `qdebug check`."""

    model: Annotated[Model, Parameter(help="The ONNX model.", group=ARGUMENT, metavar="MODEL")]
    inputs: Annotated[
        Data | None,
        Parameter(help=f"Samples to check with the model: {DATA}.", group=WHAT, metavar="DATA"),
    ] = None
    calib_data: Annotated[
        Data | None,
        Parameter(
            help="Samples to calibrate on: they are compared with the others.",
            group=WHAT,
            metavar="DATA",
        ),
    ] = None
    framework: Annotated[Data | None, FRAMEWORK] = None
    max_drop: Annotated[Difference | None, MAX_DROP] = None
    samples: Annotated[
        Positive,
        Parameter(help="Run the model on N samples, spread over all.", group=SAMPLED, metavar="N"),
    ] = 32
    custom_op_library: Annotated[
        tuple[ReadPath, ...],
        Parameter(
            help="A shared library with custom operators for ONNX Runtime; repeatable.",
            group=LARGE,
            metavar="FILE",
        ),
    ] = ()

    @property
    def compared(self) -> SampleSpec | None:
        """The samples to check."""
        return None if self.inputs is None else self.sample_spec(self.inputs)

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """Those to calibrate on."""
        return self.calibration_spec(self.calib_data, None)


@dataclass(frozen=True, config=CHECKED)
class InitSettings(DataSettings, WritingSettings):
    """The settings of `qdebug init`."""

    model: Annotated[Model, Parameter(help="The FP32 ONNX model.", group=ARGUMENT, metavar="MODEL")]
    inputs: Annotated[
        Data | None,
        Parameter(
            help="Samples for it, such as a folder of pictures.", group=ARGUMENT, metavar="DATA"
        ),
    ] = None
    metric: Annotated[Metric | None, METRIC] = None
    output: Annotated[
        str,
        File("new", (".yaml", ".yml")),
        Parameter(
            name=("--output", "-o"), help="The file to write.", group=WRITE, metavar="FILE.yaml"
        ),
    ] = "qdebug.yaml"

    @property
    def compared(self) -> SampleSpec | None:
        """The samples."""
        return None if self.inputs is None else self.sample_spec(self.inputs)


_ORDERS = "; ".join(f"{name} ({order.title})" for name, order in ORDERS.items())


@dataclass(frozen=True, config=CHECKED)
class RangesSettings(RunSettings, WritingSettings):
    """The settings of `qdebug ranges`."""

    source: Annotated[
        Model,
        Parameter(help="A run file, or an FP32 ONNX model.", group=ARGUMENT, metavar="RUN|MODEL"),
    ]
    calib_data: Annotated[
        Data | None,
        Parameter(help=f"Samples to run the model on: {DATA}.", group=WHAT, metavar="DATA"),
    ] = None
    holdout: Annotated[
        Data | None,
        Parameter(
            help="Other samples, to see how far they exceed the ranges of the first.",
            group=WHAT,
            metavar="DATA",
        ),
    ] = None
    tensors: Annotated[
        tuple[str, ...],
        Parameter(
            name="--tensor",
            help="Show only this tensor, with its histogram and the ranges by all methods; "
            "repeatable.",
            group=LOOK,
            metavar="NAME",
            show_default="all",
        ),
    ] = ()
    top: Annotated[
        Positive, Parameter(help="Show the first N tensors.", group=LOOK, metavar="N")
    ] = 20
    sort: Annotated[
        str,
        word_of(ORDERS),
        Parameter(help=f"The order of the tensors: {_ORDERS}.", group=LOOK, metavar="NAME"),
    ] = next(iter(ORDERS))

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """The samples to run the model on."""
        if self.calib_data is None:
            return None
        return self.sample_spec(self.calib_data, self.samples, self.batch_size, "calib_data")

    @property
    def held_out(self) -> SampleSpec | None:
        """Other samples."""
        if self.holdout is None:
            return None
        return self.sample_spec(self.holdout, None, self.batch_size, "holdout", "")


@dataclass(frozen=True, config=CHECKED)
class InspectSettings(PageSettings):
    """The settings of `qdebug inspect`."""

    file: Annotated[
        Model,
        Parameter(
            help="An ONNX model, an engine (on its GPU), the JSON of trtexec --exportLayerInfo or "
            "--exportProfile, or a verbose build log of trtexec, Polygraphy, Python or qdebug.",
            group=ARGUMENT,
            metavar="FILE",
        ),
    ]
    profile: Annotated[
        ReadPath | None,
        Parameter(
            help="Times of the same engine's layers (trtexec --exportProfile, or a log of "
            "--dumpProfile).",
            group=WHAT,
            metavar="FILE",
        ),
    ] = None
    timing: Annotated[
        ReadPath | None,
        Parameter(
            help="Times of whole executions of the same engine (trtexec --exportTimes).",
            group=WHAT,
            metavar="FILE.json",
        ),
    ] = None
    metadata: Annotated[
        ReadPath | None,
        Parameter(
            help="What names the GPU of the engine: metadata of trex, or a log of trtexec.",
            group=WHAT,
            metavar="FILE",
            show_default="the log itself, where it names it",
        ),
    ] = None
    model: Annotated[
        Model | None,
        Parameter(
            help="The ONNX model that the engine was built from.",
            group=WHAT,
            metavar="FILE.onnx",
            show_default="the one that the plan names",
        ),
    ] = None
    shape: Annotated[
        tuple[str, ...],
        BeforeValidator(checked_shapes),
        Parameter(
            help="The shape of an input whose axes are free, such as images:1x3x640x640; N leaves "
            "an axis free; repeatable.",
            group=WHAT,
            metavar="NAME:SHAPE",
        ),
    ] = ()
    diff: Annotated[
        Model | None,
        Parameter(
            help="Another engine of the same model, to list what differs.",
            group=WHAT,
            metavar="FILE",
        ),
    ] = None
    diff_profile: Annotated[
        ReadPath | None,
        Parameter(
            help="Times of that engine's layers, as for this one.", group=WHAT, metavar="FILE"
        ),
    ] = None
    expect: Annotated[
        Plan | None,
        Parameter(
            help="The plan that the engine was built for: exit with 1 if a layer has another "
            "precision.",
            group=GATE,
            metavar="FILE.yaml",
        ),
    ] = None
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            help='Exit with 1 unless this holds, such as "int8_share>=0.8" or '
            '"reformat_count<=4"; repeatable. An unknown name lists all.',
            group=GATE,
            metavar="CONDITION",
        ),
    ] = ()
    csv: Annotated[
        str | None,
        File("new", (".csv",)),
        Parameter(
            help="Write a row for each layer as CSV, which spreadsheets open.",
            group=WRITE,
            metavar="FILE.csv",
        ),
    ] = None
