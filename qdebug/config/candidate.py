"""The settings of every command that runs a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from qdebug.calibrators.registry import DEFAULT_METHOD, method_usage
from qdebug.config.data import DataSettings
from qdebug.config.engine import EngineSettings
from qdebug.config.option import (
    GATE,
    LARGE,
    LOOK,
    PRECISIONS,
    SAMPLED,
    WHAT,
    WRITE,
    BlockSize,
    CalibrationLike,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    PlanLike,
    Positive,
)
from qdebug.config.specs import QuantizationSpec, spec_from
from qdebug.config.values import parse_bytes
from qdebug.metrics.tasks.registry import DECODERS, metric_usage
from qdebug.network.dataformats import data_usage
from qdebug.network.samplespec import SampleSpec

PrecisionName = Literal[
    "w4",
    "w8",
    "int8",
    "fp8",
    "a16w8",
    "bf16",
    "fp16",
    "fp32",
]
MixName = Literal[
    "w4",
    "w8",
    "int8",
    "fp8",
    "a16w8",
    "bf16",
    "fp16",
    "fp32",
    "w4+bf16",
    "w8+bf16",
    "int8+bf16",
    "fp8+bf16",
    "a16w8+bf16",
    "w4+fp16",
    "w8+fp16",
    "int8+fp16",
    "fp8+fp16",
    "a16w8+fp16",
]
FallbackName = Literal["bf16", "fp16", "fp32"]
Fp16KernelsName = Literal["tensorrt", "exact"]
WeightsName = Literal["per-channel", "per-tensor"]

DATA = data_usage()
DECODE = Option(
    f"How the outputs are read for a metric of boxes or text, where the model does not tell: "
    f"{', '.join(d.name for d in DECODERS)}, file.py:function.",
    GATE,
    metavar="NAME",
)
METRIC = Option(f"Accuracy of the task: {metric_usage()}.", GATE, metavar="METRIC")
SAMPLES = Option("Use the first N samples only.", SAMPLED, metavar="N", unset="all")
BATCH_SIZE = Option(
    "How many samples are run at once, where the batch axis of the model is dynamic.",
    LARGE,
    metavar="N",
    unset="chosen by size",
)
CACHE = Option(
    "Reuse what an earlier calibration pass over the same model and data gathered.",
    LARGE,
    off="Compute everything anew, without what earlier runs kept.",
)
FP16_KERNELS = Option(
    "How FP16 is simulated: tensorrt also sums in FP16, as TensorRT's kernels do; exact sums "
    "without rounding.",
    PRECISIONS,
)
ALLOW_UNQUANTIZED = Option(
    "Accept a model in which no layer runs in the requested precision, instead of refusing it.",
    GATE,
)
CUSTOM_OPS = Option(
    "A shared library with custom operators for ONNX Runtime; repeatable.",
    LARGE,
    metavar="FILE",
    reads=True,
)
FORCE = Option("Replace files that exist.", WRITE)
MEMORY_BUDGET = Option(
    "Memory for activations, such as 512M.", LARGE, metavar="SIZE", unset="2G", parse=parse_bytes
)
HTML = Option(
    "Write the result as a page: one HTML file, which opens in any browser.",
    WRITE,
    metavar="FILE.html",
    suffixes=(".html", ".htm"),
    writes="new",
)
MODEL_OR_PLAN = Option(
    "The ONNX model, in FP32 or already quantized. Where a plan is given, the one that it names.",
    metavar="MODEL",
    positional=True,
    reads=True,
)
INPUTS = Option(f"Samples to compare on: {DATA}.", WHAT, metavar="DATA", reads=True)
WEIGHTS = Option(
    "One scale per output channel of a weight, or one per weight.",
    PRECISIONS,
    unset="the plan's, or per-channel",
)
BLOCK_SIZE = Option(
    "How many values of a weight share a scale in w4 and w8, along what is summed over.",
    PRECISIONS,
    metavar="N",
    unset="the plan's, or 128",
)
FALLBACK = Option(
    "Precision of the layers that cannot be quantized.", PRECISIONS, unset="the plan's, or fp32"
)
CALIBRATION = Option(
    "Ranges to use instead of calibrating: scales.yaml, a TensorRT calibration cache or a plan.",
    PRECISIONS,
    metavar="FILE",
    reads=True,
)
CALIB_DATA = Option(
    "Samples to calibrate the ranges on.",
    WHAT,
    metavar="DATA",
    unset="the compared ones",
    reads=True,
)
METHOD = Option(
    f"How ranges follow from the calibration samples: {method_usage()}.", PRECISIONS, metavar="NAME"
)
GROUP = Option(
    "Also measure each group of samples by itself: the name of a column or of an array of the data "
    "that says which group a sample is of, such as a weather, a camera or labels; of pictures "
    "and recordings also folder, the subfolder that each is in.",
    SAMPLED,
    metavar="NAME",
)
FRAMEWORK = Option(
    "What the training framework gives for the same samples, to check the export first: arrays by "
    "name of output, tensor or module (.npz, .h5, a folder), what qdebug.capture wrote, or "
    "file.py:function, which is called with the inputs.",
    LOOK,
    metavar="DATA",
    reads=True,
)
WORST_GROUP = Option(
    "Let the target hold for each group of samples: the name of a column or of an array of the "
    "data, or folder. The metric is then that of FP32 plus the change of the worst group.",
    GATE,
    metavar="NAME",
)
CALIB_SAMPLES = Option("Calibrate on the first N samples only.", SAMPLED, metavar="N", unset="all")


@dataclass(frozen=True)
class CandidateSettings(EngineSettings, DataSettings):
    """A model, samples, and the precisions to run it in."""

    model: Annotated[ModelLike, MODEL_OR_PLAN]
    inputs: Annotated[DataLike, INPUTS]
    precision: Annotated[
        PrecisionName | None,
        Option(
            "The precision to test against FP32: fp8 is E4M3, a16w8 has INT16 activations and INT8 "
            "weights, w4 and w8 have weights of 4 or 8 bits in blocks and nothing else quantized.",
            PRECISIONS,
            unset="the plan's, or int8",
        ),
    ] = None
    fallback_precision: Annotated[FallbackName | None, FALLBACK] = None
    weights: Annotated[WeightsName | None, WEIGHTS] = None
    block_size: Annotated[BlockSize | None, BLOCK_SIZE] = None
    plan: Annotated[
        PlanLike | None,
        Option(
            "A precision plan (YAML): the precision of each layer, and ranges.",
            PRECISIONS,
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
    decode: Annotated[str | None, DECODE] = None
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    cache: Annotated[bool, CACHE] = True

    @property
    def compared(self) -> SampleSpec:
        """The samples to compare on."""
        return self.sample_spec(self.inputs, self.samples, self.batch_size)

    @property
    def quantization(self) -> QuantizationSpec:
        """What is compared, and how it is quantized."""
        calibrates_on = self.calibration_spec(self.calib_data, self.calib_samples)
        fits = bool(getattr(self, "try_remedies", False))
        return spec_from(
            QuantizationSpec,
            self,
            compared=self.compared,
            calibrates_on=calibrates_on,
            fits_remedies=fits,
            pin=(),
        )
