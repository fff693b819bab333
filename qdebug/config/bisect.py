"""Settings of `qdebug bisect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from qdebug.backends.budget import DEFAULT_BUDGET
from qdebug.config.candidate import (
    FORCE,
    FRAMEWORK,
    HTML,
    MEMORY_BUDGET,
    WORST_GROUP,
    CandidateSettings,
)
from qdebug.config.cluster import ClusterSettings
from qdebug.config.engine import EngineSettings
from qdebug.config.option import (
    SAMPLED,
    SEARCH,
    WRITE,
    DataLike,
    ModelLike,
    Option,
    Positive,
    RunLike,
    Share,
)
from qdebug.config.specs import PinSearchSpec, TargetSpec, spec_from
from qdebug.config.values import parse_difference
from qdebug.network.samplespec import SampleSpec

PinToName = Literal["w8", "int8", "fp8", "a16w8", "bf16", "fp16", "fp32", "auto", "ladder"]
Seconds = Annotated[float, Gt(0)]

TARGET = Option(
    'What must hold in the end, such as "output.cosine>=0.999" or "metric>=0.97".',
    SEARCH,
    metavar="CONDITION",
)
MAX_DROP = Option(
    "The target as a loss: how far the metric may fall below FP32's, such as 0.01.",
    SEARCH,
    metavar="X",
    parse=parse_difference,
)
MAX_RISE = Option(
    "The same for a metric where lower is better: how far it may rise above FP32's.",
    SEARCH,
    metavar="X",
    parse=parse_difference,
)
PIN_TO = Option(
    "Precision of the layers that are raised; auto takes fp16 where it suffices, and else fp32; "
    "ladder for each layer the cheapest of all precisions that does.",
    SEARCH,
    unset="auto, or fp32 where no layer is quantized",
)
NEVER_PIN = Option(
    "Never keep this layer in higher precision: a name, a pattern with *, or op:TYPE; repeatable.",
    SEARCH,
    metavar="NAME",
)
TIME_LIMIT = Option(
    "Stop after so many seconds, with the best that was found.", SEARCH, metavar="SECONDS"
)


@dataclass(frozen=True)
class BisectSettings(CandidateSettings, ClusterSettings):
    """The settings of `qdebug bisect`, besides those that it shares with other commands."""

    model: Annotated[
        ModelLike,
        Option(
            "The FP32 ONNX model. Where a plan is given, the one that it names.",
            metavar="MODEL",
            positional=True,
            reads=True,
        ),
    ]
    holdout: Annotated[
        DataLike | None,
        Option(
            "Other samples, to check the answer on.",
            SAMPLED,
            metavar="DATA",
            unset="a share of the samples",
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
    ] = 0.3
    framework: Annotated[DataLike | None, FRAMEWORK] = None
    target: Annotated[str | None, TARGET] = None
    max_drop: Annotated[float | None, MAX_DROP] = None
    max_rise: Annotated[float | None, MAX_RISE] = None
    worst_group: Annotated[str | None, WORST_GROUP] = None
    pin_to: Annotated[PinToName | None, PIN_TO] = None
    pin: Annotated[
        tuple[str, ...],
        Option(
            "Always keep this layer in higher precision: a name, a pattern with *, or op:TYPE; "
            "repeatable.",
            SEARCH,
            metavar="NAME",
        ),
    ] = ()
    never_pin: Annotated[tuple[str, ...], NEVER_PIN] = ()
    profile: Annotated[
        RunLike | None,
        Option(
            "Count the cost in measured milliseconds: the JSON of trtexec --exportProfile, or a "
            "run file of compare on a GPU.",
            SEARCH,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    profile_layers: Annotated[
        str | None,
        Option(
            "What the layers of that profile are: the JSON of trtexec --exportLayerInfo, or the "
            "build log. Needed where their names do not tell.",
            SEARCH,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    max_evaluations: Annotated[
        Positive | None, Option("Stop after N sets of layers were tried.", SEARCH, metavar="N")
    ] = None
    time_limit: Annotated[Seconds | None, TIME_LIMIT] = None
    memory_budget: Annotated[int, MEMORY_BUDGET] = DEFAULT_BUDGET
    select_point: Annotated[
        str | None,
        Option(
            "Take this point of the list of error against cost: its number, or knee for the best "
            "trade-off.",
            SEARCH,
            metavar="POINT",
            unset="the cheapest set that meets the target",
            parse=str,
        ),
    ] = None
    output: Annotated[
        str | None,
        Option(
            "Write the precision plan that was found (YAML).",
            WRITE,
            metavar="precision.yaml",
            suffixes=(".yaml", ".yml"),
            short="-o",
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
    def held_out(self) -> SampleSpec | None:
        """Other samples, to check the answer on."""
        if self.holdout is None:
            return None
        return self.sample_spec(self.holdout, None, self.batch_size, "holdout", "")

    @property
    def asked(self) -> TargetSpec:
        """What must hold in the end."""
        return spec_from(TargetSpec, self)

    @property
    def search(self) -> PinSearchSpec:
        """How to search."""
        return spec_from(PinSearchSpec, self, engine=spec_from(EngineSettings, self))
