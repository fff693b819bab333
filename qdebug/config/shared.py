"""The settings that commands share: samples, workers, precisions, and what is written."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from annotated_types import Ge
from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.backends.budget import DEFAULT_BUDGET
from qdebug.calibrators.registry import DEFAULT_METHOD, method_usage
from qdebug.config.engine import EngineSettings
from qdebug.config.flag import (
    ARGUMENT,
    CHECKED,
    CLUSTER,
    GATE,
    LARGE,
    LOOK,
    PRECISIONS,
    SAMPLED,
    WHAT,
    WRITE,
    File,
    Positive,
    ReadPath,
)
from qdebug.config.objects import Calibration, Data, Metric, Model, Pictures, Plan
from qdebug.config.specs import QuantizationSpec, spec_from
from qdebug.config.values import Bytes
from qdebug.metrics.tasks.registry import DECODERS, metric_usage
from qdebug.network.dataformats import data_usage
from qdebug.network.inputshapes import checked_shapes, parse_shapes
from qdebug.network.preprocessing import preset_names
from qdebug.network.samplespec import SampleSpec

DATA = data_usage()
METRIC = Parameter(help=f"Accuracy of the task: {metric_usage()}.", group=GATE, metavar="METRIC")
FRAMEWORK = Parameter(
    help="What the training framework gives for the same samples, to check the export first: "
    "arrays by name of output, tensor or module (.npz, .h5, a folder), what qdebug.capture wrote, "
    "or file.py:function, which is called with the inputs.",
    group=LOOK,
    metavar="DATA",
)
GROUP_BY = Parameter(
    help="Also measure each group of samples by itself: the name of a column or of an array of the "
    "data that says which group a sample is of, such as a weather, a camera or labels; of pictures "
    "and recordings also folder, the subfolder that each is in.",
    group=SAMPLED,
    metavar="NAME",
)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class DataSettings:
    """How samples are read. Commands call their model `model`, or `source`."""

    preprocess: Annotated[
        Pictures | None,
        Parameter(
            help=f"How pictures become the model's input: {preset_names()}, or a YAML file.",
            group=SAMPLED,
            metavar="NAME|FILE.yaml",
            show_default="what a file beside the model or its metadata say, else a guess",
        ),
    ] = None
    shape: Annotated[
        tuple[str, ...],
        BeforeValidator(checked_shapes),
        Parameter(
            help="The shape of an input whose axes are free, such as images:1x3x640x640; N leaves "
            "an axis free; repeatable.",
            group=SAMPLED,
            metavar="NAME:SHAPE",
        ),
    ] = ()
    skip_bad: Annotated[
        bool,
        Parameter(
            help="Leave out pictures that cannot be read, instead of refusing them.", group=SAMPLED
        ),
    ] = False

    def calibration_spec(self, data: str | None, limit: int | None) -> SampleSpec | None:
        """The samples of `calib_data`, as far as it is given; `limit` is `calib_samples`."""
        if data is None:
            return None
        return self.sample_spec(data, limit, setting="calib_data", limited_by="calib_samples")

    @property
    def told_apart_by(self) -> str | None:
        """What says which group a sample is of, in commands that have groups."""
        return getattr(self, "group", None) or getattr(self, "worst_group", None)

    def sample_spec(
        self,
        data: str,
        limit: int | None = None,
        batch_size: int | None = None,
        setting: str = "inputs",
        limited_by: str = "samples",
    ) -> SampleSpec:
        """The samples of one setting; see SampleSpec."""
        return SampleSpec(
            data,
            limit,
            batch_size,
            setting,
            limited_by,
            model=getattr(self, "model", None) or getattr(self, "source", None) or "",
            preprocess=self.preprocess,
            skip_bad=self.skip_bad,
            shapes=parse_shapes(self.shape),
            group=self.told_apart_by,
        )


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class RunSettings(DataSettings):
    """How a model is run over samples."""

    samples: Annotated[
        Positive | None,
        Parameter(
            help="Use the first N samples only.", group=SAMPLED, metavar="N", show_default="all"
        ),
    ] = None
    batch_size: Annotated[
        Positive | None,
        Parameter(
            help="How many samples are run at once, where the batch axis of the model is dynamic.",
            group=LARGE,
            metavar="N",
            show_default="chosen by size",
        ),
    ] = None
    custom_op_library: Annotated[
        tuple[ReadPath, ...],
        Parameter(
            help="A shared library with custom operators for ONNX Runtime; repeatable.",
            group=LARGE,
            metavar="FILE",
        ),
    ] = ()
    cache: Annotated[
        bool,
        Parameter(help="Compute everything anew, without what earlier runs kept.", group=LARGE),
    ] = True


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class TaskSettings:
    """How the task is judged."""

    metric: Annotated[Metric | None, METRIC] = None
    decode: Annotated[
        str | None,
        Parameter(
            help="How the outputs are read for a metric of boxes or text, where the model does not "
            f"tell: {', '.join(d.name for d in DECODERS)}, file.py:function.",
            group=GATE,
            metavar="NAME",
        ),
    ] = None


_WHERE = re.compile(
    r"local:[1-9]\d{0,3}|(tcp|tls)://(\[[\da-fA-F:.%]+\]|[^\s:/@\[\]]+):([0-9]{1,5})"
)
_LAST_PORT = 65535


def parse_cluster(value: object) -> str:
    """Where work is spread.

    Raises:
        ValueError: neither processes of this machine nor an address with a port.
    """
    text = str(value).strip()
    found = _WHERE.fullmatch(text)
    if found is None or not 0 < int(found[3] or 1) <= _LAST_PORT:
        raise ValueError(
            "must be local:N with N from 1 to 9999, or tcp://host:port or tls://host:port with a "
            f"port from 1 to {_LAST_PORT}; write for example local:4 or tcp://host:8786"
        )
    return text


def local_processes(cluster: str | None) -> int:
    """How many processes of this machine `cluster` asks for; 0 where it is something else."""
    kind, _, count = (cluster or "").partition(":")
    return int(count) if kind == "local" else 0


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class ClusterSettings:
    """Where the work is spread to."""

    cluster: Annotated[
        Annotated[str, BeforeValidator(parse_cluster)] | None,
        Parameter(
            help="Spread the work over N processes of this machine (local:N), or over the workers "
            "of a dask.distributed scheduler (tcp://host:8786).",
            group=CLUSTER,
            metavar="WHERE",
            show_default="this process",
        ),
    ] = None


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

_PER_CHANNEL = "One scale per output channel of a weight, or one per weight."
WEIGHTS = Parameter(help=_PER_CHANNEL, group=PRECISIONS, show_default="the plan's, or per-channel")
FALLBACK = Parameter(
    help="Precision of the layers that cannot be quantized.",
    group=PRECISIONS,
    show_default="the plan's, or fp32",
)
MODEL_OR_PLAN = Parameter(
    help="The ONNX model, in FP32 or already quantized. Where a plan is given, the one that it "
    "names.",
    group=ARGUMENT,
    metavar="MODEL",
)
INPUTS = Parameter(help=f"Samples to compare on: {DATA}.", group=WHAT, metavar="DATA")
CALIB_DATA = Parameter(
    help="Samples to calibrate the ranges on.",
    group=WHAT,
    metavar="DATA",
    show_default="the compared ones",
)


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class WritingSettings:
    """Of commands that write files."""

    force: Annotated[bool, Parameter(help="Replace files that exist.", group=WRITE)] = False


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class PageSettings(WritingSettings):
    """Of commands whose result may be written as a page."""

    html: Annotated[
        str | None,
        File("new", (".html", ".htm")),
        Parameter(
            help="Write the result as a page: one HTML file, which opens in any browser.",
            group=WRITE,
            metavar="FILE.html",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class KernelSettings:
    """How FP16 is simulated."""

    fp16_kernels: Annotated[
        Fp16KernelsName,
        Parameter(
            help="How FP16 is simulated: tensorrt also sums in FP16, as TensorRT's kernels do; "
            "exact sums without rounding.",
            group=PRECISIONS,
        ),
    ] = "tensorrt"


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class MemorySettings:
    """How much memory is used."""

    memory_budget: Annotated[
        Bytes,
        Parameter(
            help="Memory for activations, such as 512M.",
            group=LARGE,
            metavar="SIZE",
            show_default="2G",
        ),
    ] = DEFAULT_BUDGET


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class GateSettings:
    """What a model must have to be compared at all."""

    allow_unquantized: Annotated[
        bool,
        Parameter(
            help="Accept a model in which no layer runs in the requested precision, instead of "
            "refusing it.",
            group=GATE,
        ),
    ] = False


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class RangeSettings(KernelSettings):
    """Where the ranges of a candidate come from."""

    calibration: Annotated[
        Calibration | None,
        Parameter(
            help="Ranges to use instead of calibrating: scales.yaml, a TensorRT calibration cache "
            "or a plan.",
            group=PRECISIONS,
            metavar="FILE",
        ),
    ] = None
    method: Annotated[
        str,
        Parameter(
            help=f"How ranges follow from the calibration samples: {method_usage()}.",
            group=PRECISIONS,
            metavar="NAME",
        ),
    ] = DEFAULT_METHOD
    calib_samples: Annotated[
        Positive | None,
        Parameter(
            help="Calibrate on the first N samples only.",
            group=SAMPLED,
            metavar="N",
            show_default="all",
        ),
    ] = None


@dataclass(frozen=True, config=CHECKED)
class CandidateSettings(RangeSettings, EngineSettings, RunSettings, TaskSettings):
    """A model, samples, and the precisions to run it in."""

    model: Annotated[Model, MODEL_OR_PLAN]
    inputs: Annotated[Data, INPUTS]
    precision: Annotated[
        PrecisionName | None,
        Parameter(
            help="The precision to test against FP32: fp8 is E4M3, a16w8 has INT16 activations and "
            "INT8 weights, w4 and w8 have weights of 4 or 8 bits in blocks and nothing else "
            "quantized.",
            group=PRECISIONS,
            show_default="the plan's, or int8",
        ),
    ] = None
    fallback_precision: Annotated[FallbackName | None, FALLBACK] = None
    weights: Annotated[WeightsName | None, WEIGHTS] = None
    block_size: Annotated[
        Annotated[int, Ge(16)] | None,
        Parameter(
            help="How many values of a weight share a scale in w4 and w8, along what is summed "
            "over.",
            group=PRECISIONS,
            metavar="N",
            show_default="the plan's, or 128",
        ),
    ] = None
    plan: Annotated[
        Plan | None,
        Parameter(
            help="A precision plan (YAML): the precision of each layer, and ranges.",
            group=PRECISIONS,
            metavar="FILE.yaml",
        ),
    ] = None
    calib_data: Annotated[Data | None, CALIB_DATA] = None

    @property
    def compared(self) -> SampleSpec:
        """The samples to compare on."""
        return self.sample_spec(self.inputs, self.samples, self.batch_size)

    @property
    def quantization(self) -> QuantizationSpec:
        """What is compared, and how it is quantized."""
        return spec_from(
            QuantizationSpec,
            self,
            compared=self.compared,
            calibrates_on=self.calibration_spec(self.calib_data, self.calib_samples),
            fits_remedies=bool(getattr(self, "try_remedies", False)),
            pin=(),
        )
