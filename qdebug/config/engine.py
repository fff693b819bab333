"""Settings of backends and engines, for the commands that run or build on them."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal

from annotated_types import Ge, Lt
from cyclopts import Parameter
from pydantic import BeforeValidator
from pydantic.dataclasses import dataclass

from qdebug.backends.registry import DEFAULT, backend_names, only, spec_of, usage
from qdebug.config.flag import CHECKED, ENGINE, TENSORRT, File
from qdebug.config.values import Bytes, Seconds
from qdebug.wording import as_known

CaptureName = Literal["outputs", "debug", "unfused"]
TypingName = Literal["strong", "implicit", "implicit-cache"]


def known_backend(name: object) -> str:
    """The name of a backend of the registry.

    Raises:
        UsageError: there is none of that name.
        BackendError: it comes with another package, and does not load.
    """
    return spec_of(as_known(str(name), backend_names())).name


BackendName = Annotated[str, BeforeValidator(known_backend)]


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class LibrarySettings:
    """What every engine of a command is built and run with."""

    workspace: Annotated[
        Bytes | None,
        Parameter(
            help=f"Scratch memory for the builder, such as 512M.{only('workspace')}",
            group=TENSORRT,
            metavar="SIZE",
            show_default="the library's",
        ),
    ] = None
    timing_cache: Annotated[
        str | None,
        File("own"),
        Parameter(
            help="File that keeps the times of kernels, so that later builds are "
            f"faster.{only('timing_cache')}",
            group=TENSORRT,
            metavar="FILE",
            show_default="one in the cache folder",
        ),
    ] = None
    plugin: Annotated[
        tuple[str, ...],
        Parameter(
            help=f"A shared library with plugins; repeatable.{only('plugin')}",
            group=TENSORRT,
            metavar="FILE",
        ),
    ] = ()
    provider: Annotated[
        str | None,
        Parameter(
            help="Execution provider of ONNX Runtime: built in, such as CUDA, or of an installed "
            "package, such as onnxruntime-qnn; NAME:GPU picks a device." + only("provider"),
            group=ENGINE,
            metavar="NAME",
            show_default="the CPU's",
        ),
    ] = None
    provider_option: Annotated[
        tuple[str, ...],
        Parameter(
            help="An option of that execution provider, such as backend_type=htp for QNN; "
            f"repeatable.{only('provider_option')}",
            group=ENGINE,
            metavar="KEY=VALUE",
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True, config=CHECKED)
class EngineSettings(LibrarySettings):
    """How engines are built and observed. The registry knows which of them a backend takes."""

    backend: Annotated[
        BackendName,
        Parameter(
            help=f"Where the model under test runs: {usage()}.", group=ENGINE, metavar="NAME"
        ),
    ] = DEFAULT
    typing: Annotated[
        TypingName,
        Parameter(
            help="How the builder is told precisions: strong, by Q/DQ and Cast nodes; TensorRT 10 "
            "also takes implicit, by layer precisions and dynamic ranges, and implicit-cache, by "
            f"layer precisions and a calibration cache.{only('typing')}",
            group=TENSORRT,
        ),
    ] = "strong"
    compute_capability: Annotated[
        tuple[str, ...],
        Parameter(
            help="Compute capability of a GPU to build for, such as 8.9; repeatable, one engine "
            f"for all.{only('compute_capability')}",
            group=TENSORRT,
            metavar="X.Y",
            show_default="the GPU that is present, or 8.9",
        ),
    ] = ()
    optimization_level: Annotated[
        Annotated[int, Ge(0), Lt(6)] | None,
        Parameter(
            help="How long the builder looks for fast kernels, 0 to "
            f"5.{only('optimization_level')}",
            group=TENSORRT,
            metavar="N",
            show_default="the library's",
        ),
    ] = None
    tactic_sources: Annotated[
        tuple[str, ...] | None,
        Parameter(
            name="--tactic-source",
            help="Take kernels from this source (a trt.TacticSource); repeatable."
            + only("tactic_sources"),
            group=TENSORRT,
            metavar="NAME",
            show_default="the library's",
        ),
    ] = None
    tf32: Annotated[
        bool,
        Parameter(help=f"Let FP32 layers compute in TF32.{only('tf32')}", group=TENSORRT),
    ] = False
    sparsity: Annotated[
        bool,
        Parameter(
            help=f"Use sparse kernels for weights with 2:4 sparsity.{only('sparsity')}",
            group=TENSORRT,
        ),
    ] = False
    refit: Annotated[
        bool,
        Parameter(
            help="Let weights of the engine be replaced later. Needs a GPU to build on."
            + only("refit"),
            group=TENSORRT,
        ),
    ] = False
    version_compatible: Annotated[
        bool,
        Parameter(
            help="Let the engine run under later versions of the library."
            + only("version_compatible"),
            group=TENSORRT,
        ),
    ] = False
    build_timeout: Annotated[
        Seconds | None,
        Parameter(
            help=f"Stop a build that takes longer, and say so.{only('build_timeout')}",
            group=TENSORRT,
            metavar="SECONDS",
            show_default="no limit",
        ),
    ] = None
    save_engine: Annotated[
        str | None,
        File("new"),
        Parameter(
            help="Write the engine, as its library loads it (trtexec --loadEngine).",
            group=ENGINE,
            metavar="FILE",
        ),
    ] = None
    save_log: Annotated[
        str | None,
        File("new"),
        Parameter(
            help="Write the log of its build, which 'qdebug inspect' reads.",
            group=ENGINE,
            metavar="FILE",
        ),
    ] = None
    capture: Annotated[
        CaptureName | None,
        Parameter(
            help="How tensors inside an engine are read: as further outputs, as debug tensors, or "
            f"from an engine built without fusion.{only('capture')}",
            group=TENSORRT,
            show_default="outputs",
        ),
    ] = None


def check_engine_flags(settings: EngineSettings) -> None:
    """Refuse settings that the backend does not take.

    Raises:
        UsageError: names the first of them.
    """
    given = (f for f in fields(EngineSettings) if getattr(settings, f.name) != f.default)
    spec_of(settings.backend).check_settings(f.name for f in given if f.name != "backend")
