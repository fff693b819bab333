"""The settings of every command that runs a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.calibrators.registry import DEFAULT_METHOD, method_usage
from qdebug.config.engine import EngineSettings
from qdebug.config.option import (
    GATE,
    WHAT,
    WRITE,
    CalibrationLike,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    PlanLike,
    Positive,
)
from qdebug.config.values import parse_bytes, parse_segments
from qdebug.measure.metrics import metric_usage
from qdebug.run.segmentation import AUTO

PrecisionName = Literal["int8", "fp16", "fp32"]
FallbackName = Literal["fp16", "fp32"]
Fp16KernelsName = Literal["tensorrt", "exact"]
WeightsName = Literal["per-channel", "per-tensor"]

DATA = (
    ".npz, .npy, .h5, a directory of them, test_data_set_*, Polygraphy's inputs JSON, or "
    "script.py:function"
)
METRIC = Option(f"End-to-end accuracy: {metric_usage()}.", GATE, metavar="METRIC")
SAMPLES = Option("Use the first N samples.", WHAT, metavar="N", unset="all")
BATCH_SIZE = Option(
    "Samples per execution where the batch axis is dynamic.",
    WHAT,
    metavar="N",
    unset="chosen by size",
)
CACHE = Option(
    "Reuse what an earlier calibration pass over the same model and data gathered.",
    WHAT,
    off="Ignore cached results.",
)
FP16_KERNELS = Option(
    "How FP16 layers are simulated: as TensorRT's kernels compute them, which sum in FP16, or with "
    "exact sums.",
    WHAT,
)
ALLOW_UNQUANTIZED = Option(
    "Judge a model in which nothing runs in the precision that was asked for, instead of refusing "
    "it.",
    GATE,
)
CUSTOM_OPS = Option(
    "A shared library of custom operators for ONNX Runtime; repeatable.",
    WHAT,
    metavar="FILE",
    reads=True,
)
SEGMENTS = Option(
    "Execute models in segments, of which only one has its weights in memory: auto cuts where a "
    "model's weights take more than the memory budget (2 GB where there is no such setting), off "
    "never cuts, N asks for so many segments.",
    WHAT,
    metavar="auto|off|N",
    parse=parse_segments,
)
FORCE = Option("Replace existing files.", WRITE)
MEMORY_BUDGET = Option(
    "Memory for activations, such as 512M.", WHAT, metavar="SIZE", unset="2G", parse=parse_bytes
)
HTML = Option(
    "Write a page that shows the result: one file that needs nothing else.",
    WRITE,
    metavar="FILE.html",
    suffixes=(".html", ".htm"),
    writes="new",
)
MODEL_OR_PLAN = Option(
    "The ONNX model; by default the one that the plan names.",
    metavar="MODEL",
    positional=True,
    reads=True,
)
INPUTS = Option(f"Samples to compare on: {DATA}.", WHAT, metavar="DATA", reads=True)
WEIGHTS = Option("Scales of weights.", WHAT, unset="the plan's, or per-channel")
FALLBACK = Option("Precision of layers without an INT8 form.", WHAT, unset="the plan's, or fp32")
CALIBRATION = Option(
    "Ranges to use: scales.yaml, a TensorRT cache or a plan.", WHAT, metavar="FILE", reads=True
)
CALIB_DATA = Option(
    "Samples to calibrate on.", WHAT, metavar="DATA", unset="the compared ones", reads=True
)
METHOD = Option(f"Calibrator: {method_usage()}.", WHAT, metavar="NAME")
CALIB_SAMPLES = Option("Calibrate on the first N samples.", WHAT, metavar="N", unset="all")


@dataclass(frozen=True)
class CandidateSettings(EngineSettings):
    """A model, samples, and the precisions to run it in."""

    model: Annotated[ModelLike, MODEL_OR_PLAN]
    inputs: Annotated[DataLike, INPUTS]
    precision: Annotated[
        PrecisionName | None,
        Option("Precision of the candidate.", WHAT, unset="the plan's, or int8"),
    ] = None
    fallback_precision: Annotated[FallbackName | None, FALLBACK] = None
    weights: Annotated[WeightsName | None, WEIGHTS] = None
    plan: Annotated[
        PlanLike | None,
        Option(
            "A precision plan; the layers and ranges that it names are kept.",
            WHAT,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None
    calibration: Annotated[CalibrationLike | None, CALIBRATION] = None
    calib_data: Annotated[DataLike | None, CALIB_DATA] = None
    method: Annotated[str, METHOD] = DEFAULT_METHOD
    samples: Annotated[Positive | None, SAMPLES] = None
    calib_samples: Annotated[Positive | None, CALIB_SAMPLES] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    metric: Annotated[MetricLike | None, METRIC] = None
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    segments: Annotated[str, SEGMENTS] = AUTO
    cache: Annotated[bool, CACHE] = True
