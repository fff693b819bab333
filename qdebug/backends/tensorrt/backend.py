"""TensorRT as an EngineRuntime: engines are built, kept, loaded, and observed in three ways."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from qdebug.backends.base import Session
from qdebug.backends.engine import BuiltEngine, CaptureWay, Shape
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.tensorrt.build.build import BuildJob, build_engine, check_parse, engine_key
from qdebug.backends.tensorrt.build.implicit import check_implicit
from qdebug.backends.tensorrt.build.settings import (
    BuildSettings,
    check_settings,
    parse_compute_capability,
    profile_for,
)
from qdebug.backends.tensorrt.execute.cuda import open_cuda
from qdebug.backends.tensorrt.execute.device import Device, find_device
from qdebug.backends.tensorrt.execute.observe.debug import open_unfused, open_with_debug
from qdebug.backends.tensorrt.execute.observe.outputs import open_with_outputs
from qdebug.backends.tensorrt.execute.session import TensorRTSession
from qdebug.backends.tensorrt.factory import EngineFactory
from qdebug.backends.tensorrt.library import Library, LibraryKind, abilities, load_library
from qdebug.engine_info.files.build_log import read_build_log
from qdebug.errors import BackendError
from qdebug.memo import Memo
from qdebug.types import ProgressCallback, Skipped, TensorSpec, ignore_progress

DEFAULT_CAPABILITY = (8, 9)
"""The default target where there is no GPU and none is named: Ada, GeForce RTX 40 and L4."""

_ENGINES_BYTES = 8 << 30
"""Of the disk, for all kept engines; one that is larger than a 16th of it is not kept."""

STRONG = "strong"
WAYS = (CaptureWay.OUTPUTS, CaptureWay.DEBUG, CaptureWay.UNFUSED)


def ways_from(first: str | None) -> tuple[CaptureWay, ...]:
    """The way asked for (None: all tensors as outputs), then those that change an engine less."""
    return WAYS[WAYS.index(CaptureWay(first or CaptureWay.OUTPUTS)) :]


@dataclass(frozen=True)
class TensorRTBackend:
    """See EngineRuntime.

    Attributes:
        factory: builds and loads the engines.
        device: the GPU to run them on, or why there is none.
        typing, ways: see EngineRuntime.
    """

    factory: EngineFactory
    device: Device | str = "no GPU was looked for"
    typing: str = STRONG
    ways: tuple[CaptureWay, ...] = WAYS

    @property
    def name(self) -> str:
        """See Backend.name."""
        return str(self.factory.library.kind)

    @property
    def label(self) -> str:
        """The library, and how precisions are passed to it."""
        implicit = "" if self.typing == STRONG else f", {self.typing}"
        return f"{self.factory.library.name}{implicit}"

    @property
    def built_for(self) -> str:
        """See EngineRuntime."""
        named = self.factory.settings.compute_capabilities
        if named:
            return f"compute capability {', '.join(f'{a}.{b}' for a, b in named)}"
        return self.device_name or "this machine"

    @property
    def target(self) -> str:
        """See EngineRuntime."""
        return "+".join(f"{a}.{b}" for a, b in self.factory.settings.compute_capabilities)

    @property
    def device_name(self) -> str:
        """See EngineRuntime."""
        return self.device.name if isinstance(self.device, Device) else ""

    @property
    def keeps(self) -> bool:
        """See EngineRuntime."""
        return self.factory.cache is not None

    @property
    def provider_name(self) -> None:
        """See EngineRuntime: it has none."""

    @property
    def not_run(self) -> str:
        """See EngineRuntime."""
        library, device = self.factory.library, self.device
        if isinstance(device, str):
            return device
        if library.rtx and library.version >= (1, 7) and device.compute_capability == (9, 0):
            return abilities(library.kind, library.version, device)[0]
        named = self.factory.settings.compute_capabilities
        if named and device.compute_capability not in named:
            return f"this machine's GPU is a {device.name}"
        return ""

    def start(self) -> None:
        """See EngineRuntime."""
        if self.factory.cuda is None:
            open_cuda()

    def fitted(
        self, inputs: Sequence[TensorSpec], shapes: Sequence[Mapping[str, Shape]]
    ) -> TensorRTBackend:
        """With a profile that admits `shapes`, fast for the first of them."""
        settings = replace(self.factory.settings, profile=profile_for(inputs, shapes))
        return replace(self, factory=replace(self.factory, settings=settings))

    def anew(self) -> TensorRTBackend:
        """See EngineRuntime."""
        return replace(self, factory=replace(self.factory, cache=None))

    def check(self, proto: onnx.ModelProto) -> None:
        """See EngineRuntime: parses the model."""
        check_parse(self.factory.library, proto, self.factory.settings)

    def key(self, proto: onnx.ModelProto) -> str:
        """See EngineRuntime. The timing cache does not count."""
        return engine_key(self.factory.library, BuildJob(proto, self.factory.settings))

    def build(self, proto: onnx.ModelProto) -> BuiltEngine:
        """See EngineRuntime."""
        factory = self.factory
        built = build_engine(
            factory.library,
            proto,
            factory.settings,
            cache=factory.cache,
            progress=factory.progress,
        )
        return replace(built, info=read_build_log(built.log, "the build log"))

    def clean(self, proto: onnx.ModelProto, built: BuiltEngine | None = None) -> TensorRTSession:
        """See EngineRuntime."""
        factory = self.factory
        return TensorRTSession(factory.load(built) if built else factory.make(proto)[0])

    def open(
        self,
        proto: onnx.ModelProto,
        capture: Sequence[str],
        way: CaptureWay | None = None,
        group_bytes: int | None = None,
    ) -> Session:
        """See EngineRuntime.open."""
        present = {v.name for v in proto.graph.output}
        computed = {t for n in proto.graph.node for t in n.output if t}
        asked = [t for t in dict.fromkeys(capture) if t not in present]
        absent = [
            Skipped(t, "no node of the model computes it") for t in asked if t not in computed
        ]
        wanted = [t for t in asked if t in computed]
        if not wanted:
            return TensorRTSession(self.factory.make(proto)[0], skipped=absent)
        chosen = way or self.ways[0]
        match chosen:
            case CaptureWay.OUTPUTS:
                return open_with_outputs(self.factory, proto, wanted, absent, group_bytes)
            case CaptureWay.DEBUG:
                return open_with_debug(self.factory, proto, wanted, absent)
            case CaptureWay.UNFUSED:
                return open_unfused(self.factory, proto, wanted, absent)
            case CaptureWay.HARMLESS:
                raise BackendError(
                    f"{self.label} does not observe tensors as '{chosen}'",
                    f"It does as {', '.join(self.ways)}.",
                    code="QD-BACKEND-NOT-OBSERVABLE",
                )


def open_runtime(
    kind: LibraryKind,
    *,
    folder: Path | None = None,
    cached: bool = True,
    sessions: SessionSettings = DEFAULT_SESSIONS,
    progress: ProgressCallback = ignore_progress,
    **settings: Any,
) -> TensorRTBackend:
    """Load a library, and find out what it can do here.

    Args:
        folder: where kernel times are kept; with `cached` engines, and what is compiled when they
            are executed, too.
        settings: those that the registry lists for it, by name; what is left out has its default.

    Raises:
        BackendError, UsageError: it is not installed or does not load, or a setting that it does
            not have.
    """
    library = load_library(kind)
    typing = settings.pop("typing", STRONG)
    if typing != STRONG:
        check_implicit(library)
    device = find_device()
    ways = ways_from(settings.pop("capture", None))
    named = [c for text in settings.pop("compute_capability", ()) for c in text.split(",")]
    capabilities = tuple(parse_compute_capability(c) for c in named)
    if library.rtx and isinstance(device, str) and not capabilities:
        capabilities = (DEFAULT_CAPABILITY,)
    build = BuildSettings(
        compute_capabilities=capabilities,
        workspace_bytes=settings.pop("workspace", None),
        timing_cache=_timing_cache(settings.pop("timing_cache", None), folder, library),
        plugins=tuple(Path(p) for p in settings.pop("plugin", ())),
        **settings,
    )
    check_settings(library, build)
    engines = compiled = None
    if folder is not None and cached:
        engines = Memo(folder / "engines", _ENGINES_BYTES)
        compiled = library_file(folder / "compiled", "compiled", library)
    factory = EngineFactory(
        library, build, cache=engines, compiled=compiled, sessions=sessions, progress=progress
    )
    return TensorRTBackend(factory, device, typing, ways)


def _timing_cache(given: str | None, folder: Path | None, library: Library) -> Path | None:
    if library.rtx:  # it measures no kernels while it builds
        return None
    if given is not None:
        return Path(given)
    return library_file(folder / "timing", "timing", library) if folder else None


def library_file(folder: Path, kind: str, library: Library) -> Path:
    """Where in `folder` something of a library is kept, such as its "timing" cache: a file for each
    version and GPU, since TensorRT takes no other's."""
    device = find_device()
    gpu = device.name if isinstance(device, Device) else "no GPU"
    version = ".".join(map(str, library.version))
    return folder / re.sub(r"[^\w.-]+", "-", f"{kind}-{library.kind}-{version}-{gpu}.bin")
