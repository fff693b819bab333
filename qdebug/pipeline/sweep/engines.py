"""The engine of one combination, built and executed, as a sweep keeps it from run to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from qdebug import __version__
from qdebug.engine_info.audit import Audit
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.measure.sweep import EngineFacts, EngineRun, Failure, Misbuilt, OutputErrors
from qdebug.pipeline.engine.build import Engine, engine_of
from qdebug.pipeline.engine.request import build_request
from qdebug.pipeline.sweep.errors import OutputJudge, errors_from_json
from qdebug.plan.pair import ModelPair
from qdebug.run.engine import BuiltEngine, EngineRuntime
from qdebug.store.cache import load_result, save_result

_KIND = "sweep"


@dataclass(frozen=True)
class Found:
    """What is known of an engine, and the engine itself where it is at hand."""

    facts: EngineFacts
    built: BuiltEngine | None = None


def facts_of(runtime: EngineRuntime, pair: ModelPair, *, not_run: str) -> Found | Failure:
    """Build and audit, or take what an earlier run found. A failure is not kept: the next run tries
    again.

    Args:
        runtime: fitted to the samples.
    """
    try:
        key = _key(runtime, pair, "engine", json.dumps(pair.precisions))
        kept = load_result(_KIND, key) if runtime.keeps else None
        facts = kept and _from_json(kept)
        if facts:
            return Found(replace(facts, cached=True))
        engine = engine_of(runtime, pair, not_run=not_run)
    except QdebugError as error:
        return Failure(error.message, error.hint, tuple(getattr(error, "__notes__", ())))
    facts = _facts(engine)
    if runtime.keeps:
        save_result(_KIND, key, asdict(facts))
    return Found(facts, engine.built)


def built_of(runtime: EngineRuntime, pair: ModelPair, found: Found) -> BuiltEngine:
    """The engine of which `found` tells; built again where it is kept no longer.

    Raises:
        QdebugError: it cannot be built any more.
    """
    return found.built or runtime.build(build_request(runtime.typing, pair).graph.proto)


def executed(
    runtime: EngineRuntime, pair: ModelPair, found: Found, judge: OutputJudge
) -> EngineRun:
    """Execute an engine that was found, over all samples, or take what an earlier run measured.

    Raises:
        QdebugError: the reference does not run, samples cannot be read, or the metric raised.
    """
    key = _key(runtime, pair, "execution", judge.key(pair), runtime.device_name)
    keep = runtime.keeps and judge.keeps
    kept = load_result(_KIND, key) if keep else None
    execution = kept and _execution_from_json(kept)
    if execution:
        return execution
    try:
        built = built_of(runtime, pair, found)
        asked = build_request(runtime.typing, pair).graph
        with closing(runtime.clean(asked.proto, built)) as session:
            errors = judge.of(session, pair)
            execution = EngineRun(errors, session.latency_ms(judge.first_feeds()))
    except (BackendError, ModelError) as error:
        return EngineRun(OutputErrors({}, None, None, error.message), None)
    if keep:
        save_result(_KIND, key, asdict(execution))
    return execution


def _key(runtime: EngineRuntime, pair: ModelPair, *parts: str) -> str:
    engine = runtime.key(build_request(runtime.typing, pair).graph.proto)
    text = "\n".join([__version__, engine, *parts])
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(engine: Engine) -> EngineFacts:
    report = engine.report
    found = report.audit or Audit(())
    return EngineFacts(
        built_for=report.built_for,
        build_s=report.build_s,
        size_bytes=report.size_bytes,
        layers=report.layers,
        values=gate_values(summarize(engine.info), found) if engine.info else {},
        mismatches=tuple(Misbuilt(r.name, str(r.requested), r.built) for r in found.mismatched),
        unknown=found.unknown,
        warnings=(*engine.notes, *(w.text for w in report.warnings)),
        sha256=hashlib.sha256(engine.built.engine).hexdigest(),
        cached=report.cached,
    )


def _from_json(kept: Mapping[str, Any]) -> EngineFacts | None:
    """What was kept, None where it is not what this version keeps."""
    try:
        return EngineFacts(
            **{
                **kept,
                "mismatches": tuple(Misbuilt(**m) for m in kept["mismatches"]),
                "unknown": tuple(kept["unknown"]),
                "warnings": tuple(kept["warnings"]),
            }
        )
    except (KeyError, TypeError):
        return None


def _execution_from_json(kept: Mapping[str, Any]) -> EngineRun | None:
    errors = errors_from_json(kept.get("errors") or {})
    latency = kept.get("latency_ms")
    return EngineRun(errors, latency) if errors and isinstance(latency, float) else None
