"""The engine of one combination, as a sweep keeps it from one run to the next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from qdebug import __version__
from qdebug.errors import QdebugError
from qdebug.measure.sweep import EngineFacts, Failure, Misbuilt
from qdebug.model.samples import Samples
from qdebug.pipeline.engine import Engine, Target, engine_of
from qdebug.pipeline.subject import Subject
from qdebug.run.tensorrt.build import BuildJob, engine_key
from qdebug.run.tensorrt.inspect.summary import gate_values, summarize
from qdebug.store.kept import load_kept, save_kept
from qdebug.types import ProgressCallback

_KIND = "sweep"


def facts_of(
    target: Target,
    subject: Subject,
    samples: Samples,
    progress: ProgressCallback,
    *,
    not_run: str,
) -> EngineFacts | Failure:
    """Build and audit, or take what an earlier run found. A failure is not kept: the next run tries
    again.

    Args:
        target: fitted to the samples; without a cache nothing is kept, nor taken.
    """
    try:
        key = _key(target, subject)
        kept = load_kept(_KIND, key) if target.cache else None
        facts = kept and _from_json(kept)
        if facts:
            return replace(facts, cached=True)
        engine = engine_of(target, subject, samples, progress, not_run=not_run)
    except QdebugError as error:
        return Failure(error.message, error.hint, tuple(getattr(error, "__notes__", ())))
    facts = _facts(engine)
    if target.cache:
        save_kept(_KIND, key, asdict(facts))
    return facts


def _key(target: Target, subject: Subject) -> str:
    parts = [
        __version__,
        "engine",
        engine_key(target.library, BuildJob(subject.candidate.proto, target.settings)),
        json.dumps(subject.precisions),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


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
        warnings=tuple(w.text for w in report.warnings),
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
