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
    FORCE,
    FP16_KERNELS,
    HTML,
    METRIC,
    SAMPLES,
    SEGMENTS,
    FallbackName,
    Fp16KernelsName,
    WeightsName,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.option import (
    GATE,
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
from qdebug.run.segmentation import AUTO


@dataclass(frozen=True)
class CalibrateSettings(ClusterSettings):
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
            f"Calibrators to try, with commas: {method_usage()}.",
            WHAT,
            metavar="NAMES",
            unset="all",
            parse=values_of,
        ),
    ] = METHODS
    calibrator: Annotated[
        tuple[CalibratorLike, ...],
        Option(
            "Your own: file.py:function gets a histogram and returns amax; repeatable.",
            WHAT,
            metavar="FILE:FUNCTION",
        ),
    ] = ()
    mix: Annotated[bool, Option("Try the best method of each tensor too.", WHAT)] = False
    from_cache: Annotated[
        CalibrationLike | None,
        Option(
            "Evaluate an existing calibration too: a TensorRT cache, scales.yaml or a plan.",
            WHAT,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    weights: Annotated[WeightsName, Option("Scales of weights.", WHAT)] = "per-channel"
    fallback_precision: Annotated[
        FallbackName, Option("Precision of layers without an INT8 form.", WHAT)
    ] = "fp32"
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    weight_method: Annotated[
        Literal["max", "mse"],
        Option("Ranges of weights: the largest magnitude, or least squared error.", WHAT),
    ] = "max"
    samples: Annotated[Positive | None, SAMPLES] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    segments: Annotated[str, SEGMENTS] = AUTO
    cache: Annotated[bool, CACHE] = True
    holdout: Annotated[
        DataLike | None,
        Option(
            "Evaluation samples.",
            GATE,
            metavar="DATA",
            unset="a share of the calibration data",
            reads=True,
        ),
    ] = None
    holdout_share: Annotated[
        Share, Option("The share of the samples to hold out.", GATE, metavar="X")
    ] = 0.2
    metric: Annotated[MetricLike | None, METRIC] = None
    output: Annotated[
        str | None,
        Option(
            "Write the best ranges, for use as a calibration.",
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
            "Write them as a calibration cache for TensorRT 10, of EntropyCalibration2: what "
            "trtexec and, by default, Polygraphy read. For a calibrator of another class change "
            "its first line.",
            WRITE,
            metavar="FILE",
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False
