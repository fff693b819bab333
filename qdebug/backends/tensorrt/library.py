"""Load a TensorRT library: TensorRT for RTX, or TensorRT 10 or 11. One of them per process, which
process.py sees to."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from types import ModuleType
from typing import Any

from qdebug.backends.tensorrt.build.logger import LogCollector, make_logger
from qdebug.backends.tensorrt.execute.device import Device
from qdebug.errors import BackendError, UsageError


class LibraryKind(StrEnum):
    """Which of NVIDIA's libraries."""

    RTX = "tensorrt-rtx"
    CLASSIC = "tensorrt"


MODULES = {LibraryKind.RTX: "tensorrt_rtx", LibraryKind.CLASSIC: "tensorrt"}
OLDEST = {LibraryKind.RTX: (1, 5), LibraryKind.CLASSIC: (10, 8)}
NEXT_STEP = {
    LibraryKind.RTX: "pip install tensorrt-rtx-cu13",
    LibraryKind.CLASSIC: (
        "pip install tensorrt pycuda, on a machine with an NVIDIA GPU and its driver; without "
        "one, use tensorrt-rtx."
    ),
}
_SHARED_OBJECTS = {
    LibraryKind.RTX: ("libtensorrt_rtx.so.{0}", "tensorrt_rtx_{0}.dll"),
    LibraryKind.CLASSIC: ("libnvinfer.so.{0}", "nvinfer_{0}.dll"),
}


@dataclass(frozen=True)
class Library:
    """A loaded library. `polygraphy` drives it, and nothing else in this process.

    Attributes:
        kind: which one.
        module: NVIDIA's Python module.
        version: of the module, such as (1, 7, 1, 116).
        logs: where the messages of the library and its parser go.
        logger: the `trt.ILogger` to hand to whatever wants one; feeds `logs`.
    """

    kind: LibraryKind
    module: Any = field(repr=False)
    version: tuple[int, ...]
    logs: LogCollector = field(repr=False)
    logger: Any = field(repr=False)

    @property
    def rtx(self) -> bool:
        """TensorRT for RTX: strongly typed, and builds without a GPU."""
        return self.kind is LibraryKind.RTX

    @property
    def implicit(self) -> bool:
        """It has calibrators, dynamic ranges and precision constraints: TensorRT 10 only."""
        return not self.rtx and self.version < (11,)

    @property
    def name(self) -> str:
        """For messages: `TensorRT for RTX 1.7.1.116`."""
        kind = "TensorRT for RTX" if self.rtx else "TensorRT"
        return f"{kind} {'.'.join(map(str, self.version))}"

    @cached_property
    def compute_capabilities(self) -> tuple[tuple[int, int], ...]:
        """Those that engines can be built for by name; () where only the present GPU can be."""
        if not self.rtx:
            return ()
        names = self.module.ComputeCapability.__members__
        digits = [n.removeprefix("SM") for n in names if n.startswith("SM")]
        return tuple(sorted((int(d[:-1]), int(d[-1])) for d in digits))


@cache
def load_library(kind: LibraryKind) -> Library:
    """Import a library, once per process, and let Polygraphy use it.

    Raises:
        UsageError: it is not installed.
        BackendError: it is installed but does not load, or its parts have different versions.
    """
    module = _import(kind)
    version = parse_version(str(getattr(module, "__version__", "")))
    if version < OLDEST[kind]:
        oldest = ".".join(map(str, OLDEST[kind]))
        raise BackendError(
            f"{kind} {module.__version__} is older than {oldest}, the oldest that qdebug drives",
            NEXT_STEP[kind],
            code="QD-BACKEND-TOO-OLD",
        )
    _check_versions(kind, version)
    logs = LogCollector()
    library = Library(kind, module, version, logs, make_logger(module, logs))
    _bind_polygraphy(library)
    return library


def installed_version(kind: LibraryKind) -> tuple[int, ...]:
    """The version of a library, which is loaded; raises as `load_library`."""
    return load_library(kind).version


def parse_version(text: str) -> tuple[int, ...]:
    """`1.7.1.116` -> (1, 7, 1, 116); stops at what is not a number."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _import(kind: LibraryKind) -> ModuleType:
    name = MODULES[kind]
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        raise UsageError(
            f"{kind}: the Python package is not installed",
            NEXT_STEP[kind],
            code="QD-USAGE-BACKEND-NOT-INSTALLED",
        )
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, AttributeError) as error:
        raise BackendError(
            f"{kind} is installed but cannot be loaded: {error}",
            "A shared object is missing: install the libs package of the same version as the "
            f"bindings. {NEXT_STEP[kind]}",
            code="QD-BACKEND-NOT-LOADABLE",
        ) from error


def _check_versions(kind: LibraryKind, version: tuple[int, ...]) -> None:
    found = shared_object_version(kind, version[0])
    if found is not None and found != version[: len(found)]:
        raise BackendError(
            f"{kind}: the Python bindings are {_dotted(version)}, the shared object is "
            f"{_dotted(found)}",
            f"Install both in one version: {NEXT_STEP[kind]}",
            code="QD-BACKEND-VERSIONS-DIFFER",
        )


def abilities(kind: LibraryKind, version: tuple[int, ...], device: Device | str) -> tuple[str, str]:
    """What a library that loads can do on this machine, and a next step where that is not all.

    Which compute capabilities TensorRT for RTX executes on was tested with 1.5.0, 1.6.1 and 1.7.1.
    """
    if isinstance(device, str):
        if kind is LibraryKind.RTX:
            return f"builds engines for named GPUs; runs none here ({device})", ""
        return f"neither builds nor runs engines here ({device})", "Use tensorrt-rtx to build."
    capability = ".".join(map(str, device.compute_capability))
    if kind is LibraryKind.RTX and device.compute_capability == (9, 0):
        if version >= (1, 7):
            return (
                f"builds engines for named GPUs; does not run on compute capability {capability}",
                "pip install 'tensorrt-rtx-cu13<1.7' runs there, without INT8 convolutions",
            )
        return f"builds and runs engines on {device.name}, without INT8 convolutions", ""
    return f"builds and runs engines on {device.name}", ""


def shared_object_version(kind: LibraryKind, major: int) -> tuple[int, ...] | None:
    """The version that the shared object itself states, to compare with that of the bindings.

    Read from the loaded object by `getInferLib…Version` (NvInferRuntime.h); None where it exports
    none of them, or is loaded under a name that is not known.
    """
    index = 1 if sys.platform == "win32" else 0
    try:
        shared = ctypes.CDLL(_SHARED_OBJECTS[kind][index].format(major))
        parts = [getattr(shared, f"getInferLib{p}Version") for p in ("Major", "Minor", "Patch")]
    except (OSError, AttributeError):
        return None
    return tuple(int(part()) for part in parts)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _bind_polygraphy(library: Library) -> None:
    """Let Polygraphy use `library`, its logger included.

    Polygraphy chooses between the libraries when it is first imported, by the environment variable
    POLYGRAPHY_USE_TENSORRT_RTX. A user's script may have imported it by then, for another library
    than the one asked for; so the choice is made here, whatever was imported before.
    """
    from polygraphy import config
    from polygraphy.mod.trt_importer import lazy_import_trt

    config.USE_TENSORRT_RTX = library.rtx
    importlib.import_module("polygraphy.backend.trt")
    if library.rtx:
        importlib.import_module("polygraphy.backend.tensorrt_rtx")
    for name, module in list(sys.modules.items()):
        if name.startswith("polygraphy.") and _is_lazy(vars(module).get("trt")):
            vars(module)["trt"] = lazy_import_trt()
    util = importlib.import_module("polygraphy.backend.trt.util")
    vars(util)["TRT_LOGGER"] = library.logger


def _is_lazy(value: object) -> bool:
    return type(value).__name__ == "LazyModule"
