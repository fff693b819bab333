"""Settings of `qdebug calibrate`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.calibrators.registry import METHODS, method_usage
from qdebug.config.flag import ARGUMENT, CHECKED, PRECISIONS, SAMPLED, WHAT, WRITE, File
from qdebug.config.objects import Calibration, Calibrator, Data, Model
from qdebug.config.shared import (
    DATA,
    GROUP_BY,
    ClusterSettings,
    FallbackName,
    KernelSettings,
    PageSettings,
    RunSettings,
    TaskSettings,
    WeightsName,
)
from qdebug.config.values import Share, values_of
from qdebug.network.samplespec import SampleSpec


@dataclass(frozen=True, config=CHECKED)
class CalibrateSettings(RunSettings, TaskSettings, KernelSettings, ClusterSettings, PageSettings):
    """The settings of `qdebug calibrate`."""

    model: Annotated[Model, Parameter(help="The FP32 ONNX model.", group=ARGUMENT, metavar="MODEL")]
    calib_data: Annotated[
        Data, Parameter(help=f"Samples to calibrate on: {DATA}.", group=WHAT, metavar="DATA")
    ]
    method: Annotated[
        tuple[str, ...],
        BeforeValidator(values_of),
        Parameter(
            help=f"Methods to try, with commas: {method_usage()}.",
            group=WHAT,
            metavar="NAMES",
            show_default="all",
        ),
    ] = METHODS
    calibrator: Annotated[
        tuple[Calibrator, ...],
        Parameter(
            help="A method of your own: file.py:function gets a histogram and returns amax, the "
            "largest magnitude of the range; repeatable.",
            group=PRECISIONS,
            metavar="FILE:FUNCTION",
        ),
    ] = ()
    precision: Annotated[
        Literal["int8", "fp8", "a16w8"],
        Parameter(
            help="The precision that the ranges are for, and are evaluated in.", group=PRECISIONS
        ),
    ] = "int8"
    from_cache: Annotated[
        Calibration | None,
        Parameter(
            help="Also evaluate existing ranges: a calibration cache of TensorRT or of ONNX "
            "Runtime's TensorRT provider, scales.yaml or a plan.",
            group=PRECISIONS,
            metavar="FILE",
        ),
    ] = None
    weights: Annotated[
        WeightsName,
        Parameter(
            help="One scale per output channel of a weight, or one per weight.", group=PRECISIONS
        ),
    ] = "per-channel"
    fallback_precision: Annotated[
        FallbackName,
        Parameter(help="Precision of the layers that cannot be quantized.", group=PRECISIONS),
    ] = "fp32"
    weight_method: Annotated[
        Literal["max", "mse"],
        Parameter(
            help="Range of a weight: its largest magnitude, or that of least squared error.",
            group=PRECISIONS,
        ),
    ] = "max"
    holdout: Annotated[
        Data | None,
        Parameter(
            help="Other samples, to compare the methods on.",
            group=SAMPLED,
            metavar="DATA",
            show_default="a share of the calibration data",
        ),
    ] = None
    holdout_share: Annotated[
        Share,
        Parameter(
            help="Without --holdout, the share of the samples to set aside for that.",
            group=SAMPLED,
            metavar="X",
        ),
    ] = 0.2
    group: Annotated[str | None, GROUP_BY] = None
    balance: Annotated[
        bool,
        Parameter(
            help="Also try ranges for which every group of samples counts alike, however many "
            "samples it has.",
            group=SAMPLED,
        ),
    ] = False
    output: Annotated[
        str | None,
        File("new", (".yaml", ".yml")),
        Parameter(
            name=("--output", "-o"),
            help="Write the best ranges (YAML), which other commands take with --calibration.",
            group=WRITE,
            metavar="scales.yaml",
        ),
    ] = None
    trt_cache: Annotated[
        str | None,
        File("new", (".cache",)),
        Parameter(
            help="Write them as a calibration cache for TensorRT 10, as trtexec and Polygraphy "
            "read it (EntropyCalibration2; for a calibrator of another class change its first "
            "line).",
            group=WRITE,
            metavar="FILE",
        ),
    ] = None

    @property
    def calibrates_on(self) -> SampleSpec:
        """The samples to calibrate on."""
        return self.sample_spec(self.calib_data, self.samples, self.batch_size, "calib_data")

    @property
    def held_out(self) -> SampleSpec | None:
        """Other samples."""
        if self.holdout is None:
            return None
        return self.sample_spec(self.holdout, None, self.batch_size, "holdout", "")
