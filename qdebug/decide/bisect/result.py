"""What a search for a precision plan found; its fields are the JSON of `bisect`, schema
qdebug.bisect/1."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from qdebug.decide.search.find import Evaluation, SearchResult
from qdebug.decide.search.pareto import Point
from qdebug.decide.search.problem import Measurement
from qdebug.metrics.uncertainty import Interval
from qdebug.plan.plan import PrecisionPlan
from qdebug.result import FailedStage, Hidden, Inline, Json, ModelRef, ReadData, Result, in_json
from qdebug.results.compare import Cause
from qdebug.results.conditions import Condition
from qdebug.results.engine import EngineReport
from qdebug.results.framework import FrameworkResult
from qdebug.types import Fp16Kernels, Precision
from qdebug.wording import counted

HELD_OUT = "held-out samples"
ON_ENGINE = "searched samples, on the engine"


@dataclass(frozen=True)
class PinnedLayer:
    """A layer that is kept in higher precision.

    Attributes:
        start: the precision it would run in.
        precision: what it is pinned to.
        user_pinned: the user asked for it; then nothing was searched for it.
        local_sqnr_db: its own error at `start`; None where it was not measured.
        cost: what pinning it costs, in the unit of the costs.
        if_unpinned: what the same set gives without it; None where that was not evaluated.
        causes: why it is wrong.
    """

    name: str
    op_type: str
    start: Annotated[Precision, Json(key="from")]
    precision: Annotated[Precision, Json(key="to")]
    user_pinned: bool
    local_sqnr_db: float | None
    cost: float
    if_unpinned: Measurement | None
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Check:
    """The answer, run once more in the simulation or on the engine.

    Attributes:
        on: which samples, for people; `samples` is their number.
        baseline: the same samples with nothing pinned.
        reference_metric: the end-to-end metric of FP32 on them, None without one.
        reference_interval: of that, 95 %; null where nothing says it.
        used_in_search: the search went on with this check, after a cheaper set had failed it.
        bound: the target's number on these samples: that of a largest drop depends on FP32's
            metric there.
    """

    on: str
    samples: int
    answer: Inline[Measurement]
    baseline: Measurement
    reference_metric: float | None
    used_in_search: bool = False
    bound: float | None = None
    reference_interval: Interval | None = None


@dataclass(frozen=True)
class CostSummary:
    """What the answer costs.

    Attributes:
        unit: of the costs.
        base, plan, all_pinned: of the whole network with nothing, the answer, everything pinned.
        all_pinned_to: the precision that everything is pinned to there: the highest allowed.
        alternative: of the network with every layer raised just as far as the target takes, with
            which it holds: what may be used instead. Null where that was not seen to hold.
        alternative_to: the precision that all are raised to there.
    """

    unit: str
    base: float
    plan: float
    all_pinned: float
    all_pinned_to: Precision
    alternative: float | None = None
    alternative_to: Precision | None = None

    @property
    @in_json
    def pinned_share(self) -> float:
        """The part of the way from nothing pinned to everything pinned, 0 to 1."""
        return self.way_share(self.plan - self.base)

    @property
    @in_json
    def saved_share(self) -> float | None:
        """What the answer saves, as a part of what `alternative` costs; null without that."""
        return 1 - self.plan / self.alternative if self.alternative else None

    @property
    def left_share(self) -> float:
        """The part of what the lower precision saves that the answer leaves: next to every layer
        raised as far as the target takes, where that is known, else as far as may be."""
        whole = self.alternative or self.all_pinned
        return (whole - self.plan) / (whole - self.base) if whole > self.base else 0.0

    def way_share(self, cost: float) -> float:
        """`cost` as a part of what everything pinned costs more than nothing pinned."""
        way = self.all_pinned - self.base
        return cost / way if way > 0 else 0.0


@dataclass(frozen=True)
class SelectedPoint:
    """A point of the list of error against cost that the user chose instead of the answer.

    Attributes:
        point: its place in the list, from 1.
        search: the search with its own answer.
    """

    point: int
    search: Hidden[SearchResult]

    @property
    @in_json
    def points(self) -> int:
        """How many points the list has."""
        return len(self.search.pareto)

    @property
    @in_json
    def answer(self) -> Point | None:
        """The search's own answer; None where it found none."""
        found = self.search
        if found.achieved is None:
            return None
        return Point(found.pins, 0, found.cost, found.achieved.noise or math.nan, found.achieved)


@dataclass(frozen=True, repr=False, kw_only=True)
class BisectResult(Result):
    """Everything `qdebug bisect` found.

    Attributes:
        precision: of layers that are not pinned.
        fp16_kernels: how the simulation computed the layers in FP16; null where there are none.
        samples: that were searched on.
        held_out_samples: that the answer was to be checked on.
        target: the condition, on the samples searched; `condition` is the same, parsed.
        target_text: the same for people.
        metric: the end-to-end metric's name; null without one.
        reference_metric: the end-to-end metric of FP32, None without one.
        reference_interval: of that on these samples, 95 %; null where nothing says it.
        metric_is_share: the metric is a share of the samples, so that a difference is a number of
            samples.
        search: the search itself; where a point was selected, that is its answer.
        layers: the answer, in execution order.
        pinned_by_plan: layers that the plan searched from keeps in higher precision by itself, in
            execution order. They are no part of what the search pins.
        candidates: how many layers could be pinned.
        found: a set that meets the target was found, or a point was selected.
        explanation: why not, or why the search stopped early; "" where all went well.
        selected_point: null for the search's own answer.
        checks: the answer once more: on the samples searched, and on held-out ones.
        engine: of the answer; null without an engine's backend.
        plan: the answer as a plan.
        framework: the training framework against the ONNX model in FP32, which agree; null where
            its outputs are not given. Where they do not agree, nothing is searched.
        suspect: the note that FP32 itself guesses, which is to be read first; "" where it does not.
        failed: stages that ended in an error after the rest, such as writing a file or the page.
    """

    SCHEMA: ClassVar[str] = "qdebug.bisect/1"
    ROWS: ClassVar[str] = "layers"

    model: ModelRef
    precision: Precision
    fp16_kernels: Fp16Kernels | None = None
    samples: int
    held_out_samples: int = 0
    target: str
    target_text: str = ""
    condition: Hidden[Condition]
    metric: Annotated[str, Json(empty_is_null=True)] = ""
    reference_metric: float | None
    reference_interval: Interval | None = None
    metric_is_share: Hidden[bool] = False
    search: Hidden[SearchResult]
    layers: tuple[PinnedLayer, ...]
    pinned_by_plan: Mapping[str, Precision]
    candidates: int
    found: Hidden[bool]
    explanation: str
    cost: CostSummary
    selected_point: SelectedPoint | None = None
    checks: tuple[Check, ...]
    engine: EngineReport | None = None
    plan: Hidden[PrecisionPlan]
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()
    framework: FrameworkResult | None = None
    suspect: Hidden[str] = ""
    failed: tuple[FailedStage, ...] = ()

    @property
    def figure(self) -> str:
        """What the target is about, such as "output.cosine" or the metric's name."""
        return self.metric if self.condition.scope == "metric" else self.condition.figure

    def plan_yaml(self) -> str:
        """The plan as YAML, schema qdebug.plan/1, with the evidence as comments."""
        return self.VIEWS.plan_text(self)

    def save_plan(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write `plan_yaml`.

        Raises:
            StoreError: the file exists and `force` is False, or cannot be written.
        """
        self._save(path, self.plan_yaml(), force)

    @property
    @in_json
    def passed(self) -> bool:
        """The target is met, was met again in every check, and the engine is as planned."""
        achieved = self.search.achieved
        met = self.found and achieved is not None and achieved.passed
        built = self.engine is None or self.engine.passed
        return met and built and all(c.answer.passed for c in self.checks)

    @property
    @in_json
    def achieved(self) -> float | None:
        """The target's figure with the answer; null where nothing passed."""
        return _value(self.search.achieved)

    @property
    @in_json
    def baseline(self) -> float | None:
        """The target's figure with nothing pinned; null where that was not evaluated."""
        return _value(self.search.baseline)

    @property
    @in_json
    def ceiling(self) -> float | None:
        """The target's figure with everything pinned; null where that was not evaluated."""
        return _value(self.search.ceiling)

    @property
    @in_json
    def pinned(self) -> tuple[str, ...]:
        """The pinned layers, by name."""
        return tuple(layer.name for layer in self.layers)

    @property
    @in_json
    def evaluations(self) -> int:
        """How many candidates were evaluated."""
        return len(self.search.history)

    @property
    @in_json
    def minimal(self) -> bool:
        """Each pinned layer was shown to be needed."""
        return self.search.minimal

    @property
    @in_json
    def pareto(self) -> tuple[Point, ...]:
        """The evaluated candidates that no other beats in cost and noise, the cheapest first."""
        return self.search.pareto

    @property
    @in_json
    def history(self) -> Sequence[Evaluation]:
        """Every evaluation, in order."""
        return self.search.history

    @property
    @in_json
    def verified_on(self) -> Check | None:
        """The check on held-out samples."""
        return next((c for c in self.checks if c.on == HELD_OUT), None)

    @property
    def user_pinned(self) -> int:
        """How many of the pinned layers the user asked for."""
        return sum(layer.user_pinned for layer in self.layers)

    @property
    def pins_everything(self) -> bool:
        """Every layer that could be pinned is."""
        return 0 < self.candidates <= len(self.layers) - self.user_pinned

    @property
    def raised_to(self) -> str:
        """What the pinned layers run in, for people."""
        return " and ".join(sorted({layer.precision.upper() for layer in self.layers}))

    def headline(self) -> str:
        """The model, the target, and what it takes to meet it."""
        if not self.found:
            return f"{self.model.name}: no layers found to pin so that {self.target_text} holds"
        achieved = self.achieved
        value = "no value" if achieved is None else f"{achieved:.6g}"
        pinned = f"{counted(self.layers, 'layer')} pinned"
        return (
            f"{self.model.name}: {'PASSED' if self.passed else 'FAILED'} ({value}; "
            f"{self.target_text}) with {pinned}, {100 * self.cost.pinned_share:.2g}% of the cost "
            "of pinning all"
        )


def _value(measured: Measurement | None) -> float | None:
    return measured.value if measured else None
