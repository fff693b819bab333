"""Settings of `qdebug bisect`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from qdebug.config.candidate import CandidateSettings
from qdebug.config.resolve import MemoryBudget, Positive, Share
from qdebug.errors import UsageError

StrategyName = Literal["auto", "rank", "ddmin", "prefix", "suffix", "exhaustive"]
PinToName = Literal["fp16", "fp32", "auto"]
STORED_BYTES = 512 << 20
"""What activations that candidates start from may take, unless told otherwise."""


def _difference(flag: str, value: object) -> float:
    """A difference of the metric, which may not be written as a share of it."""
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        percent = text.removesuffix("%")
        hint = "Write for example 0.01."
        if percent != text and percent.replace(".", "", 1).isdigit():
            hint = f"Write {float(percent) / 100:g} for {text} of a metric from 0 to 1."
        raise UsageError(f"{flag}: '{text}' is no difference of a metric", hint)
    return number


Drop = Annotated[float, BeforeValidator(partial(_difference, "--max-drop"))]
Rise = Annotated[float, BeforeValidator(partial(_difference, "--max-rise"))]


@dataclass(frozen=True)
class BisectSettings(CandidateSettings):
    """Everything `qdebug bisect` can be told, beside what it shares with others.

    Attributes:
        target: the condition that must hold, as of --fail-on.
        max_drop: instead: the metric may fall this far below FP32's.
        max_rise: the same for a metric where less is better: how far it may rise above FP32's.
        holdout: DATA to verify the answer on; None holds out `holdout_share` of `inputs`.
        strategy: how to search.
        pin_to: precision of pinned layers; "auto" takes FP16 where it suffices. None takes auto,
            and FP32 where the base precision is FP16.
        pin, never_pin: layers, patterns or op:TYPE that are always, or never, pinned.
        profile: latency per layer, for the cost: of trtexec --exportProfile, or a run file.
        profile_layers: layer information or build log of the engine that was profiled.
        max_evaluations, time_limit: when to stop with the best found; seconds.
        journal: the file that remembers evaluations; None keeps one in the cache folder.
        memory_budget: bytes that activations may take which candidates start from.
        int8_kernels: search on ONNX Runtime's INT8 kernels where they agree with the simulation.
        select_point: in place of the answer, this point of the list of error against cost: its
            number, or "knee".
        output: the plan to write; None writes none.
        force: replace existing files.
    """

    target: str | None = None
    max_drop: Drop | None = None
    max_rise: Rise | None = None
    holdout: str | None = None
    holdout_share: Share = 0.3
    strategy: StrategyName = "auto"
    pin_to: PinToName | None = None
    pin: tuple[str, ...] = ()
    never_pin: tuple[str, ...] = ()
    profile: str | None = None
    profile_layers: str | None = None
    max_evaluations: Positive | None = None
    time_limit: Annotated[float, Field(gt=0)] | None = None
    journal: str | None = None
    memory_budget: MemoryBudget = STORED_BYTES
    int8_kernels: bool = True
    select_point: Annotated[str, BeforeValidator(str)] | None = None
    output: str | None = None
    force: bool = False
