"""Settings of `qdebug calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.calibrators.registry import METHODS, method_usage
from qdebug.config.candidate import (
    BATCH_SIZE,
    CACHE,
    CUSTOM_OPS,
    DATA,
    DECODE,
    FORCE,
    FP16_KERNELS,
    GROUP,
    HTML,
    METRIC,
    SAMPLES,
    FallbackName,
    Fp16KernelsName,
    WeightsName,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.data import DataSettings
from qdebug.config.option import (
    PRECISIONS,
    SAMPLED,
    WHAT,
    WRITE,
    CalibrationLike,
    CalibratorLike,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    Positive,
    Share,
)
from qdebug.config.values import values_of
from qdebug.network.samplespec import SampleSpec


@dataclass(frozen=True)
class CalibrateSettings(ClusterSettings, DataSettings):
    """The settings of `qdebug calibrate`."""

    model: Annotated[
        ModelLike, Option("The FP32 ONNX model.", metavar="MODEL", positional=True, reads=True)
    ]
    calib_data: Annotated[
        DataLike, Option(f"Samples to calibrate on: {DATA}.", WHAT, metavar="DATA", reads=True)
    ]
    method: Annotated[
        tuple[str, ...],
        Option(
            f"Methods to try, with commas: {method_usage()}.",
            WHAT,
            metavar="NAMES",
            unset="all",
            parse=values_of,
        ),
    ] = METHODS
    calibrator: Annotated[
        tuple[CalibratorLike, ...],
        Option(
            "A method of your own: file.py:function gets a histogram and returns amax, the "
            "largest magnitude of the range; repeatable.",
            PRECISIONS,
            metavar="FILE:FUNCTION",
        ),
    ] = ()
    precision: Annotated[
        Literal["int8", "fp8", "a16w8"],
        Option("The precision that the ranges are for, and are evaluated in.", PRECISIONS),
    ] = "int8"
    from_cache: Annotated[
        CalibrationLike | None,
        Option(
            "Also evaluate existing ranges: a calibration cache of TensorRT or of ONNX Runtime's "
            "TensorRT provider, scales.yaml or a plan.",
            PRECISIONS,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    weights: Annotated[
        WeightsName,
        Option("One scale per output channel of a weight, or one per weight.", PRECISIONS),
    ] = "per-channel"
    fallback_precision: Annotated[
        FallbackName, Option("Precision of the layers that cannot be quantized.", PRECISIONS)
    ] = "fp32"
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    weight_method: Annotated[
        Literal["max", "mse"],
        Option(
            "Range of a weight: its largest magnitude, or that of least squared error.",
            PRECISIONS,
        ),
    ] = "max"
    samples: Annotated[Positive | None, SAMPLES] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    cache: Annotated[bool, CACHE] = True
    holdout: Annotated[
        DataLike | None,
        Option(
            "Other samples, to compare the methods on.",
            SAMPLED,
            metavar="DATA",
            unset="a share of the calibration data",
            reads=True,
        ),
    ] = None
    holdout_share: Annotated[
        Share,
        Option(
            "Without --holdout, the share of the samples to set aside for that.",
            SAMPLED,
            metavar="X",
        ),
    ] = 0.2
    group: Annotated[str | None, GROUP] = None
    balance: Annotated[
        bool,
        Option(
            "Also try ranges for which every group of samples counts alike, however many samples "
            "it has.",
            SAMPLED,
        ),
    ] = False
    metric: Annotated[MetricLike | None, METRIC] = None
    decode: Annotated[str | None, DECODE] = None
    output: Annotated[
        str | None,
        Option(
            "Write the best ranges (YAML), which other commands take with --calibration.",
            WRITE,
            metavar="scales.yaml",
            suffixes=(".yaml", ".yml"),
            short="-o",
            writes="new",
        ),
    ] = None
    trt_cache: Annotated[
        str | None,
        Option(
            "Write them as a calibration cache for TensorRT 10, as trtexec and Polygraphy read it "
            "(EntropyCalibration2; for a calibrator of another class change its first line).",
            WRITE,
            metavar="FILE",
            suffixes=(".cache",),
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False

    @property
    def told_apart_by(self) -> str | None:
        """See DataSettings."""
        return self.group

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
