"""Observe tensors while the engine runs: those marked by name, or those that fusion leaves.

TensorRT's calls come from C++ that no exception may cross.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from qdebug.backends.base import Session
from qdebug.backends.engine import CaptureWay
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.tensorrt.execute.cuda import Cuda
from qdebug.backends.tensorrt.execute.observe.outputs import Shape, shapes_for
from qdebug.backends.tensorrt.execute.observe.unfused import candidates, not_observed, place_tensors
from qdebug.backends.tensorrt.execute.runtime import (
    Contexts,
    LoadedEngine,
    given_type,
    layers_json,
    numpy_type,
)
from qdebug.backends.tensorrt.execute.session import Heard, TensorRTSession
from qdebug.backends.tensorrt.execute.slot import Slot
from qdebug.backends.tensorrt.factory import EngineFactory, probe_feeds
from qdebug.engine_info.files.layer_info import read_layer_info
from qdebug.network.graph import Graph
from qdebug.types import Array, Feeds, Skipped, Tensors


def open_with_debug(
    maker: EngineFactory, proto: onnx.ModelProto, wanted: Sequence[str], absent: Sequence[Skipped]
) -> Session:
    """A session that receives `wanted` as debug tensors; an execution on noise shows which
    arrive."""
    engine, unmarked = maker.make(proto, debug=wanted)
    listener = _listener(engine, CaptureWay.DEBUG)
    heard = _probe(engine, listener)
    dtypes = {t: heard[t].dtype for t in wanted if t in heard}
    marked = {s.tensor for s in unmarked}
    reason = "the library took it as a debug tensor and never reported it"
    silent = [Skipped(t, reason) for t in wanted if t not in heard and t not in marked]
    return TensorRTSession(
        engine,
        skipped=[*absent, *unmarked, *silent],
        heard=Heard(listener, dtypes, lambda found, _: found),
    )


def open_unfused(
    maker: EngineFactory, proto: onnx.ModelProto, wanted: Sequence[str], absent: Sequence[Skipped]
) -> Session:
    """A session that receives the tensors between the engine's kernels, as far as they are known to
    be `wanted` ones. An execution on noise, and its simulation, show which is which."""
    engine, _ = maker.make(proto, unfused=True)
    listener = _listener(engine, CaptureWay.UNFUSED)
    heard = _probe(engine, listener)
    graph = Graph(onnx.shape_inference.infer_shapes(proto))
    layers = read_layer_info(json.loads(layers_json(engine)), "the engine").layers
    options = candidates(layers, graph)
    feeds = probe_feeds(engine)
    places = place_tensors(options, heard, _simulate(maker, proto, options, feeds))
    known = set(wanted).intersection(shapes_for(proto, {n: a.shape for n, a in feeds.items()}))
    names = {inner: p for inner, p in places.items() if p.tensor in known}

    @lru_cache(maxsize=8)
    def shapes_at(key: tuple[tuple[str, Shape], ...]) -> Mapping[str, Shape]:
        return shapes_for(proto, dict(key))

    def translate(found: Mapping[str, Array], given: Feeds) -> Tensors:
        shapes = shapes_at(tuple((n, given[n].shape) for n in feeds))
        return {
            p.tensor: p.restore(found[n], shapes[p.tensor]) for n, p in names.items() if n in found
        }

    return TensorRTSession(
        engine,
        skipped=[*absent, *not_observed(wanted, names)],
        heard=Heard(listener, {p.tensor: heard[n].dtype for n, p in names.items()}, translate),
    )


def _simulate(
    maker: EngineFactory,
    proto: onnx.ModelProto,
    options: Mapping[str, Sequence[str]],
    feeds: Feeds,
) -> Tensors:
    wanted = list(dict.fromkeys(t for tensors in options.values() for t in tensors))
    session = SimulationBackend(sessions=maker.sessions).open(proto, wanted)
    try:
        return session.run(feeds)
    finally:
        session.close()


def _listener(engine: LoadedEngine, way: CaptureWay) -> DebugListener:
    return DebugListener(engine.library.module, engine.cuda, way)


def _probe(engine: LoadedEngine, listener: DebugListener) -> dict[str, Array]:
    """Everything that one execution on noise gives."""
    slot = Slot(engine, Contexts(engine), listener)
    try:
        return slot.run(probe_feeds(engine))
    finally:
        slot.close()


class DebugListener:
    """Copies the debug tensors of each execution when TensorRT reports them. See Listener.

    A tensor that is reported several times in one execution, by a loop, is kept as it was last.
    """

    def __init__(self, trt: Any, cuda: Cuda, way: CaptureWay) -> None:
        self._trt = trt
        self._cuda = cuda
        self._way = way
        self._heard: dict[str, Array] = {}
        self._failure: Exception | None = None
        self._callback = _callback(trt, self)

    def attach(self, context: Any) -> None:
        """See Listener.attach."""
        context.set_debug_listener(self._callback)
        if self._way is CaptureWay.UNFUSED:
            context.unfused_tensors_debug_state = True
        else:
            context.set_all_tensors_debug_state(True)

    def collect(self) -> Mapping[str, Array]:
        """See Listener.collect."""
        heard, failure = self._heard, self._failure
        self._heard, self._failure = {}, None
        if failure is not None:
            raise failure
        return heard

    def hear(self, address: int, location: Any, data_type: Any, shape: Any, name: str) -> None:
        """Take one tensor; never raises."""
        try:
            dtype = numpy_type(data_type)
            if dtype is None:
                return
            axes = tuple(shape)
            size = math.prod(axes) * dtype.itemsize
            # The address may be the host's: a copy from the device would be an invalid argument.
            if location == self._trt.TensorLocation.HOST:
                data = np.frombuffer(ctypes.string_at(address, size), np.uint8)
            else:
                data = self._cuda.read(address, size)
            values = data.view(dtype).reshape(axes)
            self._heard[name] = values.astype(given_type(dtype), copy=False)
        except Exception as error:
            self._failure = error


def _callback(trt: Any, listener: DebugListener) -> Any:
    class Callback(trt.IDebugListener):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IDebugListener.__init__(self)

        def process_debug_tensor(
            self, addr: int, location: Any, type: Any, shape: Any, name: str, stream: int
        ) -> bool:
            listener.hear(addr, location, type, shape, name)
            return True

    return Callback()
