"""Settings of TensorRT engines, as commands that build them take them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from qdebug.config.resolve import Workspace, flag_of
from qdebug.errors import UsageError

BackendName = Literal["ort", "tensorrt-rtx", "tensorrt"]
CaptureName = Literal["outputs", "debug", "unfused"]
TypingName = Literal["strong", "implicit", "implicit-cache"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How engines are built and observed. They matter only where `backend` is not "ort".

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
        capture: how tensors of an engine that runs are observed first; None is "outputs".
    """

    backend: BackendName = "ort"
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


def check_engine_flags(settings: EngineSettings) -> None:
    """Refuse what would have no effect: settings of engines, where none is built.

    Raises:
        UsageError: names the first of them.
    """
    if settings.backend != "ort":
        return
    for field in fields(EngineSettings):
        if getattr(settings, field.name) != field.default:
            flag = _FLAGS.get(field.name, flag_of(field.name))
            backend = "tensorrt" if field.name == "typing" else "tensorrt-rtx (or tensorrt)"
            raise UsageError(
                f"{flag} is about engines, and --backend ort builds none",
                f"Add --backend {backend}, or drop {flag}.",
            )


_FLAGS = {"tactic_sources": "--tactic-source"}
"""Flags that are not called as the setting is: they are given once for each value."""
