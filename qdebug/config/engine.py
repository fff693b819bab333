"""Settings of backends and engines, for the commands that run or build on them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from qdebug.backends.registry import DEFAULT, backend_names, only, spec_of, usage
from qdebug.config.option import ENGINE, TENSORRT, Level, Option
from qdebug.config.values import parse_bytes
from qdebug.wording import as_known

CaptureName = Literal["outputs", "debug", "unfused"]
TypingName = Literal["strong", "implicit", "implicit-cache"]

WORKSPACE = Option(
    f"Scratch memory for the builder, such as 512M.{only('workspace')}",
    TENSORRT,
    metavar="SIZE",
    unset="the library's",
    parse=parse_bytes,
)
TIMING_CACHE = Option(
    f"File that keeps the times of kernels, so that later builds are faster.{only('timing_cache')}",
    TENSORRT,
    metavar="FILE",
    unset="one in the cache folder",
    writes="own",
)
PROVIDER = Option(
    "Execution provider of ONNX Runtime: built in, such as CUDA, or of an installed package, such "
    f"as onnxruntime-qnn; NAME:GPU picks a device.{only('provider')}",
    ENGINE,
    metavar="NAME",
    unset="the CPU's",
)
PROVIDER_OPTION = Option(
    "An option of that execution provider, such as backend_type=htp for QNN; "
    f"repeatable.{only('provider_option')}",
    ENGINE,
    metavar="KEY=VALUE",
)
PLUGIN = Option(
    f"A shared library with plugins; repeatable.{only('plugin')}", TENSORRT, metavar="FILE"
)


def known_backend(name: object) -> str:
    """The name of a backend of the registry.

    Raises:
        UsageError: there is none of that name.
        BackendError: it comes with another package, and does not load.
    """
    return spec_of(as_known(str(name), backend_names())).name


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How engines are built and observed. The registry knows which of them a backend takes."""

    backend: Annotated[
        str,
        Option(
            f"Where the model under test runs: {usage()}.",
            ENGINE,
            parse=known_backend,
        ),
    ] = DEFAULT
    typing: Annotated[
        TypingName,
        Option(
            "How the builder is told precisions: strong, by Q/DQ and Cast nodes; TensorRT 10 also "
            "takes implicit, by layer precisions and dynamic ranges, and implicit-cache, by layer "
            f"precisions and a calibration cache.{only('typing')}",
            TENSORRT,
        ),
    ] = "strong"
    compute_capability: Annotated[
        tuple[str, ...],
        Option(
            "Compute capability of a GPU to build for, such as 8.9; repeatable, one engine for all."
            f"{only('compute_capability')}",
            TENSORRT,
            metavar="X.Y",
            unset="the GPU that is present, or 8.9",
        ),
    ] = ()
    optimization_level: Annotated[
        Level | None,
        Option(
            f"How long the builder looks for fast kernels, 0 to 5.{only('optimization_level')}",
            TENSORRT,
            metavar="N",
            unset="the library's",
        ),
    ] = None
    workspace: Annotated[int | None, WORKSPACE] = None
    tactic_sources: Annotated[
        tuple[str, ...] | None,
        Option(
            "Take kernels from this source (a trt.TacticSource); repeatable."
            f"{only('tactic_sources')}",
            TENSORRT,
            metavar="NAME",
            flag="--tactic-source",
            unset="the library's",
        ),
    ] = None
    timing_cache: Annotated[str | None, TIMING_CACHE] = None
    tf32: Annotated[bool, Option(f"Let FP32 layers compute in TF32.{only('tf32')}", TENSORRT)] = (
        False
    )
    sparsity: Annotated[
        bool,
        Option(f"Use sparse kernels for weights with 2:4 sparsity.{only('sparsity')}", TENSORRT),
    ] = False
    plugin: Annotated[tuple[str, ...], PLUGIN] = ()
    refit: Annotated[
        bool,
        Option(
            f"Let weights of the engine be replaced later. Needs a GPU to build on.{only('refit')}",
            TENSORRT,
        ),
    ] = False
    version_compatible: Annotated[
        bool,
        Option(
            f"Let the engine run under later versions of the library.{only('version_compatible')}",
            TENSORRT,
        ),
    ] = False
    save_engine: Annotated[
        str | None,
        Option(
            "Write the engine, as its library loads it (trtexec --loadEngine).",
            ENGINE,
            metavar="FILE",
            writes="new",
        ),
    ] = None
    save_log: Annotated[
        str | None,
        Option(
            "Write the log of its build, which 'qdebug inspect' reads.",
            ENGINE,
            metavar="FILE",
            writes="new",
        ),
    ] = None
    provider: Annotated[str | None, PROVIDER] = None
    provider_option: Annotated[tuple[str, ...], PROVIDER_OPTION] = ()
    capture: Annotated[
        CaptureName | None,
        Option(
            "How tensors inside an engine are read: as further outputs, as debug tensors, or from "
            f"an engine built without fusion.{only('capture')}",
            TENSORRT,
            unset="outputs",
        ),
    ] = None


def engine_settings_of(settings: EngineSettings) -> EngineSettings:
    """Those of them that say how engines are built and observed, and write nothing."""
    own = {f.name: getattr(settings, f.name) for f in fields(EngineSettings)}
    return EngineSettings(**{**own, "save_engine": None, "save_log": None})


def check_engine_flags(settings: EngineSettings) -> None:
    """Refuse settings that the backend does not take.

    Raises:
        UsageError: names the first of them.
    """
    given = (f for f in fields(EngineSettings) if getattr(settings, f.name) != f.default)
    spec_of(settings.backend).check_settings(f.name for f in given if f.name != "backend")
