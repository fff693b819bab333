"""The records of a search: what may be raised, at what cost, and what evaluating a set gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qdebug.formats.registry import order_of
from qdebug.result import Hidden, MaybeText, in_json
from qdebug.types import Precision

Pins = frozenset[tuple[str, Precision]]
"""Layers and the precision each is raised to; a layer at most once. `dict(pins)` reads them, and
`frozenset(mapping.items())` is the way back."""


class CandidateVerdict(StrEnum):
    """The verdict of an evaluation on a candidate."""

    PASS = "pass"
    FAIL = "fail"
    FAILED_TO_BUILD = "failed-to-build"


@dataclass(frozen=True)
class Pinned:
    """What has pins."""

    pins: Hidden[Pins]

    @property
    @in_json
    def pinned(self) -> tuple[str, ...]:
        """The pinned layers, by name."""
        return tuple(self.to)

    @property
    @in_json
    def to(self) -> Mapping[str, Precision]:
        """What each is pinned to."""
        return dict(sorted(self.pins))


class PinTo(StrEnum):
    """The precision that layers are raised to; `auto` takes FP16 where it suffices, `ladder` for
    each layer the cheapest precision that does."""

    W8 = "w8"
    INT8 = "int8"
    FP8 = "fp8"
    A16W8 = "a16w8"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    AUTO = "auto"
    LADDER = "ladder"

    @property
    def precision(self) -> Precision | None:
        """The one precision; None where there are several."""
        return None if self in (PinTo.AUTO, PinTo.LADDER) else Precision(self)


@dataclass(frozen=True)
class Item:
    """A layer that may be raised.

    Attributes:
        costs: what raising it costs, ≥ 0, for every precision it can be raised to; one unit for the
            whole problem.
        noise: an estimate, before any evaluation, of what it adds to the outputs' noise-to-signal
            energy ratio while it is not raised; 0 where nothing is known, +inf where it ruins it.
    """

    name: str
    costs: Mapping[Precision, float]
    noise: float = 0.0

    @property
    def highest(self) -> Precision:
        """The most accurate precision that it can be raised to."""
        return max(self.costs, key=order_of)


@dataclass(frozen=True)
class Measurement:
    """What evaluating one candidate gave.

    Attributes:
        value: the target's figure (worst cosine, accuracy, …); None where there is none.
        passed: the target holds.
        noise: Σerr²/Σref² at the outputs; None where it is not known.
        seconds: wall time of the evaluation.
        slack: how far `value` is on the good side of the target's bound, in the target's unit;
            negative where it fails.
        worst_group: of samples, which decides `value`; null without groups.
        failure: why the candidate could not be built or run; such a candidate has not passed.
        held_out: `value` is that of the held-out samples, which decided.
        on_engine: `value` is that of the engine, which decided; the simulation passes.
        metric: the end-to-end metric, whatever the target is about; null without one.
    """

    value: float | None
    passed: bool
    noise: float | None = None
    seconds: float = 0.0
    slack: Hidden[float | None] = None
    failure: MaybeText = ""
    worst_group: MaybeText = ""
    held_out: bool = False
    on_engine: bool = False
    metric: float | None = None

    @property
    @in_json
    def verdict(self) -> CandidateVerdict:
        """Pass, fail, or failed to build."""
        if self.failure:
            return CandidateVerdict.FAILED_TO_BUILD
        return CandidateVerdict.PASS if self.passed else CandidateVerdict.FAIL


Evaluate = Callable[[Pins], Measurement]
"""The predicate of a search: measures a set of raised layers."""


@dataclass(frozen=True)
class SearchProblem:
    """What to search.

    Attributes:
        items: the layers that may be raised, in order of execution.
        always: pins that every candidate holds; none of them is an item.
        pin_to: the precision that items are raised to.
    """

    items: tuple[Item, ...]
    always: Pins = frozenset()
    pin_to: PinTo = PinTo.AUTO

    def cost(self, pins: Pins) -> float:
        """What `pins` cost, without those that are always there."""
        costs = {item.name: item.costs for item in self.items}
        return math.fsum(costs[name][p] for name, p in pins - self.always)
