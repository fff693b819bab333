"""The product that a sweep runs: what precision, and how it is built."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import cast

from qdebug.analyse.gate import refuse_missing_metric
from qdebug.backends.engine import EngineRuntime
from qdebug.backends.options import SessionSettings
from qdebug.backends.registry import spec_of
from qdebug.config.engine import EngineSettings, TypingName
from qdebug.config.specs import QuantizationSpec, spec_from
from qdebug.config.sweep import SweepSettings
from qdebug.errors import MetricError
from qdebug.execute.engine.build import open_runtime
from qdebug.execute.engine.request import STRONG
from qdebug.execute.model_pair import check_reference
from qdebug.formats.registry import CAST, RANGED, SCALED
from qdebug.plan.pair import ModelPair
from qdebug.results.conditions import Condition, parse_condition, parse_value_condition
from qdebug.results.sweep import ENGINE_VALUES, NEEDED_FOR, Combination, SweepRow, idle_axes
from qdebug.results.words import number
from qdebug.types import Precision, ProgressCallback
from qdebug.wording import option

_DEFAULT = "default"
_ENGINE_SETTINGS = frozenset(f.name for f in fields(EngineSettings)) - {"backend"}
_AXES = (
    *("compute_capability", "optimization_level", "tactic_sources", "typing"),
    *("tf32", "sparsity", "refit", "version_compatible"),
)
"""What is tried of a builder, as far as the backend has it."""
_SCOPES = ("output", "metric", "layer", "tensor")


@dataclass(frozen=True)
class Variant:
    """What is built: one precision or plan."""

    name: str
    spec: QuantizationSpec


@dataclass(frozen=True)
class BuilderPoint:
    """How it is built: one value of each of the builder's axes, as written, and what they mean."""

    values: Mapping[str, str]
    engine: EngineSettings
    runtime: EngineRuntime

    def combination(self, variant: Variant, pair: ModelPair) -> Combination:
        """The point of the whole product."""
        if pair.plan is None:
            return Combination("Q/DQ", "", **self.values)
        scaled = not SCALED.isdisjoint(pair.precisions.values())
        return Combination(variant.name, str(pair.plan.weights) if scaled else "", **self.values)


def variants_of(settings: SweepSettings) -> list[Variant]:
    """Precisions, then plans; with INT8 layers, in every granularity of weights that is given.

    Raises:
        UsageError: a reference that is not an ONNX model.
    """
    check_reference(settings.reference)
    precisions = settings.precision or (() if settings.plan else ("",))
    found = []
    for name in precisions:
        base, _, rest = name.partition("+")
        granular = settings.weights if base in ("", *SCALED) else ()
        for weights in granular or (None,):
            asked = _quantized(
                settings, precision=base or None, fallback_precision=rest or None, weights=weights
            )
            if base and base not in SCALED:  # it needs no ranges
                asked = replace(asked, calibration=None, calibrates_on=None, calib_samples=None)
            found.append(Variant(name or str(Precision.INT8), asked))
    for plan in dict.fromkeys(settings.plan):
        for weights in settings.weights or (None,):
            found.append(Variant(plan, _quantized(settings, plan=plan, weights=weights)))
    return found


def _quantized(settings: SweepSettings, **chosen: str | None) -> QuantizationSpec:
    given = {"precision": None, "fallback_precision": None, "weights": None, "plan": None}
    return spec_from(QuantizationSpec, settings, **(given | chosen))


def check_backend(settings: SweepSettings, conditions: Sequence[Condition]) -> None:
    """Find out, before anything is built, whether the backend can do what is asked of it.

    Raises:
        UsageError: it builds nothing, does not take a setting, or does not tell what a condition is
            about.
    """
    spec = spec_of(settings.backend)
    spec.require("builds", "sweep")
    spec.check_settings(
        f.name
        for f in fields(settings)
        if f.name in _ENGINE_SETTINGS and getattr(settings, f.name) != f.default
    )
    if settings.save_engines and "save_engine" not in spec.settings:
        spec.check_settings(["save_engines"])
    for condition in conditions:
        needed = NEEDED_FOR.get(condition.name, "audits") if not condition.scope else "builds"
        spec.require(needed, option("fail_on", condition.expression))


def builder_points(
    settings: SweepSettings, sessions: SessionSettings, progress: ProgressCallback
) -> list[BuilderPoint]:
    """The product of the builder's axes; the library supports every value.

    Raises:
        UsageError: the library has no such value.
        BackendError: the library is not installed or does not load.
    """
    spec = spec_of(settings.backend)
    axes = {
        axis: getattr(settings, axis) or ("",) if axis in spec.settings else ("",) for axis in _AXES
    }
    points = product(*axes.values())
    return [
        _point(settings, dict(zip(axes, values, strict=True)), sessions, progress)
        for values in points
    ]


def _point(
    settings: SweepSettings,
    values: Mapping[str, str],
    sessions: SessionSettings,
    progress: ProgressCallback,
) -> BuilderPoint:
    named = {"": None, _DEFAULT: None, "none": ()}
    capability, level, sources = (
        values[axis] for axis in ("compute_capability", "optimization_level", "tactic_sources")
    )
    engine = EngineSettings(
        backend=settings.backend,
        compute_capability=tuple(capability.split("+")) if capability else (),
        optimization_level=None if level in ("", _DEFAULT) else int(level),
        workspace=settings.workspace,
        tactic_sources=named[sources] if sources in named else tuple(sources.split("+")),
        timing_cache=settings.timing_cache,
        typing=cast("TypingName", values["typing"] or STRONG),
        tf32=values["tf32"] == "on",
        sparsity=values["sparsity"] == "on",
        refit=values["refit"] == "on",
        version_compatible=values["version_compatible"] == "on",
        plugin=settings.plugin,
        provider=settings.provider,
        provider_option=settings.provider_option,
    )
    runtime = open_runtime(engine, cached=settings.cache, sessions=sessions, progress=progress)
    assert runtime is not None  # by what builder_points checked
    return BuilderPoint({**values, "compute_capability": runtime.target}, engine, runtime)


def idle_note(rows: Sequence[SweepRow], library: str) -> tuple[str, ...]:
    """Says which axes multiplied the rows and changed nothing."""
    flags = [option(axis) for axis in idle_axes(rows)]
    if not flags:
        return ()
    named = " and ".join(x for x in (", ".join(flags[:-1]), flags[-1]) if x)
    return (
        f"{named} changed nothing: {library} built the same engines, byte for byte, for every "
        "value, and rows that differ in nothing else repeat each other.",
    )


def slower_note(rows: Sequence[SweepRow]) -> tuple[str, ...]:
    """Says that INT8 or FP8 is not worth it: that its fastest engine, of those built as planned, is
    not faster than the fastest one in 16 bits."""
    timed: dict[str, list[SweepRow]] = {}
    for row in rows:
        if row.latency_ms is not None and row.engine is not None and not row.engine.mismatches:
            timed.setdefault(row.combination.precision.partition("+")[0], []).append(row)

    def fastest(precisions: Collection[Precision]) -> SweepRow | None:
        some = (row for name, found in timed.items() if name in precisions for row in found)
        return min(some, key=lambda row: row.latency_ms or 0.0, default=None)

    low, high = fastest(RANGED), fastest(CAST)
    if low is None or high is None or (low.latency_ms or 0.0) < (high.latency_ms or 0.0):
        return ()
    name, other = (row.combination.precision.upper() for row in (low, high))
    return (
        f"{name} is not worth it here: its fastest engine (#{low.number}) takes "
        f"{number(low.latency_ms)} ms, that in {other} (#{high.number}) "
        f"{number(high.latency_ms)} ms.",
    )


def read_conditions(settings: SweepSettings) -> tuple[Condition, ...]:
    """The gate conditions: of outputs, of the metric, or of the engine.

    Raises:
        MetricError: something that is not known, or not seen in a sweep.
    """
    found = []
    for text in settings.fail_on:
        scope = re.match(r"\s*(\w*)", text)
        if scope is None or scope[1] not in _SCOPES:
            found.append(parse_value_condition(text, ENGINE_VALUES))
            continue
        if scope[1] in ("layer", "tensor"):
            raise MetricError(
                f"{option('fail_on')}: '{text}': a sweep measures outputs, not what is "
                "inside the model",
                'Write for example "output.cosine>=0.99", or use qdebug compare.',
                code="QD-METRIC-SCOPE",
            )
        found.append(parse_condition(text))
    if settings.metric is None and any(c.scope == "metric" for c in found):
        refuse_missing_metric("fail_on")
    return tuple(found)
