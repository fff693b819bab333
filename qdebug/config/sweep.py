"""Settings of `qdebug sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.backends.registry import default_builder, only, usage
from qdebug.calibrators.registry import DEFAULT_METHOD
from qdebug.config.candidate import (
    ALLOW_UNQUANTIZED,
    BATCH_SIZE,
    CALIB_DATA,
    CALIB_SAMPLES,
    CALIBRATION,
    CUSTOM_OPS,
    DECODE,
    FORCE,
    FP16_KERNELS,
    HTML,
    INPUTS,
    METHOD,
    METRIC,
    MODEL_OR_PLAN,
    SAMPLES,
    Fp16KernelsName,
    MixName,
    WeightsName,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.data import DataSettings
from qdebug.config.engine import (
    PLUGIN,
    PROVIDER,
    PROVIDER_OPTION,
    TIMING_CACHE,
    WORKSPACE,
    TypingName,
    known_backend,
)
from qdebug.config.option import (
    AXES,
    ENGINE,
    GATE,
    LARGE,
    QUANTIZED,
    WRITE,
    CalibrationLike,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    PlanLike,
    Positive,
)
from qdebug.config.values import values_of
from qdebug.network.samplespec import SampleSpec

LevelName = Literal["default", "0", "1", "2", "3", "4", "5"]
SwitchName = Literal["off", "on"]


def _axis(help: str, *, metavar: str = "", flag: str = "", unset: str = "") -> Option:
    """An option whose values are tried one after the other."""
    return Option(help, AXES, metavar=metavar, flag=flag, unset=unset, parse=values_of)


@dataclass(frozen=True)
class SweepSettings(ClusterSettings, DataSettings):
    """The settings of `qdebug sweep`.

    What is built is the product of the axes: precisions and plans, weights, and those of the
    builder. A value "default" leaves the choice to the library.
    """

    model: Annotated[ModelLike, MODEL_OR_PLAN]
    inputs: Annotated[DataLike, INPUTS]
    backend: Annotated[
        str,
        Option(
            f"The library to build with: {usage('builds')}. By default the first that is "
            "installed and has settings to sweep.",
            ENGINE,
            parse=known_backend,
        ),
    ] = default_builder("optimization_level").name
    precision: Annotated[
        tuple[MixName, ...],
        _axis(
            "Precisions; int8+fp16 is INT8 with FP16 in all other layers.",
            unset="int8 where there is no plan",
        ),
    ] = ()
    plan: Annotated[
        tuple[PlanLike, ...],
        Option(
            "A precision plan to try besides the precisions; repeatable.",
            AXES,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = ()
    weights: Annotated[
        tuple[WeightsName, ...],
        _axis(
            "One scale per output channel of a weight, or one per weight.",
            unset="the plan's, or per-channel",
        ),
    ] = ()
    compute_capability: Annotated[
        tuple[str, ...],
        _axis(
            "Compute capabilities to build for, such as 8.9; one engine for several with '+'."
            f"{only('compute_capability')}",
            metavar="X.Y",
            unset="the GPU that is present, or 8.9",
        ),
    ] = ()
    optimization_level: Annotated[
        tuple[LevelName, ...],
        _axis(f"How long the builder looks for fast kernels.{only('optimization_level')}"),
    ] = ("default",)
    tactic_sources: Annotated[
        tuple[str, ...],
        _axis(
            "Where kernels may come from: default, none, or names of trt.TacticSource joined by "
            f"'+'.{only('tactic_sources')}",
            metavar="NAMES",
            flag="--tactic-source",
        ),
    ] = ("default",)
    typing: Annotated[
        tuple[TypingName, ...],
        _axis(f"How the builder is told precisions; implicit in TensorRT 10 only.{only('typing')}"),
    ] = ("strong",)
    tf32: Annotated[
        tuple[SwitchName, ...], _axis(f"Let FP32 layers compute in TF32.{only('tf32')}")
    ] = ("off",)
    sparsity: Annotated[
        tuple[SwitchName, ...],
        _axis(f"Use kernels for weights with 2:4 sparsity.{only('sparsity')}"),
    ] = ("off",)
    refit: Annotated[
        tuple[SwitchName, ...], _axis(f"Let weights be replaced later.{only('refit')}")
    ] = ("off",)
    version_compatible: Annotated[
        tuple[SwitchName, ...],
        _axis(
            f"Let the engine run under later versions of the library.{only('version_compatible')}"
        ),
    ] = ("off",)
    reference: Annotated[
        ModelLike | None,
        Option(
            "Of a quantized MODEL: the FP32 model that it was made from.",
            QUANTIZED,
            metavar="FILE.onnx",
            unset="the model without its Q/DQ nodes",
            reads=True,
        ),
    ] = None
    calibration: Annotated[CalibrationLike | None, CALIBRATION] = None
    calib_data: Annotated[DataLike | None, CALIB_DATA] = None
    method: Annotated[str, METHOD] = DEFAULT_METHOD
    samples: Annotated[Positive | None, SAMPLES] = None
    calib_samples: Annotated[Positive | None, CALIB_SAMPLES] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    cache: Annotated[
        bool,
        Option(
            "Reuse what was calibrated, built and measured earlier.",
            LARGE,
            off="Compute everything anew, without what earlier runs kept.",
        ),
    ] = True
    workspace: Annotated[int | None, WORKSPACE] = None
    timing_cache: Annotated[str | None, TIMING_CACHE] = None
    plugin: Annotated[tuple[str, ...], PLUGIN] = ()
    provider: Annotated[str | None, PROVIDER] = None
    provider_option: Annotated[tuple[str, ...], PROVIDER_OPTION] = ()
    fail_on: Annotated[
        tuple[str, ...],
        Option(
            'Exit with 1 unless one combination meets this, such as "output.cosine>=0.99", '
            '"metric>=0.95" or "int8_share>=0.8"; repeatable.',
            GATE,
            metavar="CONDITION",
        ),
    ] = ()
    allow_unquantized: Annotated[bool, ALLOW_UNQUANTIZED] = False
    metric: Annotated[MetricLike | None, METRIC] = None
    decode: Annotated[str | None, DECODE] = None
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    save_engines: Annotated[
        str | None,
        Option(
            "Write every engine and the log of its build to this folder, by its row in the table: "
            "1.engine, 1.log, …",
            WRITE,
            metavar="DIR",
            writes="own",
        ),
    ] = None
    output: Annotated[
        str | None,
        Option(
            "Write all figures as CSV.",
            WRITE,
            metavar="FILE.csv",
            suffixes=(".csv",),
            short="-o",
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False

    @property
    def compared(self) -> SampleSpec:
        """The samples to compare on."""
        return self.sample_spec(self.inputs, self.samples, self.batch_size)

    @property
    def calibrates_on(self) -> SampleSpec | None:
        """Other samples to calibrate on."""
        return self.calibration_spec(self.calib_data, self.calib_samples)
