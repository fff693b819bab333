"""A Backend that compiles in this process, as an EngineRuntime.

All that a runtime must offer is `open` (run.base.Backend). Whatever its sessions offer beyond that
is used: `engine_info` for the audit, `layer_times`, `serialized` (see run.engine).
"""

from __future__ import annotations

import hashlib
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx

from qdebug.engine_info.layer_info import layer_info_json
from qdebug.engine_info.profile import LayerTime
from qdebug.run.base import Backend, Session
from qdebug.run.engine import (
    BuiltEngine,
    CaptureWay,
    Described,
    EngineRuntime,
    EngineSession,
    Profiled,
    Serialized,
    Shape,
)
from qdebug.run.registry import BackendSpec
from qdebug.types import Feeds, Skipped, Tensors, TensorSpec

_ROUNDS, _SECONDS = 50, 2.0
"""How often a model is executed to time it, and for how long at most."""


def as_runtime(spec: BackendSpec, opened: Backend | EngineRuntime) -> EngineRuntime:
    """What a factory gave, as the pipeline uses it."""
    if hasattr(opened, "fitted"):
        return cast("EngineRuntime", opened)
    return HostRuntime(opened, spec)


@dataclass(frozen=True)
class HostRuntime:
    """See EngineRuntime. Nothing is kept between runs: compiling is all that a build is.

    Attributes:
        backend: opens sessions. May have a `label`, for people, and a `device_name`.
    """

    backend: Backend
    spec: BackendSpec

    target = ""
    not_run = ""
    typing = "strong"
    ways = (CaptureWay.OUTPUTS,)
    keeps = False

    @property
    def name(self) -> str:
        """See EngineRuntime."""
        return self.spec.name

    @property
    def label(self) -> str:
        """See EngineRuntime."""
        return str(getattr(self.backend, "label", self.spec.name))

    @property
    def device_name(self) -> str:
        """See EngineRuntime."""
        return str(getattr(self.backend, "device_name", f"this CPU ({platform.machine()})"))

    @property
    def built_for(self) -> str:
        """See EngineRuntime."""
        return self.device_name

    def start(self) -> None:
        """See EngineRuntime: nothing has to be got hold of."""

    def fitted(
        self, inputs: Sequence[TensorSpec], shapes: Sequence[Mapping[str, Shape]]
    ) -> HostRuntime:
        """See EngineRuntime: shapes are taken as they come."""
        return self

    def anew(self) -> HostRuntime:
        """See EngineRuntime."""
        return self

    def check(self, proto: onnx.ModelProto) -> None:
        """See EngineRuntime."""
        self.backend.open(proto, []).close()

    def key(self, proto: onnx.ModelProto) -> str:
        """See EngineRuntime."""
        model = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
        text = "\n".join([self.name, self.label, self.device_name, model])
        return hashlib.sha256(text.encode()).hexdigest()

    def build(self, proto: onnx.ModelProto) -> BuiltEngine:
        """See EngineRuntime."""
        started = time.perf_counter()
        session = self.backend.open(proto, [])
        try:
            seconds = time.perf_counter() - started
            info = session.engine_info() if isinstance(session, Described) else None
            engine = session.serialized() if isinstance(session, Serialized) else b""
        finally:
            session.close()
        log = layer_info_json(info) if info else ""
        return BuiltEngine(engine, log, (), session.skipped, seconds, self.key(proto), info=info)

    def clean(self, proto: onnx.ModelProto, built: BuiltEngine | None = None) -> EngineSession:
        """See EngineRuntime."""
        return HostSession(self.backend.open(proto, []))

    def open(
        self,
        proto: onnx.ModelProto,
        capture: Sequence[str],
        way: CaptureWay | None = None,
        group_bytes: int | None = None,
    ) -> Session:
        """See EngineRuntime.open."""
        return self.backend.open(proto, capture)


class HostSession:
    """See EngineSession; times are wall times."""

    def __init__(self, session: Session) -> None:
        """Becomes the owner of `session`."""
        self._session = session

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]:
        """See Session."""
        return self._session.dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return self._session.skipped

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        return self._session.run(feeds)

    def close(self) -> None:
        """See Session.close."""
        self._session.close()

    def latency_ms(self, feeds: Feeds) -> float:
        """See EngineSession.latency_ms."""
        return median_ms(lambda: self._session.run(feeds))

    def layer_times(self, feeds: Feeds) -> tuple[LayerTime, ...]:
        """See EngineSession.layer_times."""
        return self._session.layer_times(feeds) if isinstance(self._session, Profiled) else ()


def median_ms(run: Callable[[], object]) -> float:
    """Median wall time of calls of `run` in milliseconds, after one that is not counted: 50 of
    them, or as many as fit in 2 seconds."""
    run()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _ROUNDS and (not times or time.perf_counter() - began < _SECONDS):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)
