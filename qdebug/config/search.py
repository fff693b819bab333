"""Settings of `qdebug bisect` and `qdebug repair`, which search for what keeps the accuracy."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.config.engine import EngineSettings
from qdebug.config.flag import (
    ARGUMENT,
    CHECKED,
    GATE,
    PRECISIONS,
    QUANTIZED,
    SAMPLED,
    SEARCH,
    WHAT,
    WRITE,
    File,
    Positive,
    ReadPath,
)
from qdebug.config.objects import Data, Model, Plan, RunOrProfile
from qdebug.config.remedies import SUMMARIES, remedy_usage
from qdebug.config.shared import (
    DATA,
    FALLBACK,
    FRAMEWORK,
    WEIGHTS,
    CandidateSettings,
    ClusterSettings,
    FallbackName,
    MemorySettings,
    PageSettings,
    PrecisionName,
    RangeSettings,
    RunSettings,
    TaskSettings,
    WeightsName,
)
from qdebug.config.specs import PinSearchSpec, QuantizationSpec, TargetSpec, spec_from
from qdebug.config.values import Difference, Seconds, Share, values_of
from qdebug.config.words import word_of
from qdebug.network.samplespec import SampleSpec

PinToName = Literal["w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32", "auto", "ladder"]

MAX_DROP = Parameter(
    help="The target as a loss: how far the metric may fall below FP32's, such as 0.01.",
    group=SEARCH,
    metavar="X",
)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class SearchSettings(MemorySettings, ClusterSettings, PageSettings):
    """What accuracy is asked for, and how layers to pin are searched for."""

    target: Annotated[
        str | None,
        Parameter(
            help='What must hold in the end, such as "output.cosine>=0.999" or "metric>=0.97".',
            group=SEARCH,
            metavar="CONDITION",
        ),
    ] = None
    max_drop: Annotated[Difference | None, MAX_DROP] = None
    max_rise: Annotated[
        Difference | None,
        Parameter(
            help="The same for a metric where lower is better: how far it may rise above FP32's.",
            group=SEARCH,
            metavar="X",
        ),
    ] = None
    worst_group: Annotated[
        str | None,
        Parameter(
            help="Let the target hold for each group of samples: the name of a column or of an "
            "array of the data, or folder. The metric is then that of FP32 plus the change of the "
            "worst group.",
            group=GATE,
            metavar="NAME",
        ),
    ] = None
    pin_to: Annotated[
        PinToName | None,
        Parameter(
            help="Precision of the layers that are raised; auto takes fp16 where it suffices, and "
            "else fp32; ladder for each layer the cheapest of all precisions that does.",
            group=SEARCH,
            show_default="auto, or fp32 where no layer is quantized",
        ),
    ] = None
    never_pin: Annotated[
        tuple[str, ...],
        Parameter(
            help="Never keep this layer in higher precision: a name, a pattern with *, or op:TYPE; "
            "repeatable.",
            group=SEARCH,
            metavar="NAME",
        ),
    ] = ()
    time_limit: Annotated[
        Seconds | None,
        Parameter(
            help="Stop after so many seconds, with the best that was found.",
            group=SEARCH,
            metavar="SECONDS",
        ),
    ] = None

    @property
    def asked(self) -> TargetSpec:
        """What must hold in the end."""
        return spec_from(TargetSpec, self)


@dataclass(frozen=True, config=CHECKED)
class BisectSettings(CandidateSettings, SearchSettings):
    """The settings of `qdebug bisect`, besides those that it shares with other commands."""

    model: Annotated[
        Model,
        Parameter(
            help="The FP32 ONNX model. Where a plan is given, the one that it names.",
            group=ARGUMENT,
            metavar="MODEL",
        ),
    ]
    holdout: Annotated[
        Data | None,
        Parameter(
            help="Other samples, to check the answer on.",
            group=SAMPLED,
            metavar="DATA",
            show_default="a share of the samples",
        ),
    ] = None
    holdout_share: Annotated[
        Share,
        Parameter(
            help="Without --holdout, the share of the samples to set aside for that.",
            group=SAMPLED,
            metavar="X",
        ),
    ] = 0.3
    framework: Annotated[Data | None, FRAMEWORK] = None
    pin: Annotated[
        tuple[str, ...],
        Parameter(
            help="Always keep this layer in higher precision: a name, a pattern with *, or "
            "op:TYPE; repeatable.",
            group=SEARCH,
            metavar="NAME",
        ),
    ] = ()
    profile: Annotated[
        RunOrProfile | None,
        Parameter(
            help="Count the cost in measured milliseconds: the JSON of trtexec --exportProfile, or "
            "a run file of compare on a GPU.",
            group=SEARCH,
            metavar="FILE",
        ),
    ] = None
    profile_layers: Annotated[
        ReadPath | None,
        Parameter(
            help="What the layers of that profile are: the JSON of trtexec --exportLayerInfo, or "
            "the build log. Needed where their names do not tell.",
            group=SEARCH,
            metavar="FILE",
        ),
    ] = None
    max_evaluations: Annotated[
        Positive | None,
        Parameter(help="Stop after N sets of layers were tried.", group=SEARCH, metavar="N"),
    ] = None
    select_point: Annotated[
        str | None,
        Parameter(
            help="Take this point of the list of error against cost: its number, or knee for the "
            "best trade-off.",
            group=SEARCH,
            metavar="POINT",
            show_default="the cheapest set that meets the target",
        ),
    ] = None
    output: Annotated[
        str | None,
        File("new", (".yaml", ".yml")),
        Parameter(
            name=("--output", "-o"),
            help="Write the precision plan that was found (YAML).",
            group=WRITE,
            metavar="precision.yaml",
        ),
    ] = None

    @property
    def held_out(self) -> SampleSpec | None:
        """Other samples, to check the answer on."""
        if self.holdout is None:
            return None
        return self.sample_spec(self.holdout, None, self.batch_size, "holdout", "")

    @property
    def search(self) -> PinSearchSpec:
        """How to search."""
        return spec_from(PinSearchSpec, self, engine=spec_from(EngineSettings, self))


Remedies = Annotated[tuple[Annotated[str, word_of(SUMMARIES)], ...], BeforeValidator(values_of)]


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class RepairSettings(SearchSettings, RangeSettings, RunSettings, TaskSettings):
    """The settings of `qdebug repair`."""

    model: Annotated[
        Model,
        Parameter(
            help="The FP32 ONNX model; or a quantized one, with its FP32 model as --reference.",
            group=ARGUMENT,
            metavar="MODEL",
        ),
    ]
    calib_data: Annotated[
        Data,
        Parameter(
            help=f"Samples to calibrate and to fit remedies on: {DATA}.",
            group=WHAT,
            metavar="DATA",
        ),
    ]
    inputs: Annotated[
        Data | None,
        Parameter(
            help="Other samples: one half decides which remedies are kept, the other checks the "
            "result.",
            group=WHAT,
            metavar="DATA",
            show_default="a share of the calibration data",
        ),
    ] = None
    holdout_share: Annotated[
        Share,
        Parameter(
            help="Without --inputs, the share of the samples to set aside for that.",
            group=SAMPLED,
            metavar="X",
        ),
    ] = 0.4
    reference: Annotated[
        Model | None,
        Parameter(
            help="Of a quantized MODEL: the FP32 model that it was made from.",
            group=QUANTIZED,
            metavar="FP32.onnx",
        ),
    ] = None
    precision: Annotated[
        PrecisionName | None,
        Parameter(
            help="The precision to repair.", group=PRECISIONS, show_default="the plan's, or int8"
        ),
    ] = None
    fallback_precision: Annotated[FallbackName | None, FALLBACK] = None
    weights: Annotated[WeightsName | None, WEIGHTS] = None
    plan: Annotated[
        Plan | None,
        Parameter(
            help="A precision plan (YAML) to start from; the precisions that it names are kept.",
            group=PRECISIONS,
            metavar="FILE.yaml",
        ),
    ] = None
    samples: Annotated[
        Positive | None,
        Parameter(
            help="Use the first N samples only, of --inputs and of --calib-data each.",
            group=SAMPLED,
            metavar="N",
            show_default="all",
        ),
    ] = None
    calib_samples: Annotated[
        Positive | None,
        Parameter(
            help="Calibrate and fit on the first N samples only.",
            group=SAMPLED,
            metavar="N",
            show_default="that of --samples",
        ),
    ] = None
    only: Annotated[
        Remedies,
        Parameter(
            help=f"Try only these remedies: {remedy_usage()}.",
            group=SEARCH,
            metavar="NAMES",
            show_default="all",
        ),
    ] = ()
    never: Annotated[
        Remedies,
        Parameter(
            help="Never try these remedies.", group=SEARCH, metavar="NAMES", show_default="none"
        ),
    ] = ()
    keep_undecided: Annotated[
        bool,
        Parameter(
            help="Also keep what looks better where the samples are too few to tell it from "
            "chance.",
            group=SEARCH,
        ),
    ] = False
    pin: Annotated[
        bool,
        Parameter(
            help="Keep no layer in higher precision: stop when all remedies were tried.",
            group=SEARCH,
        ),
    ] = True
    output: Annotated[
        str | None,
        File("resumed", (".onnx",)),
        Parameter(
            name=("--output", "-o"),
            help="Write the repaired model, with Q/DQ nodes: the best so far whenever a remedy is "
            "kept.",
            group=WRITE,
            metavar="model.int8.onnx",
        ),
    ] = None
    save_plan: Annotated[
        str | None,
        File("new", (".yaml", ".yml")),
        Parameter(
            help="Write its plan (YAML), ranges included, which is for the model of --save-fp32.",
            group=WRITE,
            metavar="FILE.yaml",
        ),
    ] = None
    save_fp32: Annotated[
        str | None,
        File("new", (".onnx",)),
        Parameter(
            help="Write the FP32 model that the plan and the calibration cache are for: it "
            "computes the same, with channels scaled as remedies scaled them.",
            group=WRITE,
            metavar="FILE.onnx",
        ),
    ] = None
    trt_cache: Annotated[
        str | None,
        File("new", (".cache",)),
        Parameter(
            help="Write its ranges as a calibration cache for TensorRT 10.",
            group=WRITE,
            metavar="FILE",
        ),
    ] = None

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
        compared = self.held_out or self.calibrates_on
        on = self.calibrates_on
        return spec_from(QuantizationSpec, self, compared=compared, calibrates_on=on, pin=())

    @property
    def search(self) -> PinSearchSpec:
        """How to search for layers to pin."""
        # Here `pin` allows it, `force` and `time_limit` are about the whole repair.
        return spec_from(PinSearchSpec, self, pin=(), force=False, time_limit=None)
