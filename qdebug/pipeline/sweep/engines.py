"""The engine of one combination, built and executed, as a sweep keeps it from run to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from qdebug import __version__
from qdebug.engine_info.summary import gate_values, summarize
from qdebug.errors import BackendError, ModelError, QdebugError
from qdebug.measure.sweep import EngineFacts, Execution, Failure, Misbuilt, OutputErrors
from qdebug.model.samples import Samples
from qdebug.pipeline.engine.build import Engine, Target, engine_of
from qdebug.pipeline.engine.request import build_request
from qdebug.pipeline.sweep.errors import OutputJudge, errors_from_json
from qdebug.plan.pair import ModelPair
from qdebug.run.tensorrt.build.build import BuildJob, build_engine, engine_key
from qdebug.run.tensorrt.build.engine import BuiltEngine
from qdebug.run.tensorrt.execute.cuda import Cuda
from qdebug.run.tensorrt.execute.session import EngineSession
from qdebug.store.cache import load_result, save_result
from qdebug.types import ProgressCallback

_KIND = "sweep"


@dataclass(frozen=True)
class Found:
    """What is known of an engine, and the engine itself where it is at hand."""

    facts: EngineFacts
    built: BuiltEngine | None = None


def facts_of(
    target: Target,
    pair: ModelPair,
    samples: Samples,
    progress: ProgressCallback,
    *,
    not_run: str,
) -> Found | Failure:
    """Build and audit, or take what an earlier run found. A failure is not kept: the next run tries
    again.

    Args:
        target: fitted to the samples; without a cache nothing is kept, nor taken.
    """
    try:
        key = _key(target, pair, "engine", json.dumps(pair.precisions))
        kept = load_result(_KIND, key) if target.cache else None
        facts = kept and _from_json(kept)
        if facts:
            return Found(replace(facts, cached=True))
        engine = engine_of(target, pair, samples, progress, not_run=not_run)
    except QdebugError as error:
        return Failure(error.message, error.hint, tuple(getattr(error, "__notes__", ())))
    facts = _facts(engine)
    if target.cache:
        save_result(_KIND, key, asdict(facts))
    return Found(facts, engine.built)


def built_of(
    target: Target, pair: ModelPair, found: Found, progress: ProgressCallback
) -> BuiltEngine:
    """The engine of which `found` tells; built again where it is kept no longer.

    Raises:
        QdebugError: it cannot be built any more.
    """
    return found.built or build_engine(
        target.library,
        build_request(target.typing, pair).graph.proto,
        target.settings,
        cache=target.cache,
        progress=progress,
    )


def executed(
    target: Target,
    cuda: Cuda,
    pair: ModelPair,
    found: Found,
    judge: OutputJudge,
    progress: ProgressCallback,
) -> Execution:
    """Execute an engine that was found, over all samples, or take what an earlier run measured.

    Raises:
        QdebugError: the reference does not run, samples cannot be read, or the metric raised.
    """
    key = _key(target, pair, "execution", judge.key(pair), repr(target.device))
    keep = target.cache is not None and judge.keeps
    kept = load_result(_KIND, key) if keep else None
    execution = kept and _execution_from_json(kept)
    if execution:
        return execution
    try:
        built = built_of(target, pair, found, progress)
        maker = replace(target.maker(progress), cuda=cuda)
        with EngineSession(maker.load(built)) as session:
            errors = judge.of(session, pair)
            execution = Execution(errors, session.latency_ms(judge.first_feeds()))
    except (BackendError, ModelError) as error:
        return Execution(OutputErrors({}, None, None, error.message), None)
    if keep:
        save_result(_KIND, key, asdict(execution))
    return execution


def _key(target: Target, pair: ModelPair, *parts: str) -> str:
    asked = build_request(target.typing, pair).graph
    engine = engine_key(target.library, BuildJob(asked.proto, target.settings))
    text = "\n".join([__version__, engine, *parts])
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(engine: Engine) -> EngineFacts:
    report = engine.report
    found = report.audit.audit
    return EngineFacts(
        built_for=report.built_for,
        seconds=report.seconds,
        size_bytes=report.size_bytes,
        layers=report.layers,
        values=gate_values(summarize(engine.info), found),
        mismatches=tuple(Misbuilt(r.node, str(r.asked), r.built) for r in found.mismatches),
        unknown=tuple(r.node for r in found.unknown),
        warnings=(*engine.notes, *(w.text for w in report.warnings)),
        digest=hashlib.sha256(engine.built.engine).hexdigest(),
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


def _execution_from_json(kept: Mapping[str, Any]) -> Execution | None:
    errors = errors_from_json(kept.get("errors") or {})
    latency = kept.get("latency_ms")
    return Execution(errors, latency) if errors and isinstance(latency, float) else None
