"""The records of a precision search: what may be raised, what was asked, what came back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from qdebug.result import Hidden, MaybeText, in_json
from qdebug.types import Precision

Pins = frozenset[tuple[str, Precision]]
"""Layers and the precision each is raised to; hashable, a layer at most once."""


def pins_of(raises: Mapping[str, Precision]) -> Pins:
    """`raises` (layer name -> precision) as pins; `dict(pins)` is the way back."""
    return frozenset(raises.items())


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


ROUGH_STD, MEASURED_STD = 1.2, 0.6
"""Standard deviation of the logarithm of a layer's noise at the outputs around an estimate: from
its local error, and measured with the layer alone quantized."""


@dataclass(frozen=True)
class Item:
    """A layer that may be raised.

    Attributes:
        name: its name.
        costs: what raising it costs, for every precision it can be raised to; ≥ 0, one unit for the
            whole problem.
        noise: an estimate, before any evaluation, of what it adds to the output's noise-to-signal
            energy ratio while it is not raised; 0 where nothing is known, +inf where it ruins it.
        noise_std: the standard deviation of the logarithm of that.
        raised_noise: the same as `noise` when it is raised, for precisions that it was measured in.
        block: the name of the block that it is part of; "" where it is in none.
    """

    name: str
    costs: Mapping[Precision, float]
    noise: float = 0.0
    noise_std: float = ROUGH_STD
    raised_noise: Mapping[Precision, float] = field(default_factory=dict)
    block: str = ""

    @cached_property
    def rungs(self) -> tuple[Precision, ...]:
        """What is worth raising it to, the cheapest first: each makes less noise than all that cost
        no more, the base precision included. In FP32 it makes none; a precision that was not
        measured is left out."""
        noise = {**self.raised_noise, Precision.FP32: 0.0}
        least, found = self.noise, list[Precision]()
        for precision in sorted(self.costs, key=lambda p: (self.costs[p], noise.get(p, math.inf))):
            if precision in noise and (noise[precision] < least or precision is Precision.FP32):
                least = noise[precision]
                found.append(precision)
        return tuple(found)

    def noise_in(self, precision: Precision | None) -> float:
        """Its noise as one of its rungs; None stands for the base precision."""
        if precision is None:
            return self.noise
        return 0.0 if precision is Precision.FP32 else self.raised_noise[precision]


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
        worst_group: of samples, which decides `value`; null without groups, and of a set that the
            journal held.
        failure: why the candidate could not be built or run; such a candidate has not passed.
        held_out: `value` is that of the held-out samples, which decided.
        metric: the end-to-end metric, whatever the target is about; null without one, and of a set
            that the journal held.
    """

    value: float | None
    passed: bool
    noise: float | None = None
    seconds: float = 0.0
    slack: Hidden[float | None] = None
    failure: MaybeText = ""
    worst_group: MaybeText = ""
    held_out: bool = False
    metric: float | None = None

    @property
    @in_json
    def verdict(self) -> CandidateVerdict:
        """Pass, fail, or failed to build."""
        if self.failure:
            return CandidateVerdict.FAILED_TO_BUILD
        return CandidateVerdict.PASS if self.passed else CandidateVerdict.FAIL

    @property
    def known_noise(self) -> float | None:
        """`noise` where it is a finite number."""
        return self.noise if self.noise is not None and math.isfinite(self.noise) else None

    def __post_init__(self) -> None:
        if self.failure and self.passed:
            raise ValueError("a candidate that could not be built cannot have passed")


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

    def __post_init__(self) -> None:
        names = [item.name for item in self.items] + [name for name, _ in self.always]
        if len(set(names)) != len(names):
            raise ValueError("a layer is given twice")
        for item in self.items:
            if not item.costs or any(not 0 <= c < math.inf for c in item.costs.values()):
                raise ValueError(f"{item.name}: needs finite costs that are not negative")
            if not item.noise >= 0:
                raise ValueError(f"{item.name}: its noise is not a number from 0")
            only = self.pin_to.precision
            if only is not None and only not in item.costs:
                raise ValueError(f"{item.name}: has no cost in {self.pin_to}")

    def cost(self, pins: Pins) -> float:
        """What `pins` cost, without those that are always there."""
        costs = {item.name: item.costs for item in self.items}
        return math.fsum(costs[name][p] for name, p in pins - self.always)
