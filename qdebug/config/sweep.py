"""Settings of `qdebug sweep`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.backends.registry import default_builder, only, usage
from qdebug.config.engine import BackendName, LibrarySettings, TypingName
from qdebug.config.flag import AXES, CHECKED, ENGINE, GATE, QUANTIZED, WRITE, File
from qdebug.config.objects import Data, Model, Plan
from qdebug.config.shared import (
    CALIB_DATA,
    INPUTS,
    MODEL_OR_PLAN,
    ClusterSettings,
    GateSettings,
    MixName,
    PageSettings,
    RangeSettings,
    RunSettings,
    TaskSettings,
    WeightsName,
)
from qdebug.config.values import values_of
from qdebug.network.samplespec import SampleSpec

LevelName = Literal["default", "0", "1", "2", "3", "4", "5"]
_SEVERAL = BeforeValidator(values_of)
Switches: TypeAlias = Annotated[tuple[Literal["off", "on"], ...], _SEVERAL]


@dataclass(frozen=True, config=CHECKED)
class SweepSettings(
    RangeSettings,
    LibrarySettings,
    RunSettings,
    TaskSettings,
    GateSettings,
    ClusterSettings,
    PageSettings,
):
    """The settings of `qdebug sweep`.

    What is built is the product of the axes: precisions and plans, weights, and those of the
    builder. A value "default" leaves the choice to the library.
    """

    model: Annotated[Model, MODEL_OR_PLAN]
    inputs: Annotated[Data, INPUTS]
    backend: Annotated[
        BackendName,
        Parameter(
            help=f"The library to build with: {usage('builds')}. By default the first that is "
            "installed and has settings to sweep.",
            group=ENGINE,
        ),
    ] = default_builder("optimization_level").name
    precision: Annotated[
        tuple[MixName, ...],
        _SEVERAL,
        Parameter(
            help="Precisions; int8+fp16 is INT8 with FP16 in all other layers.",
            group=AXES,
            show_default="int8 where there is no plan",
        ),
    ] = ()
    plan: Annotated[
        tuple[Plan, ...],
        Parameter(
            help="A precision plan to try besides the precisions; repeatable.",
            group=AXES,
            metavar="FILE.yaml",
        ),
    ] = ()
    weights: Annotated[
        tuple[WeightsName, ...],
        _SEVERAL,
        Parameter(
            help="One scale per output channel of a weight, or one per weight.",
            group=AXES,
            show_default="the plan's, or per-channel",
        ),
    ] = ()
    compute_capability: Annotated[
        tuple[str, ...],
        _SEVERAL,
        Parameter(
            help="Compute capabilities to build for, such as 8.9; one engine for several with "
            f"'+'.{only('compute_capability')}",
            group=AXES,
            metavar="X.Y",
            show_default="the GPU that is present, or 8.9",
        ),
    ] = ()
    optimization_level: Annotated[
        tuple[LevelName, ...],
        _SEVERAL,
        Parameter(
            help=f"How long the builder looks for fast kernels.{only('optimization_level')}",
            group=AXES,
        ),
    ] = ("default",)
    tactic_sources: Annotated[
        tuple[str, ...],
        _SEVERAL,
        Parameter(
            name="--tactic-source",
            help="Where kernels may come from: default, none, or names of trt.TacticSource joined "
            f"by '+'.{only('tactic_sources')}",
            group=AXES,
            metavar="NAMES",
        ),
    ] = ("default",)
    typing: Annotated[
        tuple[TypingName, ...],
        _SEVERAL,
        Parameter(
            help="How the builder is told precisions; implicit in TensorRT 10 "
            f"only.{only('typing')}",
            group=AXES,
        ),
    ] = ("strong",)
    tf32: Annotated[
        Switches,
        Parameter(help=f"Let FP32 layers compute in TF32.{only('tf32')}", group=AXES),
    ] = ("off",)
    sparsity: Annotated[
        Switches,
        Parameter(help=f"Use kernels for weights with 2:4 sparsity.{only('sparsity')}", group=AXES),
    ] = ("off",)
    refit: Annotated[
        Switches, Parameter(help=f"Let weights be replaced later.{only('refit')}", group=AXES)
    ] = ("off",)
    version_compatible: Annotated[
        Switches,
        Parameter(
            help="Let the engine run under later versions of the "
            f"library.{only('version_compatible')}",
            group=AXES,
        ),
    ] = ("off",)
    reference: Annotated[
        Model | None,
        Parameter(
            help="Of a quantized MODEL: the FP32 model that it was made from.",
            group=QUANTIZED,
            metavar="FILE.onnx",
            show_default="the model without its Q/DQ nodes",
        ),
    ] = None
    calib_data: Annotated[Data | None, CALIB_DATA] = None
    fail_on: Annotated[
        tuple[str, ...],
        Parameter(
            help='Exit with 1 unless one combination meets this, such as "output.cosine>=0.99", '
            '"metric>=0.95" or "int8_share>=0.8"; repeatable.',
            group=GATE,
            metavar="CONDITION",
        ),
    ] = ()
    save_engines: Annotated[
        str | None,
        File("own"),
        Parameter(
            help="Write every engine and the log of its build to this folder, by its row in the "
            "table: 1.engine, 1.log, …",
            group=WRITE,
            metavar="DIR",
        ),
    ] = None
    output: Annotated[
        str | None,
        File("new", (".csv",)),
        Parameter(
            name=("--output", "-o"),
            help="Write all figures as CSV.",
            group=WRITE,
            metavar="FILE.csv",
        ),
    ] = None

    @property
    def compared(self) -> SampleSpec:
        """The samples to compare on."""
        return self.sample_spec(self.inputs, self.samples, self.batch_size)

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """Other samples to calibrate on."""
        return self.calibration_spec(self.calib_data, self.calib_samples)
