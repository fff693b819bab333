"""What a search for a precision plan found: plain records, from which every report is made."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.measure.engine import EngineReport
from qdebug.measure.result import Cause
from qdebug.plan.plan import PrecisionPlan
from qdebug.search.find import SearchResult
from qdebug.search.problem import Measurement
from qdebug.types import Precision

HELD_OUT = "held-out samples"


@dataclass(frozen=True)
class PinnedLayer:
    """A layer that is kept in higher precision.

    Attributes:
        start, precision: what it would run in, and what it is pinned to.
        demanded: by --pin; then nothing was searched for it.
        local_sqnr_db: its own error at `start`; None where it was not measured.
        causes: why it is wrong.
        cost: what pinning it costs, in the unit of the costs.
        without: what the same set gives without it; None where that was not evaluated.
    """

    name: str
    op_type: str
    start: Precision
    precision: Precision
    demanded: bool
    local_sqnr_db: float | None
    causes: tuple[Cause, ...]
    cost: float
    without: Measurement | None


@dataclass(frozen=True)
class Check:
    """The answer, run once more, literally.

    Attributes:
        on: which samples, for people; `samples` is their number.
        baseline: the same samples with nothing pinned.
        reference_metric: the end-to-end metric of FP32 on them, None without one.
        took_part: these held-out samples were searched on too, after a cheaper set had failed on
            them.
    """

    on: str
    samples: int
    answer: Measurement
    baseline: Measurement
    reference_metric: float | None
    took_part: bool = False


@dataclass(frozen=True)
class CostSummary:
    """What the answer costs.

    Attributes:
        unit: of the costs.
        base, plan, all_pinned: of the whole network with nothing, the answer, everything pinned.
        all_pinned_to: the precision that everything is pinned to there: the highest allowed.
    """

    unit: str
    base: float
    plan: float
    all_pinned: float
    all_pinned_to: Precision

    @property
    def pinned_share(self) -> float:
        """The part of the way from nothing pinned to everything pinned, 0 to 1."""
        way = self.all_pinned - self.base
        return (self.plan - self.base) / way if way > 0 else 0.0


@dataclass(frozen=True)
class Taken:
    """A point of the list of error against cost that the user took in place of the answer.

    Attributes:
        number: its place in the list, from 1.
        answer: the search with its own answer.
    """

    number: int
    answer: SearchResult


@dataclass(frozen=True)
class BisectResult:
    """Everything `qdebug bisect` found.

    Attributes:
        precision: of layers that are not pinned.
        target: the condition; `bound` is the number in it, `figure` what it judges.
        samples: that were searched on.
        candidates: how many layers could be pinned.
        reference_metric: the end-to-end metric of FP32, None without one.
        search: the search itself; where a point was taken, that is its answer.
        by_plan: layers that the plan searched from keeps in higher precision by itself, in
            execution order. They are no part of what the search pins.
        found: a set that meets the target was found, or a point was taken.
        explanation: why not, or why the search stopped early; "" where all went well.
        pinned: the answer, in execution order.
        plan: the answer as a plan.
        checks: the answer once more: on the samples searched, and on held-out ones.
        fast: how candidates were evaluated, for people.
        engine: of the answer; None without an engine's backend.
        taken: the point that was taken; None for the search's own answer.
    """

    model_path: str
    model_sha256: str
    precision: Precision
    target: str
    bound: float
    figure: str
    samples: int
    strategy: str
    candidates: int
    reference_metric: float | None
    search: SearchResult
    found: bool
    explanation: str
    pinned: tuple[PinnedLayer, ...]
    cost: CostSummary
    plan: PrecisionPlan
    checks: tuple[Check, ...]
    fast: str
    notes: tuple[str, ...] = ()
    engine: EngineReport | None = None
    taken: Taken | None = None
    by_plan: tuple[tuple[str, Precision], ...] = ()

    @property
    def passed(self) -> bool:
        """The target is met, and was met again by every check."""
        achieved = self.search.achieved
        met = self.found and achieved is not None and achieved.passed
        built = self.engine is None or self.engine.passed
        return met and built and all(c.answer.passed for c in self.checks)
