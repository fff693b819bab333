"""Settings of TensorRT engines, as commands that build them take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from qdebug.config.resolve import Bytes

BackendName = Literal["ort", "tensorrt-rtx", "tensorrt"]
CaptureName = Literal["outputs", "debug", "unfused"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How engines are built and observed. They matter only where `backend` is not "ort".

    Attributes:
        backend: where the candidate runs.
        compute_capability: GPUs to build for, such as "8.9"; () builds for the one that is
            present, or for 8.9 where there is none.
        optimization_level: the builder's, 0 to 5.
        workspace: bytes of scratch memory.
        tactic_sources: names of trt.TacticSource.
        timing_cache: a file of kernel times that builds share.
        tf32: let FP32 layers compute in TF32.
        sparsity: use kernels for weights with 2:4 sparsity.
        plugin: shared objects with plugins.
        capture: how tensors of an engine are observed.
    """

    backend: BackendName = "ort"
    compute_capability: tuple[str, ...] = ()
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    workspace: Bytes | None = None
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: str | None = None
    tf32: bool = False
    sparsity: bool = False
    plugin: tuple[str, ...] = ()
    capture: CaptureName = "outputs"
