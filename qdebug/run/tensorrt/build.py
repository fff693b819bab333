"""Build engines through Polygraphy's loaders.

The ONNX model is the lowered plan: Q/DQ pairs and Casts say the precision of everything, and the
network is strongly typed, on every library.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings as python_warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import onnx

from qdebug.errors import BackendError, UsageError
from qdebug.run.tensorrt.cache import EngineCache
from qdebug.run.tensorrt.device import Device, find_device
from qdebug.run.tensorrt.engine import BuiltEngine
from qdebug.run.tensorrt.library import Library
from qdebug.run.tensorrt.logger import LogMessage, log_text
from qdebug.run.tensorrt.messages import build_failure, parse_failure, warnings_of
from qdebug.run.tensorrt.network import observe
from qdebug.run.tensorrt.progress import BuildProgress, interruptible, make_monitor
from qdebug.run.tensorrt.settings import BuildSettings
from qdebug.types import ProgressCallback, ignore_progress


def build_engine(
    library: Library,
    proto: onnx.ModelProto,
    settings: BuildSettings,
    *,
    outputs: Sequence[str] = (),
    debug: Sequence[str] = (),
    cache: EngineCache | None = None,
    progress: ProgressCallback = ignore_progress,
) -> BuiltEngine:
    """Build the engine of a lowered model, or take it from `cache`.

    Args:
        library: what builds.
        proto: the model, not modified; its types are kept exactly.
        settings: see BuildSettings; `profile` must name every input with dynamic axes.
        outputs: tensors to make outputs in addition to those of the model.
        debug: tensors to mark as debug tensors.
        cache: where engines are kept; None builds anew and keeps nothing.
        progress: told the per cent that are done.

    Raises:
        UsageError: settings that the library does not have, or no GPU and no compute capability.
        ModelError: the model cannot be parsed; names the node.
        BackendError: the builder failed.
        KeyboardInterrupt: Ctrl-C, after the builder has stopped.
    """
    check_settings(library, settings)
    try:
        model = proto.SerializeToString(deterministic=True)
    except ValueError as error:  # protobuf's limit of 2 GiB
        raise BackendError(f"the model is too large to be handed to {library.name}") from error
    key = engine_key(library, model, settings, outputs, debug)
    kept = cache.load(key) if cache is not None else None
    if kept is not None:
        return kept
    reported = BuildProgress(progress)
    started = time.perf_counter()
    with _quiet(library) as messages, interruptible(reported):
        network = _parse(library, model, proto, settings, messages)
        skipped = observe(library, network[1], outputs, debug)
        engine = _build(library, network, proto, settings, reported, messages)
    built = BuiltEngine(
        engine=engine,
        log=log_text(messages),
        warnings=warnings_of(messages, proto),
        skipped=skipped,
        seconds=time.perf_counter() - started,
        key=key,
    )
    if cache is not None:
        cache.save(built)
    return built


def engine_key(
    library: Library,
    model: bytes,
    settings: BuildSettings,
    outputs: Sequence[str] = (),
    debug: Sequence[str] = (),
) -> str:
    """What decides the engine, as a SHA-256: model, settings, contents of plugins, library, and
    the GPU where it is built for the one that is present. The timing cache does not count."""
    facts = asdict(settings) | {
        "timing_cache": None,
        "plugins": [_digest(p.read_bytes()) for p in settings.plugins],
        "model": _digest(model),
        "library": [library.kind, *library.version],
        "device": None if settings.compute_capabilities else repr(find_device()),
        "outputs": sorted(set(outputs)),
        "debug": sorted(set(debug)),
    }
    return _digest(json.dumps(facts, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_settings(library: Library, settings: BuildSettings) -> None:
    """Refuse what the library cannot do, before anything is parsed.

    Raises:
        UsageError: an unknown or unsupported compute capability or tactic source, a plugin that
            is not there, or no GPU to build for.
    """
    known = library.compute_capabilities
    for wanted in settings.compute_capabilities:
        if not library.rtx:
            raise UsageError(
                f"{library.name} builds for the GPU that is present, not for a compute capability",
                "Drop --compute-capability, or use --backend tensorrt-rtx.",
            )
        if wanted not in known:
            raise UsageError(
                f"{library.name} does not build for compute capability {_cc(wanted)}",
                f"It builds for {', '.join(map(_cc, known))}.{_ELSEWHERE.get(wanted, '')}",
            )
    if not settings.compute_capabilities and not isinstance(find_device(), Device):
        hint = "Name the GPU to build for: --compute-capability 8.9."
        if not library.rtx:
            hint = f"Use --backend tensorrt-rtx. {hint}"
        raise UsageError(f"{library.name}: this machine has no GPU to build for", hint)
    for path in settings.plugins:
        if not Path(path).is_file():
            raise UsageError(f"--plugin {path}: no such file")
    sources = library.module.TacticSource.__members__
    for source in settings.tactic_sources or ():
        if source not in sources:
            raise UsageError(
                f"{library.name} has no tactic source '{source}'", f"It has {', '.join(sources)}."
            )


_ELSEWHERE = {
    (9, 0): (
        " On a machine with such a GPU (H100, H200), 1.6 and 1.5 build for it without "
        "--compute-capability, but no INT8 convolutions."
    )
}


def _cc(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


@contextmanager
def _quiet(library: Library) -> Iterator[list[LogMessage]]:
    """Nothing is printed, by Polygraphy or as a Python warning; what TensorRT says is collected."""
    from polygraphy.logger import G_LOGGER

    silent = G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1)
    with (
        library.lock,
        library.logs.collecting() as messages,
        silent,
        python_warnings.catch_warnings(),
    ):
        python_warnings.simplefilter("ignore")
        yield messages


def _parse(
    library: Library,
    model: bytes,
    proto: onnx.ModelProto,
    settings: BuildSettings,
    messages: list[LogMessage],
) -> tuple[Any, Any, Any]:
    """Builder, network and parser; the network reads the parser's memory."""
    from polygraphy.backend.trt import LoadPlugins, NetworkFromOnnxBytes

    try:
        loader = NetworkFromOnnxBytes(
            model,
            strongly_typed=_typed_flag(library),
            mark_unfused_tensors_as_debug_tensors=settings.unfused_debug_tensors,
        )
        network: tuple[Any, Any, Any] = LoadPlugins([str(p) for p in settings.plugins], loader)()
    except Exception as error:  # the edge at which Polygraphy's and pybind11's errors become ours
        raise parse_failure(library, messages, proto, error) from error
    return network


def _typed_flag(library: Library) -> bool:
    """Only TensorRT 10 has other networks than strongly typed ones."""
    return library.implicit


def _build(
    library: Library,
    network: tuple[Any, Any, Any],
    proto: onnx.ModelProto,
    settings: BuildSettings,
    progress: BuildProgress,
    messages: list[LogMessage],
) -> bytes:
    from polygraphy.backend.trt import EngineBytesFromNetwork

    cache = None if library.rtx else settings.timing_cache
    if cache is not None:
        cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        engine = EngineBytesFromNetwork(
            network,
            config=_config_loader(library, settings, progress),
            save_timing_cache=str(cache) if cache else None,
        )()
    except Exception as error:  # the same edge
        if progress.failure is not None:
            raise progress.failure from None
        names = [node.name for node in proto.graph.node if node.name]
        raise build_failure(library, messages, error, names) from error
    progress.finish()
    return bytes(engine)


def _config_loader(library: Library, settings: BuildSettings, progress: BuildProgress) -> Any:
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig, Profile

    trt = library.module
    profile = Profile()
    for name, shapes in (settings.profile or {}).items():
        profile.add(name, shapes.min, shapes.opt, shapes.max)
    common: dict[str, Any] = {
        "profiles": [profile],
        "sparse_weights": settings.sparsity,
        "refittable": settings.refit,
        "version_compatible": settings.version_compatible,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "builder_optimization_level": settings.optimization_level,
        "progress_monitor": make_monitor(trt, progress),
    }
    if settings.workspace_bytes is not None:
        common["memory_pool_limits"] = {trt.MemoryPoolType.WORKSPACE: settings.workspace_bytes}
    if settings.tactic_sources is not None:
        common["tactic_sources"] = [
            trt.TacticSource.__members__[s] for s in settings.tactic_sources
        ]
    if library.rtx:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        wanted = list(settings.compute_capabilities)
        config = CreateConfigRTX(use_gpu=not wanted, compute_capabilities=wanted or None, **common)
    else:
        cache = settings.timing_cache
        loaded = str(cache) if cache is not None and cache.exists() else None
        config = CreateConfig(load_timing_cache=loaded, **common)

    def set_tf32(builder: Any, network: Any, config: Any) -> None:
        change = config.set_flag if settings.tf32 else config.clear_flag
        change(trt.BuilderFlag.TF32)

    return PostprocessConfig(config, set_tf32)
