"""What a sweep found; its fields are the JSON of `sweep`, schema qdebug.sweep/1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from qdebug.engine_info.summary import GATE_NAMES
from qdebug.metrics.tensor import METRIC, OUTPUT_METRICS, Metrics
from qdebug.metrics.uncertainty import Interval
from qdebug.result import (
    FailedStage,
    Hidden,
    Inline,
    MaybeText,
    ModelRef,
    ReadData,
    Result,
    in_json,
)
from qdebug.results.calibrate import ReferenceMetric
from qdebug.results.conditions import Checked, Condition, check_condition

ENGINE_VALUES: tuple[str, ...] = (
    *("build_s", "size_bytes", "latency_ms"),
    # Times of layers are not known here.
    *(n for n in GATE_NAMES if not n.endswith(("_time_share", "_ms"))),
)
"""What a condition may ask of an engine, besides its outputs and the metric."""

NEEDED_FOR = {"build_s": "builds", "size_bytes": "builds", "latency_ms": "builds"}
"""What a backend must be able to do to tell one of them (run.registry.CAPABILITIES); for all others
it must audit."""


@dataclass(frozen=True)
class Combination:
    """One point of a sweep, every value as the user writes it.

    Attributes:
        precision: "int8+fp16" and so on, a plan's file, or "Q/DQ" of a model that carries them.
        weights: "" where no layer runs in INT8, or the model carries Q/DQ.
        compute_capability: "" for the GPU that is present.
        optimization_level, tactic_sources: "default" is the library's choice.
        typing: how the builder is told the precisions.
        tf32, sparsity, refit, version_compatible: "on" or "off".

    From `optimization_level` on, "" is what the backend does not have.
    """

    precision: str
    weights: str
    compute_capability: str
    optimization_level: str
    tactic_sources: str
    typing: str
    tf32: str
    sparsity: str
    refit: str
    version_compatible: str

    @property
    def values(self) -> dict[str, str]:
        """By axis, in order."""
        return asdict(self)


@dataclass(frozen=True)
class OutputErrors:
    """How far outputs are from FP32, over all samples.

    Attributes:
        outputs: of every float output.
        metric: the end-to-end metric, None without one.
        reference_metric: that of FP32.
        failure: why it did not run; then the rest is empty.
        interval: of the metric, 95 %; null where nothing says it. reference_interval: that of FP32.
    """

    outputs: Mapping[str, Metrics]
    metric: float | None
    reference_metric: Hidden[float | None]
    failure: MaybeText = ""
    interval: Interval | None = None
    reference_interval: Hidden[Interval | None] = None

    @property
    @in_json
    def sqnr_db(self) -> float | None:
        """Of the worst output; NaN where one is broken, None where there is none."""
        return METRIC["sqnr_db"].worst(self.outputs)

    @property
    @in_json
    def cosine(self) -> float | None:
        """As `sqnr_db`."""
        return METRIC["cosine"].worst(self.outputs)


@dataclass(frozen=True)
class Misbuilt:
    """A layer that was built in another precision than planned."""

    layer: str
    requested: str
    built: str


@dataclass(frozen=True)
class EngineFacts:
    """An engine as a sweep keeps it.

    Attributes:
        built_for: a GPU's name, or compute capabilities.
        build_s: wall time of the build; `cached` engines were built earlier.
        layers: how many it has.
        values: by name, of `inspect`'s GATE_NAMES; None for what is not known.
        mismatches: layers that were not built as planned.
        unknown: layers of which nothing is known.
        warnings: the builder's, each once.
        sha256: of its bytes, in hexadecimal.
    """

    built_for: str
    build_s: float
    size_bytes: int
    layers: int
    values: Mapping[str, int | float | None]
    mismatches: tuple[Misbuilt, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    sha256: str
    cached: bool = False


@dataclass(frozen=True)
class Failure:
    """Why there is no engine.

    Attributes:
        details: what the library said at length.
    """

    message: str
    hint: str = ""
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineRun:
    """An engine that was executed on the GPU.

    Attributes:
        errors: of its own outputs.
        latency_ms: median GPU time of one execution, copies not counted; None where it failed.
    """

    errors: Inline[OutputErrors]
    latency_ms: float | None


@dataclass(frozen=True)
class SweepRow:
    """One combination.

    Attributes:
        number: its place in the table, from 1.
        simulation: its outputs on ONNX Runtime.
        engine: None where it could not be built; `failure` says why.
        execution: None where the engine was not executed; `not_executed_because` says why.
        conditions: of the gate.
    """

    number: int
    combination: Inline[Combination]
    simulation: OutputErrors
    not_executed_because: MaybeText
    engine: EngineFacts | None = None
    failure: Failure | None = None
    execution: EngineRun | None = None
    conditions: tuple[Checked, ...] = ()

    @property
    def errors(self) -> OutputErrors:
        """The engine's own where it was executed, else the simulation's."""
        return self.execution.errors if self.execution else self.simulation

    @property
    @in_json
    def executed(self) -> bool:
        """Whether the engine was executed and timed."""
        return self.latency_ms is not None

    @property
    @in_json
    def latency_ms(self) -> float | None:
        """Where it was measured."""
        return self.execution.latency_ms if self.execution else None

    @property
    @in_json
    def passed(self) -> bool:
        """It was built, as planned, and every condition holds."""
        built = self.engine is not None and not self.engine.mismatches
        return built and all(c.passed for c in self.conditions)

    def judged(self, conditions: Sequence[Condition]) -> SweepRow:
        """With every condition checked."""
        return replace(self, conditions=tuple(self._check(c) for c in conditions))

    def _check(self, condition: Condition) -> Checked:
        if condition.scope == "metric":
            return check_condition(condition, [self.errors.metric])
        if condition.scope == "output":
            metrics = self.errors.outputs.values()
            return check_condition(condition, [getattr(m, condition.name) for m in metrics])
        return check_condition(condition, [self.engine_value(condition.name)])

    def engine_value(self, name: str) -> float | None:
        """One of ENGINE_VALUES; None where it is not known."""
        if self.engine is None:
            return None
        own = {
            "build_s": self.engine.build_s,
            "size_bytes": self.engine.size_bytes,
            "latency_ms": self.latency_ms,
        }
        return own[name] if name in own else self.engine.values.get(name)


@dataclass(frozen=True)
class SweepVerdict:
    """Whether a combination meets the gate; null without one."""

    passed: bool | None


@dataclass(frozen=True, repr=False, kw_only=True)
class SweepResult(Result):
    """Everything `qdebug sweep` measured.

    Attributes:
        library: such as "TensorRT for RTX 1.7.1.116".
        device: the GPU that executes, or "".
        metric: the end-to-end metric, null without one.
        combinations: one row each, in the order of the axes.
        failed: stages that ended in an error after the rest, such as writing a file or the page.
    """

    SCHEMA: ClassVar[str] = "qdebug.sweep/1"
    ROWS: ClassVar[str] = "combinations"

    model: ModelRef
    backend: str
    library: str
    device: MaybeText
    samples: int
    metric: ReferenceMetric | None
    combinations: tuple[SweepRow, ...]
    notes: tuple[str, ...] = ()
    data: tuple[ReadData, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[FailedStage, ...] = ()

    @property
    @in_json
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The values of each axis, in the order tried."""
        values = [row.combination.values for row in self.combinations]
        return {axis: tuple(dict.fromkeys(v[axis] for v in values)) for axis in values[0]}

    @property
    @in_json
    def verdict(self) -> SweepVerdict:
        """Whether a combination meets the gate."""
        return SweepVerdict(self.passed if self.gated else None)

    def rows(self) -> list[dict[str, Any]]:
        """One row per combination, all figures of engines in columns; None where there is none."""
        return [
            {
                "number": row.number,
                **row.combination.values,
                **{name: row.engine_value(name) for name in ENGINE_VALUES},
                "errors_of": "engine" if row.execution else "simulation",
                **{m.name: m.worst(row.errors.outputs) for m in OUTPUT_METRICS},
                "metric": row.errors.metric,
                "passed": row.passed,
                "failure": row.failure.message if row.failure else "",
            }
            for row in self.combinations
        ]

    def headline(self) -> str:
        """The model, how many combinations were built, and the best."""
        best = "" if self.best is None else f", best #{self.best}"
        return (
            f"{self.model.name} on {self.library}: {self.built} of {len(self.combinations)} "
            f"combinations built{best}"
        )

    @property
    def gated(self) -> bool:
        """Whether there was any condition."""
        return any(row.conditions for row in self.combinations)

    @property
    def built(self) -> int:
        """How many engines there are."""
        return sum(row.engine is not None for row in self.combinations)

    @property
    def kept(self) -> int:
        """How many of them were built earlier."""
        return sum(row.engine is not None and row.engine.cached for row in self.combinations)

    @property
    def passed(self) -> bool:
        """A combination meets the gate, if there is one."""
        return not self.gated or any(row.passed for row in self.combinations)

    @property
    @in_json
    def best(self) -> int | None:
        """The number of the fastest combination that meets the gate and is as planned; None where
        none does or none was timed: nothing else orders them all."""
        timed = [
            (row.latency_ms, row.number)
            for row in self.combinations
            if row.passed and row.latency_ms is not None
        ]
        return min(timed)[1] if timed else None


def idle_axes(rows: Sequence[SweepRow]) -> list[str]:
    """Axes of the builder that changed no engine: where all else is equal, all were the same byte
    for byte. An axis that has no two engines to compare is not among them."""
    built = [(r.combination.values, r.engine.sha256) for r in rows if r.engine is not None]
    idle = []
    for axis in rows[0].combination.values if rows else ():
        if axis in ("precision", "weights"):
            continue
        alike: dict[tuple[str, ...], dict[str, str]] = {}
        for values, digest in built:
            others = tuple(value for name, value in values.items() if name != axis)
            alike.setdefault(others, {})[values[axis]] = digest
        several = [set(found.values()) for found in alike.values() if len(found) > 1]
        if several and all(len(digests) == 1 for digests in several):
            idle.append(axis)
    return idle
