"""Build the engine of a candidate, and audit it: asked against built."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qdebug.config.engine import EngineSettings, TypingName
from qdebug.engine_info.build_log import read_build_log
from qdebug.engine_info.layers import EngineInfo
from qdebug.engine_info.onnx_file import with_nodes
from qdebug.engine_info.plan_audit import audit_plan
from qdebug.errors import UsageError
from qdebug.measure.engine import EngineReport
from qdebug.model.graph import Graph
from qdebug.model.samples import Samples
from qdebug.pipeline.engine.request import STRONG, build_request
from qdebug.plan.pair import ModelPair
from qdebug.report.files import check_writable, make_folder, write_bytes, write_text
from qdebug.run.tensorrt.build.build import build_engine, check_parse
from qdebug.run.tensorrt.build.builder_config import check_settings
from qdebug.run.tensorrt.build.cache import EngineCache, library_file
from qdebug.run.tensorrt.build.constrain import check_implicit
from qdebug.run.tensorrt.build.engine import BuiltEngine
from qdebug.run.tensorrt.build.settings import (
    BuildSettings,
    parse_compute_capability,
    profile_for,
)
from qdebug.run.tensorrt.execute.device import Device, find_device
from qdebug.run.tensorrt.factory import EngineFactory
from qdebug.run.tensorrt.library import Library, LibraryKind, load_library
from qdebug.run.tensorrt.probe import abilities
from qdebug.store.cache import cache_folder
from qdebug.types import ProgressCallback

DEFAULT_CAPABILITY = (8, 9)
"""Built for where there is no GPU and none is named: Ada, GeForce RTX 40 and L4."""


@dataclass(frozen=True)
class Target:
    """What engines are built with and for.

    Attributes:
        device: the GPU to run them on, or why they are not run.
        typing: the lowering that the builder gets.
    """

    library: Library
    settings: BuildSettings
    device: Device | str
    cache: EngineCache | None
    typing: TypingName = STRONG

    @property
    def name(self) -> str:
        """The library, for people, and how it is told the precisions."""
        implicit = "" if self.typing == STRONG else f", {self.typing}"
        return f"{self.library.name}{implicit}"

    @property
    def built_for(self) -> str:
        """For people."""
        if self.settings.compute_capabilities:
            named = ", ".join(f"{a}.{b}" for a, b in self.settings.compute_capabilities)
            return f"compute capability {named}"
        return self.device.name if isinstance(self.device, Device) else "this machine"

    def maker(self, progress: ProgressCallback) -> EngineFactory:
        """Builds and loads engines of it."""
        compiled = None
        if self.cache is not None:
            compiled = library_file(cache_folder() / "compiled", "compiled", self.library)
        return EngineFactory(
            self.library, self.settings, cache=self.cache, compiled=compiled, progress=progress
        )


def open_target(settings: EngineSettings, *, cached: bool) -> Target:
    """Load the library that the settings name, and find out what it can do here.

    Raises:
        BackendError, UsageError: it is not installed or does not load, or a setting that it does
            not have.
    """
    kind = LibraryKind(settings.backend)
    if settings.typing != STRONG and kind is LibraryKind.RTX:
        raise UsageError(
            f"--typing {settings.typing}: TensorRT for RTX knows only strongly typed networks",
            "TensorRT 10 has implicit quantization (--backend tensorrt); or drop --typing.",
        )
    library = load_library(kind)
    if settings.typing != STRONG:
        check_implicit(library)
    device = find_device()
    named = [c for text in settings.compute_capability for c in text.split(",")]
    capabilities = tuple(parse_compute_capability(c) for c in named)
    if library.rtx and isinstance(device, str) and not capabilities:
        capabilities = (DEFAULT_CAPABILITY,)
    build = BuildSettings(
        compute_capabilities=capabilities,
        workspace_bytes=settings.workspace,
        optimization_level=settings.optimization_level,
        tactic_sources=settings.tactic_sources,
        timing_cache=_timing_cache(settings.timing_cache, library),
        tf32=settings.tf32,
        sparsity=settings.sparsity,
        plugins=tuple(Path(p) for p in settings.plugin),
        refit=settings.refit,
        version_compatible=settings.version_compatible,
    )
    check_settings(library, build)
    cache = EngineCache(cache_folder() / "engines") if cached else None
    return Target(library, build, device, cache, settings.typing)


def _timing_cache(given: str | None, library: Library) -> Path:
    if given is None:
        return library_file(cache_folder() / "timing", "timing", library)
    if library.rtx:
        raise UsageError(
            f"--timing-cache: {library.name} measures no kernels while it builds",
            "Drop --timing-cache. What it compiles on a GPU is kept in the cache folder.",
        )
    path = Path(given)
    make_folder(str(path.parent), (), "--timing-cache", force=True)
    check_writable(given, "--timing-cache")
    return path


def why_not_run(target: Target) -> str:
    """Why engines of `target` are built but not executed here; "" where they are."""
    library, device = target.library, target.device
    if isinstance(device, str):
        return device
    if library.rtx and library.version >= (1, 7) and device.compute_capability == (9, 0):
        return abilities(library.kind, library.version, device)[0]
    named = target.settings.compute_capabilities
    if named and device.compute_capability not in named:
        return f"this machine's GPU is a {device.name}"
    return ""


@dataclass(frozen=True)
class Engine:
    """An engine of a candidate: as bytes, as layers, and audited. `notes` say what of the plan the
    builder could not be told."""

    target: Target
    built: BuiltEngine
    info: EngineInfo
    report: EngineReport
    notes: tuple[str, ...] = ()


def engine_of(
    target: Target,
    pair: ModelPair,
    samples: Samples,
    progress: ProgressCallback,
    *,
    not_run: str | None = None,
) -> Engine:
    """Build the candidate of `pair` for the shapes of `samples`, or for those that `target`
    is `fitted` to, and audit it.

    Args:
        not_run: why it will not be executed, "" if it will; None asks `why_not_run`.

    Raises:
        QdebugError: the library cannot parse or build it.
    """
    asked = build_request(target.typing, pair)
    graph = asked.graph
    if target.settings.profile is None:
        target = fitted(target, graph, samples)
    built = build_engine(
        target.library,
        graph.proto,
        target.settings,
        cache=target.cache,
        progress=progress,
    )
    info = with_nodes(read_build_log(built.log, "the build log"), graph)
    audit = audit_plan(pair.model, pair.layers, asked.precisions, info)
    return Engine(
        target,
        built,
        info,
        EngineReport(
            library=target.name,
            built_for=target.built_for,
            not_run=why_not_run(target) if not_run is None else not_run,
            seconds=built.seconds,
            cached=built.cached,
            size_bytes=built.size_bytes,
            layers=len(info.working),
            warnings=built.warnings,
            audit=audit,
        ),
        asked.notes,
    )


def check_parsed(target: Target, pair: ModelPair, samples: Samples) -> None:
    """Find out, before long work, whether the library takes the candidate of `pair`.

    Raises:
        QdebugError: it cannot parse it, or a plugin cannot be loaded.
    """
    graph = build_request(target.typing, pair).graph
    check_parse(target.library, graph.proto, fitted(target, graph, samples).settings)


def capture_note(settings: EngineSettings, not_run: str) -> tuple[str, ...]:
    """Says that --capture, where it was given, had nothing to observe."""
    if settings.capture is None or not not_run:
        return ()
    return (
        f"--capture {settings.capture} had no effect: the engine was not executed ({not_run}), so "
        "nothing inside it was observed.",
    )


def save_engine(engine: Engine, settings: EngineSettings) -> None:
    """Write what --save-engine and --save-log ask for.

    Raises:
        StoreError: a file cannot be written.
    """
    if settings.save_engine:
        write_bytes(settings.save_engine, engine.built.engine, "--save-engine")
    if settings.save_log:
        write_text(settings.save_log, engine.built.log, "--save-log")


def fitted(target: Target, graph: Graph, samples: Samples) -> Target:
    """`target` with the profile that `samples` ask for; reads them all where an axis is dynamic."""
    profile = profile_for(graph.inputs, _shapes(samples))
    return replace(target, settings=replace(target.settings, profile=profile))


def _shapes(samples: Samples) -> Iterator[dict[str, tuple[int, ...]]]:
    """The shapes of every execution: sequences differ in length."""
    for batch in samples.batches():
        feeds = samples.feeds(batch.start, batch.count)
        yield {name: array.shape for name, array in feeds.items()}
