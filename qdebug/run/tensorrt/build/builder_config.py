"""BuildSettings as the builder's configuration, through Polygraphy."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from typing import Any

import onnx

from qdebug.errors import UsageError
from qdebug.run.tensorrt.build.settings import BuildSettings, ShapeRange
from qdebug.run.tensorrt.execute.device import Device, find_device
from qdebug.run.tensorrt.library import Library


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
        if not path.is_file():
            what = "a directory" if path.is_dir() else "no such file"
            raise UsageError(f"--plugin {path}: {what}", "Give the shared object with the plugin.")
    sources = library.module.TacticSource.__members__
    for source in settings.tactic_sources or ():
        if source not in sources:
            raise UsageError(
                f"{library.name} has no tactic source '{source}'", f"It has {', '.join(sources)}."
            )


def check_profile(proto: onnx.ModelProto, profile: Mapping[str, ShapeRange]) -> None:
    """Refuse a profile that does not fit the inputs of a model.

    Raises:
        UsageError: an input with dynamic axes has no entry, an entry is no input or has another
            number of axes.
    """
    constants = {i.name for i in proto.graph.initializer}
    inputs = {i.name: i.type.tensor_type for i in proto.graph.input if i.name not in constants}
    for name, shapes in profile.items():
        if name not in inputs:
            raise UsageError(
                f"the profile has shapes for '{name}', which is no input of the model",
                f"Its inputs are {', '.join(inputs)}.",
            )
        rank = len(inputs[name].shape.dim)
        if any(len(shape) != rank for shape in (shapes.min, shapes.opt, shapes.max)):
            raise UsageError(f"the profile's shapes of input '{name}' do not have {rank} axes")
    for name, kind in inputs.items():
        if name not in profile and any(not d.HasField("dim_value") for d in kind.shape.dim):
            raise UsageError(
                f"input '{name}' has dynamic axes, and the profile has no shapes for it",
                "Give samples (--inputs): the engine is built for their shapes.",
            )


_ELSEWHERE = {
    (9, 0): (
        " On a machine with such a GPU (H100, H200), 1.6 and 1.5 build for it without "
        "--compute-capability, but no INT8 convolutions."
    )
}


def _cc(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def config_loader(
    library: Library, settings: BuildSettings, monitor: Any, finish: Callable[[Any], None]
) -> Any:
    """Polygraphy's loader of a `trt.IBuilderConfig`.

    Args:
        library: what builds.
        settings: checked by `check_settings`.
        monitor: a `trt.IProgressMonitor`.
        finish: told the configuration when all settings are in it.
    """
    from polygraphy.backend.trt import CreateConfig, PostprocessConfig, Profile

    trt = library.module
    profile = Profile()
    for name, shapes in (settings.profile or {}).items():
        # Polygraphy takes the name as a wildcard pattern.
        profile.add(glob.escape(name), shapes.min, shapes.opt, shapes.max)
    common: dict[str, Any] = {
        "profiles": [profile],
        "sparse_weights": settings.sparsity,
        "refittable": settings.refit,
        "version_compatible": settings.version_compatible,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "builder_optimization_level": settings.optimization_level,
        "progress_monitor": monitor,
    }
    if settings.workspace_bytes is not None:
        common["memory_pool_limits"] = {trt.MemoryPoolType.WORKSPACE: settings.workspace_bytes}
    if settings.tactic_sources is not None:
        sources = trt.TacticSource.__members__
        common["tactic_sources"] = [sources[name] for name in settings.tactic_sources]
    if library.rtx:
        from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

        wanted = list(settings.compute_capabilities)
        config = CreateConfigRTX(use_gpu=not wanted, compute_capabilities=wanted or None, **common)
    else:
        cache = settings.timing_cache
        loaded = str(cache) if cache is not None and cache.exists() else None
        config = CreateConfig(load_timing_cache=loaded, **common)

    def complete(builder: Any, network: Any, config: Any) -> None:
        # Polygraphy leaves TF32 on for RTX.
        change = config.set_flag if settings.tf32 else config.clear_flag
        change(trt.BuilderFlag.TF32)
        finish(config)

    return PostprocessConfig(config, complete)
