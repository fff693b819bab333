"""Build the engine of a candidate, and audit it: requested vs. built precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qdebug.backends.engine import BuiltEngine, EngineRuntime, Shape
from qdebug.backends.host import as_runtime
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.registry import spec_of
from qdebug.config.engine import EngineSettings
from qdebug.engine_info.audit import audit_plan
from qdebug.engine_info.files.onnx_file import with_nodes
from qdebug.engine_info.layers import EngineInfo
from qdebug.errors import UsageError
from qdebug.execute.engine.request import build_request
from qdebug.formats.registry import FORMAT_OF
from qdebug.memo import cache_folder
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch, Samples
from qdebug.outputfiles import check_writable, make_folder, write_bytes, write_text
from qdebug.plan.pair import ModelPair
from qdebug.plan.plan import PrecisionPlan
from qdebug.results.engine import EngineReport
from qdebug.types import Precision, ProgressCallback, ignore_progress
from qdebug.wording import counted, option


def open_runtime(
    settings: EngineSettings,
    *,
    cached: bool,
    threads: int | None = None,
    sessions: SessionSettings = DEFAULT_SESSIONS,
    progress: ProgressCallback = ignore_progress,
) -> EngineRuntime | None:
    """The runtime that the settings name, ready to build; None for the simulation.

    Args:
        cached: engines may be taken from the cache folder.
        threads: how many one that executes on the CPU uses; None: as it does by itself.
        sessions: what holds for every session of ONNX Runtime.

    Raises:
        BackendError, UsageError: it is not installed or does not load, or a setting that it does
            not have.
    """
    spec = spec_of(settings.backend)
    if not spec.builds:
        return None
    if settings.timing_cache is not None:
        path = Path(settings.timing_cache)
        make_folder(str(path.parent), (), option("timing_cache"), force=True)
        check_writable(settings.timing_cache, option("timing_cache"))
    folder = cache_folder()
    opened = spec.open(
        asdict(settings),
        folder=folder,
        cached=cached,
        threads=threads,
        sessions=sessions,
        progress=progress,
    )
    return as_runtime(spec, opened)


@dataclass(frozen=True)
class Engine:
    """An engine of a candidate: as bytes, as layers, and audited.

    Attributes:
        info: None where the runtime does not tell what it built.
        notes: what of the plan the builder could not be told.
    """

    runtime: EngineRuntime
    built: BuiltEngine
    info: EngineInfo | None
    report: EngineReport
    notes: tuple[str, ...] = ()


def engine_of(runtime: EngineRuntime, pair: ModelPair, *, not_run: str | None = None) -> Engine:
    """Build the candidate of `pair`, and audit it.

    Args:
        runtime: fitted to the samples (`fitted`).
        not_run: why it will not be executed, "" if it will; None asks the runtime.

    Raises:
        QdebugError: the library cannot parse or build it.
    """
    spec = spec_of(runtime.name)
    spec.check_precisions(pair.precisions.values(), runtime.provider_name)
    _check_capabilities(pair.precisions.values(), runtime.target, spec.precisions)
    requested = build_request(runtime.typing, pair)
    built = runtime.build(requested.graph.proto)
    info = with_nodes(built.info, requested.graph) if built.info else None
    report = EngineReport(
        library=runtime.label,
        built_for=runtime.built_for,
        not_executed_because=runtime.not_run if not_run is None else not_run,
        build_s=built.seconds,
        cached=built.cached,
        size_bytes=built.size_bytes,
        layers=len(info.working) if info else 0,
        warnings=built.warnings,
        audit=audit_plan(pair.model, pair.layers, requested.precisions, info) if info else None,
        providers=built.providers,
    )
    return Engine(runtime, built, info, report, (*requested.notes, *_of_dynamic(report)))


def _of_dynamic(report: EngineReport) -> tuple[str, ...]:
    """That an engine is not what the file itself would be, where it quantizes dynamically."""
    layers = report.audit.layers if report.audit else ()
    count = sum(layer.as_equivalent for layer in layers)
    if not count:
        return ()
    return (
        f"The model quantizes dynamically, and the engine was built from Q/DQ equivalents of its "
        f"integer operators. ONNX Runtime computes {counted(count, 'layer')} of these in floating "
        "point from the same codes, and the file's own operators in INT8: errors are those of the "
        "file, the latency is not.",
    )


def check_requested(
    backend: str, plan: PrecisionPlan, provider: str | None = None, target: str = ""
) -> None:
    """Refuse, before anything is run, a plan that requests precisions which the backend does not
    have, or the GPUs that it builds for. Its fallback precision is not among them: whether a layer
    needs it shows in the pair.

    Args:
        provider: the execution provider, as the user named it.
        target: see EngineRuntime.

    Raises:
        UsageError: names the first of them.
    """
    spec, wanted = spec_of(backend), [plan.precision, *plan.layers.values()]
    if spec.builds:
        spec.check_precisions(wanted, provider)
        _check_capabilities(wanted, target, spec.precisions)


def _check_capabilities(
    wanted: Iterable[Precision], target: str, precisions: Sequence[str]
) -> None:
    """Refuse a precision that the GPUs of `target` do not have, of those a backend has.

    Raises:
        UsageError: names the first such precision, and where it runs.
    """
    named = [int(text.replace(".", "")) for text in target.split("+") if text]
    refused = [(p, c) for p in wanted for c in named if c < _LEAST_CAPABILITY.get(p, 0)]
    for precision, capability in refused[:1]:
        takes = [p for p in precisions if capability >= _LEAST_CAPABILITY.get(Precision(p), 0)]
        raise UsageError(
            f"GPUs of compute capability {_dotted(capability)} have no {precision.upper()}, and "
            f"layers are to run in {precision.upper()}",
            f"They take {', '.join(p.upper() for p in takes)}; {precision.upper()} is there from "
            f"{_dotted(_LEAST_CAPABILITY[precision])} on.",
            code="QD-USAGE-CAPABILITY-PRECISION",
        )


_LEAST_CAPABILITY = {
    **{p: min(FORMAT_OF[p].mac_cost) for p in (Precision.FP8, Precision.BF16)},
    Precision.W4: 80,
}
"""What some GPUs that TensorRT supports do not have. TensorRT for RTX 1.7.1 builds INT4 for 8.0 and
later, and none for 7.5."""


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def check_parsed(runtime: EngineRuntime, pair: ModelPair, samples: Samples) -> None:
    """Find out, before long work, whether the library takes the candidate of `pair`.

    Raises:
        QdebugError: it cannot parse it, or a plugin cannot be loaded.
    """
    graph = build_request(runtime.typing, pair).graph
    fitted(runtime, graph, samples).check(graph.proto)


def capture_note(settings: EngineSettings, not_run: str) -> tuple[str, ...]:
    """Says that `capture`, where it was given, had nothing to observe."""
    if settings.capture is None or not not_run:
        return ()
    return (
        f"{option('capture', settings.capture)} had no effect: the engine was not executed "
        f"({not_run}), so "
        "nothing inside it was observed.",
    )


def save_engine(engine: Engine, settings: EngineSettings, *, force: bool) -> None:
    """Write the engine and the log of its build, where that was asked for.

    Raises:
        StoreError: a file cannot be written.
    """
    if settings.save_engine:
        write_bytes(settings.save_engine, engine.built.engine, option("save_engine"), force=force)
    if settings.save_log:
        write_text(settings.save_log, engine.built.log, option("save_log"), force=force)


def fitted(
    runtime: EngineRuntime,
    graph: Graph,
    samples: Samples,
    batches: Sequence[Batch] | None = None,
) -> EngineRuntime:
    """`runtime` for the shapes of `batches` (None: all of `samples`), which are read only where an
    axis of an input is dynamic.

    Raises:
        UsageError: an input with dynamic axes and no batch.
    """
    return runtime.fitted(graph.inputs, shapes_of(graph, samples, batches))


def shapes_of(
    graph: Graph, samples: Samples, batches: Sequence[Batch] | None = None
) -> list[Mapping[str, Shape]]:
    """The shapes of the inputs, by name, of each execution (sequences differ in length); none where
    every axis of `graph` is fixed."""
    if all(isinstance(axis, int) for spec in graph.inputs for axis in spec.shape):
        return []
    found: list[Mapping[str, Shape]] = []
    for batch in samples.batches() if batches is None else batches:
        feeds = samples.feeds(batch.start, batch.count)
        found.append({name: array.shape for name, array in feeds.items()})
    return found
