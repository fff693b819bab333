"""How an engine is built: the settings as data, whether a library has them, and the builder's
configuration, through Polygraphy."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.library import Library
from qdebug.errors import UsageError
from qdebug.types import TensorSpec
from qdebug.wording import option

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeRange:
    """The shapes one input may have: at least, the one to be fast for, and at most."""

    min: Shape
    opt: Shape
    max: Shape


@dataclass(frozen=True)
class BuildSettings:
    """What the builder is told. None leaves a choice to the library.

    Attributes:
        compute_capabilities: (major, minor) of the GPUs to build for, RTX only; () builds for the
            GPU that is present.
        workspace_bytes: limit of scratch memory.
        optimization_level: the builder's, 0 to 5: how long it searches for fast kernels.
        tactic_sources: names of `trt.TacticSource`; an empty tuple allows none.
        timing_cache: file with measured kernel times, read and extended by every build so that
            repeated builds choose alike. TensorRT for RTX measures none and ignores it.
        tf32: let FP32 layers compute in TF32 (10 bits of mantissa) on Ampere and later. Off by
        default, since it hides what a comparison is to show. sparsity: use kernels for weights with
        2:4 sparsity. profile: the shapes of each input that has dynamic axes. plugins: shared
        objects with plugins, loaded before the model is parsed. refit: weights can be replaced
        later. version_compatible: the engine runs under later versions of the library.
        unfused_debug_tensors: mark every tensor that fusion leaves as a debug tensor.
    """

    compute_capabilities: tuple[tuple[int, int], ...] = ()
    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: Path | None = None
    tf32: bool = False
    sparsity: bool = False
    profile: Mapping[str, ShapeRange] | None = None
    plugins: tuple[Path, ...] = ()
    refit: bool = False
    version_compatible: bool = False
    unfused_debug_tensors: bool = False


def parse_compute_capability(text: str) -> tuple[int, int]:
    """`8.9` -> (8, 9).

    Raises:
        UsageError: not of that form.
    """
    major, dot, minor = text.strip().partition(".")
    if not (dot and major.isdigit() and minor.isdigit() and len(minor) == 1):
        raise UsageError(
            f"{option('compute_capability')}: '{text}' is not a compute capability",
            "Give one like 8.9; several with commas.",
            code="QD-USAGE-COMPUTE-CAPABILITY",
        )
    return int(major), int(minor)


def profile_for(
    inputs: Sequence[TensorSpec], shapes: Iterable[Mapping[str, Shape]]
) -> dict[str, ShapeRange]:
    """A profile that admits all of `shapes` (of single executions), fast for the first of them.

    Args:
        inputs: of the model; only those with dynamic axes get an entry.
        shapes: shape by input name, one mapping per execution; tensors that are not inputs are
        ignored. Not read where no input has dynamic axes.

    Raises:
        UsageError: no shapes for an input with dynamic axes.
    """
    dynamic = [s for s in inputs if not all(isinstance(axis, int) for axis in s.shape)]
    seen = list(shapes) if dynamic else []
    profile = {}
    for spec in dynamic:
        found = [tuple(s[spec.name]) for s in seen if spec.name in s]
        if not found:
            raise UsageError(
                f"input '{spec.name}' has dynamic axes, and no shape is known for it",
                f"Give samples ({option('inputs')}): the engine is built for their shapes.",
                code="QD-USAGE-NO-SHAPES",
            )
        if any(len(shape) != len(spec.shape) for shape in found):
            raise UsageError(
                f"input '{spec.name}' takes {len(spec.shape)} axes, samples differ",
                code="QD-USAGE-SHAPES-DIFFER",
            )
        columns = list(zip(*found, strict=True))
        profile[spec.name] = ShapeRange(
            tuple(map(min, columns)), found[0], tuple(map(max, columns))
        )
    return profile


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
                f"Drop {option('compute_capability')}, or use {option('backend', 'tensorrt-rtx')}.",
                code="QD-USAGE-COMPUTE-CAPABILITY",
            )
        if wanted not in known:
            raise UsageError(
                f"{library.name} does not build for compute capability {_cc(wanted)}",
                f"It builds for {', '.join(map(_cc, known))}.{_ELSEWHERE.get(wanted, '')}",
                code="QD-USAGE-COMPUTE-CAPABILITY",
            )
    if not settings.compute_capabilities and not isinstance(find_device(), Device):
        hint = f"Name the GPU to build for: {option('compute_capability', '8.9')}."
        if not library.rtx:
            hint = f"Use {option('backend', 'tensorrt-rtx')}. {hint}"
        raise UsageError(
            f"{library.name}: this machine has no GPU to build for", hint, code="QD-USAGE-NO-GPU"
        )
    for path in settings.plugins:
        if not os.path.isfile(path):  # noqa: PTH113 (Path raises where the name is too long)
            what = "a directory" if os.path.isdir(path) else "no such file"  # noqa: PTH112
            raise UsageError(
                f"{option('plugin')}: {path}: {what}",
                "Give the shared object with the plugin.",
                code="QD-USAGE-PLUGIN",
            )
    sources = library.module.TacticSource.__members__
    for source in settings.tactic_sources or ():
        if source not in sources:
            raise UsageError(
                f"{library.name} has no tactic source '{source}'",
                f"It has {', '.join(sources)}.",
                code="QD-USAGE-TACTIC-SOURCE",
            )


def check_profile(proto: onnx.ModelProto, profile: Mapping[str, ShapeRange]) -> None:
    """Refuse a profile that does not fit the inputs of a model.

    Raises:
        UsageError: an input with dynamic axes has no entry, an entry is not an input, or has
            another number of axes.
    """
    constants = {i.name for i in proto.graph.initializer}
    inputs = {i.name: i.type.tensor_type for i in proto.graph.input if i.name not in constants}
    for name, shapes in profile.items():
        if name not in inputs:
            raise UsageError(
                f"the profile has shapes for '{name}', which is not an input of the model",
                f"Its inputs are {', '.join(inputs)}.",
                code="QD-USAGE-SHAPES-DIFFER",
            )
        rank = len(inputs[name].shape.dim)
        if any(len(shape) != rank for shape in (shapes.min, shapes.opt, shapes.max)):
            raise UsageError(
                f"the profile's shapes of input '{name}' do not have {rank} axes",
                code="QD-USAGE-SHAPES-DIFFER",
            )
    for name, kind in inputs.items():
        if name not in profile and any(not d.HasField("dim_value") for d in kind.shape.dim):
            raise UsageError(
                f"input '{name}' has dynamic axes, and the profile has no shapes for it",
                f"Give samples ({option('inputs')}): the engine is built for their shapes.",
                code="QD-USAGE-NO-SHAPES",
            )


_ELSEWHERE = {
    (9, 0): (
        " On a machine with such a GPU (H100, H200), 1.6 and 1.5 build for it without "
        "a named compute capability, but no INT8 convolutions."
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
        finish: called with the configuration when all settings are in it.
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
