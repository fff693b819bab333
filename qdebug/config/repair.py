"""Settings of `qdebug repair`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from qdebug.backends.budget import DEFAULT_BUDGET
from qdebug.calibrators.registry import DEFAULT_METHOD
from qdebug.config.bisect import (
    MAX_DROP,
    MAX_RISE,
    NEVER_PIN,
    PIN_TO,
    TARGET,
    TIME_LIMIT,
    PinToName,
    Seconds,
)
from qdebug.config.candidate import (
    BATCH_SIZE,
    CACHE,
    CALIBRATION,
    CUSTOM_OPS,
    DATA,
    DECODE,
    FALLBACK,
    FORCE,
    FP16_KERNELS,
    HTML,
    MEMORY_BUDGET,
    METHOD,
    METRIC,
    WEIGHTS,
    WORST_GROUP,
    FallbackName,
    Fp16KernelsName,
    PrecisionName,
    WeightsName,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.data import DataSettings
from qdebug.config.option import (
    PRECISIONS,
    QUANTIZED,
    SAMPLED,
    SEARCH,
    WHAT,
    WRITE,
    CalibrationLike,
    DataLike,
    MetricLike,
    ModelLike,
    Option,
    PlanLike,
    Positive,
    Share,
)
from qdebug.config.remedies import SUMMARIES, remedy_usage
from qdebug.config.specs import PinSearchSpec, QuantizationSpec, TargetSpec, spec_from
from qdebug.config.values import values_of
from qdebug.network.samplespec import SampleSpec
from qdebug.wording import as_known


def _names(given: object) -> tuple[object, ...]:
    """Several names, or none where an empty list is given, as the default is."""
    if given in ((), []):
        return ()
    return tuple(as_known(v, SUMMARIES) if isinstance(v, str) else v for v in values_of(given))


@dataclass(frozen=True)
class RepairSettings(ClusterSettings, DataSettings):
    """The settings of `qdebug repair`."""

    model: Annotated[
        ModelLike,
        Option(
            "The FP32 ONNX model; or a quantized one, with its FP32 model as --reference.",
            metavar="MODEL",
            positional=True,
            reads=True,
        ),
    ]
    calib_data: Annotated[
        DataLike,
        Option(
            f"Samples to calibrate and to fit remedies on: {DATA}.",
            WHAT,
            metavar="DATA",
            reads=True,
        ),
    ]
    inputs: Annotated[
        DataLike | None,
        Option(
            "Other samples: one half decides which remedies are kept, the other checks the result.",
            WHAT,
            metavar="DATA",
            unset="a share of the calibration data",
            reads=True,
        ),
    ] = None
    holdout_share: Annotated[
        Share,
        Option(
            "Without --inputs, the share of the samples to set aside for that.",
            SAMPLED,
            metavar="X",
        ),
    ] = 0.4
    reference: Annotated[
        ModelLike | None,
        Option(
            "Of a quantized MODEL: the FP32 model that it was made from.",
            QUANTIZED,
            metavar="FP32.onnx",
            reads=True,
        ),
    ] = None
    precision: Annotated[
        PrecisionName | None,
        Option("The precision to repair.", PRECISIONS, unset="the plan's, or int8"),
    ] = None
    fallback_precision: Annotated[FallbackName | None, FALLBACK] = None
    weights: Annotated[WeightsName | None, WEIGHTS] = None
    plan: Annotated[
        PlanLike | None,
        Option(
            "A precision plan (YAML) to start from; the precisions that it names are kept.",
            PRECISIONS,
            metavar="FILE.yaml",
            reads=True,
        ),
    ] = None
    calibration: Annotated[CalibrationLike | None, CALIBRATION] = None
    method: Annotated[str, METHOD] = DEFAULT_METHOD
    samples: Annotated[
        Positive | None,
        Option(
            "Use the first N samples only, of --inputs and of --calib-data each.",
            SAMPLED,
            metavar="N",
            unset="all",
        ),
    ] = None
    calib_samples: Annotated[
        Positive | None,
        Option(
            "Calibrate and fit on the first N samples only.",
            SAMPLED,
            metavar="N",
            unset="that of --samples",
        ),
    ] = None
    batch_size: Annotated[Positive | None, BATCH_SIZE] = None
    fp16_kernels: Annotated[Fp16KernelsName, FP16_KERNELS] = "tensorrt"
    custom_op_library: Annotated[tuple[str, ...], CUSTOM_OPS] = ()
    cache: Annotated[bool, CACHE] = True
    metric: Annotated[MetricLike | None, METRIC] = None
    decode: Annotated[str | None, DECODE] = None
    target: Annotated[str | None, TARGET] = None
    max_drop: Annotated[float | None, MAX_DROP] = None
    max_rise: Annotated[float | None, MAX_RISE] = None
    worst_group: Annotated[str | None, WORST_GROUP] = None
    only: Annotated[
        tuple[str, ...],
        Option(
            f"Try only these remedies: {remedy_usage()}.",
            SEARCH,
            metavar="NAMES",
            unset="all",
            parse=_names,
        ),
    ] = ()
    never: Annotated[
        tuple[str, ...],
        Option(
            "Never try these remedies.",
            SEARCH,
            metavar="NAMES",
            unset="none",
            parse=_names,
        ),
    ] = ()
    keep_undecided: Annotated[
        bool,
        Option(
            "Also keep what looks better where the samples are too few to tell it from chance.",
            SEARCH,
        ),
    ] = False
    pin: Annotated[
        bool,
        Option(
            "Keep layers in higher precision where remedies do not suffice, as bisect does.",
            SEARCH,
            off="Keep no layer in higher precision: stop when all remedies were tried.",
        ),
    ] = True
    pin_to: Annotated[PinToName | None, PIN_TO] = None
    never_pin: Annotated[tuple[str, ...], NEVER_PIN] = ()
    time_limit: Annotated[Seconds | None, TIME_LIMIT] = None
    memory_budget: Annotated[int, MEMORY_BUDGET] = DEFAULT_BUDGET
    output: Annotated[
        str | None,
        Option(
            "Write the repaired model, with Q/DQ nodes: the best so far whenever a remedy is kept.",
            WRITE,
            metavar="model.int8.onnx",
            suffixes=(".onnx",),
            short="-o",
            writes="resumed",
        ),
    ] = None
    save_plan: Annotated[
        str | None,
        Option(
            "Write its plan (YAML), ranges included, which is for the model of --save-fp32.",
            WRITE,
            metavar="FILE.yaml",
            suffixes=(".yaml", ".yml"),
            writes="new",
        ),
    ] = None
    save_fp32: Annotated[
        str | None,
        Option(
            "Write the FP32 model that the plan and the calibration cache are for: it computes the "
            "same, with channels scaled as remedies scaled them.",
            WRITE,
            metavar="FILE.onnx",
            suffixes=(".onnx",),
            writes="new",
        ),
    ] = None
    trt_cache: Annotated[
        str | None,
        Option(
            "Write its ranges as a calibration cache for TensorRT 10.",
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
        return self.worst_group

    @property
    def calibrates_on(self) -> SampleSpec:
        """The samples to calibrate and to fit remedies on."""
        limit, by = self.calib_samples, "calib_samples"
        if limit is None:
            limit, by = self.samples, "samples"
        return self.sample_spec(self.calib_data, limit, self.batch_size, "calib_data", by)

    @property
    def held_out(self) -> SampleSpec | None:
        """Other samples."""
        if self.inputs is None:
            return None
        by = "" if self.samples is None else "samples"
        return self.sample_spec(self.inputs, self.samples, self.batch_size, "inputs", by)

    @property
    def quantization(self) -> QuantizationSpec:
        """How the network is quantized before the repair."""
        return spec_from(
            QuantizationSpec,
            self,
            compared=self.held_out or self.calibrates_on,
            calibrates_on=self.calibrates_on,
            pin=(),
        )

    @property
    def asked(self) -> TargetSpec:
        """What must hold in the end."""
        return spec_from(TargetSpec, self)

    @property
    def search(self) -> PinSearchSpec:
        """How to search for layers to pin."""
        # Here `pin` allows it, `force` and `time_limit` are about the whole repair.
        return spec_from(PinSearchSpec, self, pin=(), force=False, time_limit=None)
