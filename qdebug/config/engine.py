"""Settings of TensorRT engines, as commands that build them take them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from qdebug.config.resolve import Workspace
from qdebug.run.registry import DEFAULT, spec_of


def _known(name: object) -> str:
    return spec_of(str(name)).name


BackendName = Annotated[str, BeforeValidator(_known)]
"""A backend of the registry."""

CaptureName = Literal["outputs", "debug", "unfused"]
TypingName = Literal["strong", "implicit", "implicit-cache"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How engines are built and observed. Which of them a backend takes is told by
    the registry.

    Attributes:
        backend: where the candidate runs.
        typing: how the builder is told the precisions: "strong" by the model's own Q/DQ and Casts;
            in TensorRT 10 also by implicit quantization, ranges given one by one or as a cache.
        compute_capability: GPUs to build for, such as "8.9"; () builds for the one that is
            present, or for 8.9 where there is none.
        optimization_level: the builder's, 0 to 5.
        workspace: bytes of scratch memory.
        tactic_sources: names of trt.TacticSource.
        timing_cache: a file of kernel times that builds share.
        tf32: let FP32 layers compute in TF32.
        sparsity: use kernels for weights with 2:4 sparsity.
        plugin: shared objects with plugins.
        refit: weights of the engine can be replaced later.
        version_compatible: the engine runs under later versions of the library.
        save_engine, save_log: files for the engine that was built, and for the log of its build.
        provider: an execution provider of ONNX Runtime, such as "CUDA"; None is the CPU's.
        capture: how tensors of an engine that runs are observed first; None is "outputs".
    """

    backend: BackendName = DEFAULT
    typing: TypingName = "strong"
    compute_capability: tuple[str, ...] = ()
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    workspace: Workspace | None = None
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: str | None = None
    tf32: bool = False
    sparsity: bool = False
    plugin: tuple[str, ...] = ()
    refit: bool = False
    version_compatible: bool = False
    save_engine: str | None = None
    save_log: str | None = None
    capture: CaptureName | None = None
    provider: str | None = None


def check_engine_flags(settings: EngineSettings) -> None:
    """Refuse settings that the backend does not take.

    Raises:
        UsageError: names the first of them.
    """
    given = (f for f in fields(EngineSettings) if getattr(settings, f.name) != f.default)
    spec_of(settings.backend).check_settings(f.name for f in given if f.name != "backend")
