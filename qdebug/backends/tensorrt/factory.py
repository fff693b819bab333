"""Models made into engines on the GPU: one library, one set of settings, one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from qdebug.backends.base import check_imports
from qdebug.backends.engine import BuiltEngine, noise
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.tensorrt.build.build import build_engine
from qdebug.backends.tensorrt.build.settings import BuildSettings
from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.execute.runtime import LoadedEngine, load_engine
from qdebug.backends.tensorrt.library import Library
from qdebug.memo import Memo
from qdebug.types import Feeds, ProgressCallback, Skipped, TensorSpec, ignore_progress


@dataclass(frozen=True)
class EngineFactory:
    """Builds and loads engines.

    Attributes:
        settings: `profile` must name every input with dynamic axes.
        cache: where built engines are kept; None builds each anew.
        compiled: the file that keeps what is compiled when engines are executed.
        cuda: the GPU; None opens the first one.
        sessions: of ONNX Runtime, which executes models on noise, to tell tensors apart.
        progress: told of each build.
        build: `build_engine`, or what stands in for it.
    """

    library: Library
    settings: BuildSettings = field(default_factory=BuildSettings)
    cache: Memo | None = None
    compiled: Path | None = None
    cuda: Cuda | None = None
    sessions: SessionSettings = DEFAULT_SESSIONS
    progress: ProgressCallback = ignore_progress
    build: Callable[..., BuiltEngine] = field(default=build_engine, repr=False)

    def make(
        self,
        proto: onnx.ModelProto,
        *,
        outputs: Sequence[str] = (),
        debug: Sequence[str] = (),
        unfused: bool = False,
    ) -> tuple[LoadedEngine, tuple[Skipped, ...]]:
        """Build `proto` with tensors marked as outputs or as debug tensors, and load it; with the
        tensors that could not be marked.

        Raises:
            UsageError, ModelError, BackendError: see `build_engine` and `load_engine`.
            ModelError: also for what TensorRT would silently misread.
        """
        check_imports(proto, self.library.name)
        settings = replace(self.settings, unfused_debug_tensors=unfused)
        built = self.build(
            self.library,
            proto,
            settings,
            outputs=outputs,
            debug=debug,
            cache=self.cache,
            progress=self.progress,
        )
        return self.load(built), built.skipped

    def load(self, built: BuiltEngine) -> LoadedEngine:
        """Load an engine that was built with these settings.

        Raises:
            UsageError, BackendError: see `load_engine`.
        """
        return load_engine(
            self.library,
            built.engine,
            self.cuda,
            host_code=self.settings.version_compatible,
            compiled=self.compiled,
        )


def probe_feeds(engine: LoadedEngine) -> Feeds:
    """Noise for every input, in the largest shapes that the engine takes."""
    return noise(
        [
            TensorSpec(port.name, port.range[1], port.dtype)
            for port in engine.inputs
            if port.range is not None and port.dtype is not None
        ]
    )
