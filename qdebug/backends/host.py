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
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import onnx

from qdebug.backends.base import Backend, Session
from qdebug.backends.engine import (
    Assigned,
    BuildWarning,
    BuiltEngine,
    CaptureWay,
    Described,
    EngineRuntime,
    EngineSession,
    Fixable,
    Profiled,
    Serialized,
    Shape,
    noise,
)
from qdebug.backends.registry import BackendSpec
from qdebug.engine_info.files.layer_info import layer_info_json
from qdebug.engine_info.measurements import LayerTime
from qdebug.network.weights import model_digest
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
    """See EngineRuntime. Nothing is kept between runs, since a build is no more than compiling.

    Attributes:
        backend: opens sessions. May have a `label`, for people, and a `device_name`.
        inputs, shapes: of the model, and by name of one execution; see `fitted`.
    """

    backend: Backend
    spec: BackendSpec
    inputs: tuple[TensorSpec, ...] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    target = not_run = ""
    typing = "strong"
    keeps = False
    ways = (CaptureWay.OUTPUTS, CaptureWay.HARMLESS)

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

    @property
    def provider_name(self) -> str | None:
        """See EngineRuntime."""
        return getattr(self.backend, "provider_name", None)

    def start(self) -> None:
        """See EngineRuntime: there is no device to acquire."""

    def fitted(
        self, inputs: Sequence[TensorSpec], shapes: Sequence[Mapping[str, Shape]]
    ) -> HostRuntime:
        """See EngineRuntime: shapes are taken as they come, but noise needs some, and those that
        never change are told to a backend that can use that."""
        backend = self.backend
        if isinstance(backend, Fixable) and shapes and all(s == shapes[0] for s in shapes):
            sizes = {
                axis: size
                for spec in inputs
                for axis, size in zip(spec.shape, shapes[0].get(spec.name, ()), strict=False)
                if isinstance(axis, str)
            }
            backend = backend.fixed(sizes)
        shown = shapes[0] if shapes else {}
        return replace(self, backend=backend, inputs=tuple(inputs), shapes=shown)

    def anew(self) -> HostRuntime:
        """See EngineRuntime."""
        return self

    def check(self, proto: onnx.ModelProto) -> None:
        """See EngineRuntime."""
        self.backend.open(proto, []).close()

    def key(self, proto: onnx.ModelProto) -> str:
        """See EngineRuntime."""
        model = model_digest(proto)
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
            providers = session.providers() if isinstance(session, Assigned) else ()
        finally:
            session.close()
        log = layer_info_json(info) if info else ""
        warnings = tuple(BuildWarning(note) for note in info.notes) if info else ()
        key = self.key(proto)
        return BuiltEngine(
            engine, log, warnings, session.skipped, seconds, key, info=info, providers=providers
        )

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
        if way is not CaptureWay.HARMLESS or not capture:
            return self.backend.open(proto, capture)
        feeds = noise(self.inputs, self.shapes)
        expected = self._outputs(proto, [], feeds)

        def harms(tensors: Sequence[str]) -> bool:
            return not _alike(expected, self._outputs(proto, tensors, feeds))

        wanted = list(dict.fromkeys(capture))
        left_out = culprits(wanted, harms)
        session = self.backend.open(proto, [t for t in wanted if t not in left_out])
        reasons = tuple(Skipped(t, reason) for t, reason in left_out.items())
        return HostSession(session, reasons)

    def _outputs(self, proto: onnx.ModelProto, capture: Sequence[str], feeds: Feeds) -> Tensors:
        """Of the model itself, with `capture` observed."""
        session = self.backend.open(proto, capture)
        try:
            found = session.run(feeds)
        finally:
            session.close()
        return {v.name: found[v.name] for v in proto.graph.output if v.name in found}


class HostSession:
    """See EngineSession; times are wall times."""

    def __init__(self, session: Session, skipped: Sequence[Skipped] = ()) -> None:
        """Becomes the owner of `session`, in which `skipped` are not observed either."""
        self._session = session
        self._more_skipped = tuple(skipped)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]:
        """See Session."""
        return self._session.dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return (*self._session.skipped, *self._more_skipped)

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


def culprits(tensors: Sequence[str], harms: Callable[[Sequence[str]], bool]) -> dict[str, str]:
    """Those of `tensors` to leave out, with the reason, so that the others can be outputs of an
    engine together without changing what it computes. Groups are added one after the other, and
    halved where they do harm; at most 200 are tried.

    Args:
        harms: whether these outputs together change it.
    """
    found: dict[str, str] = {}
    kept: list[str] = []
    pending = [list(tensors)]
    trials = 0
    while pending:
        group = pending.pop()
        if trials >= _TRIALS:
            found |= dict.fromkeys(group, "not tried: too many tensors change the engine")
            continue
        trials += 1
        if not harms([*kept, *group]):
            kept += group
        elif len(group) == 1:
            found[group[0]] = "as an output it changes what the engine computes"
        else:
            middle = len(group) // 2
            pending += [group[middle:], group[:middle]]
    return found


def _alike(expected: Tensors, found: Tensors) -> bool:
    """Whether two executions gave the same outputs, up to the order of summation."""
    for name, array in expected.items():
        a, b = array.astype(np.float64), found[name].astype(np.float64)
        apart, size = float(np.square(a - b).sum()), float(np.square(a).sum())
        if apart > size * _SAME:
            return False
    return True


_TRIALS = 200
_SAME = 1e-6
"""Energy of a difference that counts as none: 60 dB."""
