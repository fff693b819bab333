"""Settings of `qdebug bisect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt

from qdebug.config.candidate import FORCE, HTML, MEMORY_BUDGET, CandidateSettings
from qdebug.config.cluster import ClusterSettings
from qdebug.config.option import (
    GATE,
    SEARCH,
    WHAT,
    WRITE,
    DataLike,
    Option,
    Positive,
    RunLike,
    Share,
)
from qdebug.config.values import parse_difference
from qdebug.run.segmentation import DEFAULT_BUDGET
from qdebug.search.strategies import STRATEGIES

PinToName = Literal["fp16", "fp32", "auto"]
Seconds = Annotated[float, Gt(0)]
_STRATEGIES = "; ".join(f"{name} ({entry.summary})" for name, entry in STRATEGIES.items())

TARGET = Option(
    'What must hold, such as "output.cosine>=0.999" or "metric>=0.97".',
    GATE,
    metavar="CONDITION",
)
MAX_DROP = Option(
    "Instead of a target: how far the metric may fall below FP32's.",
    GATE,
    metavar="X",
    parse=parse_difference,
)
MAX_RISE = Option(
    "The same for a metric where less is better: how far it may rise.",
    GATE,
    metavar="X",
    parse=parse_difference,
)
PIN_TO = Option(
    "Precision of pinned layers; auto takes fp16 where it suffices.",
    SEARCH,
    unset="auto, or fp32 where the candidate is in fp16",
)
NEVER_PIN = Option("Never pin it; repeatable.", SEARCH, metavar="NAME")
TIME_LIMIT = Option("End after so many seconds, with the best found.", SEARCH, metavar="SECONDS")


@dataclass(frozen=True)
class BisectSettings(CandidateSettings, ClusterSettings):
    """The settings of `qdebug bisect`, besides those that it shares with other commands."""

    holdout: Annotated[
        DataLike | None,
        Option(
            "Samples to verify the answer on.",
            WHAT,
            metavar="DATA",
            unset="a share of the samples",
            reads=True,
        ),
    ] = None
    holdout_share: Annotated[
        Share, Option("The share of the samples to hold out.", WHAT, metavar="X")
    ] = 0.3
    target: Annotated[str | None, TARGET] = None
    max_drop: Annotated[float | None, MAX_DROP] = None
    max_rise: Annotated[float | None, MAX_RISE] = None
    strategy: Annotated[
        str,
        Option(f"How to search: {_STRATEGIES}.", SEARCH, metavar="NAME", words=tuple(STRATEGIES)),
    ] = next(iter(STRATEGIES))
    pin_to: Annotated[PinToName | None, PIN_TO] = None
    pin: Annotated[
        tuple[str, ...],
        Option(
            "Always pin this layer: a name, a pattern with *, or op:TYPE; repeatable.",
            SEARCH,
            metavar="NAME",
        ),
    ] = ()
    never_pin: Annotated[tuple[str, ...], NEVER_PIN] = ()
    profile: Annotated[
        RunLike | None,
        Option(
            "Count costs in milliseconds: the JSON of trtexec --exportProfile, or a run file of "
            "compare on a GPU.",
            SEARCH,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    profile_layers: Annotated[
        str | None,
        Option(
            "What the profiled layers are: the JSON of trtexec --exportLayerInfo, or the build "
            "log. Needed where their names do not say.",
            SEARCH,
            metavar="FILE",
            reads=True,
        ),
    ] = None
    max_evaluations: Annotated[
        Positive | None, Option("Stop a search after N candidates.", SEARCH, metavar="N")
    ] = None
    time_limit: Annotated[Seconds | None, TIME_LIMIT] = None
    journal: Annotated[
        str | None,
        Option(
            "Keep evaluations here; the same command resumes an interrupted search.",
            SEARCH,
            metavar="FILE",
            unset="one in the cache folder",
            writes="any",
        ),
    ] = None
    memory_budget: Annotated[int, MEMORY_BUDGET] = DEFAULT_BUDGET
    int8_kernels: Annotated[
        bool,
        Option(
            "Search on ONNX Runtime's INT8 kernels, where they agree with the simulation.",
            SEARCH,
            off="Search on the simulation too, not on ONNX Runtime's INT8 kernels.",
        ),
    ] = True
    select_point: Annotated[
        str | None,
        Option(
            "Use this point of the list of error against cost: its number, or knee.",
            SEARCH,
            metavar="POINT",
            unset="the cheapest set that meets the target",
            parse=str,
        ),
    ] = None
    output: Annotated[
        str | None,
        Option(
            "Write the plan that was found.",
            WRITE,
            metavar="precision.yaml",
            suffixes=(".yaml", ".yml"),
            short="-o",
            writes="new",
        ),
    ] = None
    html: Annotated[str | None, HTML] = None
    force: Annotated[bool, FORCE] = False
