"""A place to execute an engine: a context, a stream, and buffers that grow as needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from qdebug.backends.tensorrt.execute.cuda import Bytes, Cuda
from qdebug.backends.tensorrt.execute.runtime import (
    Contexts,
    LoadedEngine,
    Port,
    Shape,
    byte_count,
    failure,
    given_type,
)
from qdebug.errors import BackendError
from qdebug.types import Array, Feeds

_WIDEST = 8
"""Bytes of the widest element there is."""


class Listener(Protocol):
    """Receives tensors while the engine runs; see observe/debug.py."""

    def attach(self, context: Any) -> None:
        """Listen to a `trt.IExecutionContext`."""
        ...

    def collect(self) -> Mapping[str, Array]:
        """What was received since the last call, by name.

        Raises:
            QdebugError: a tensor could not be copied.
        """
        ...


class _Buffer:
    """The memory of one input or output, on the host and, unless it lives there, on the GPU."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._device: Any = None
        self._host: Bytes | None = None

    def grow(self, size: int, on_host: bool) -> None:
        """Room for `size` bytes; what was there is lost."""
        if self._host is not None and size <= self._host.size:
            return
        self.free()
        self._host = self._cuda.allocate_host(size)
        if not on_host:
            self._device = self._cuda.allocate(size)

    def array(self, shape: Shape, dtype: np.dtype[np.generic]) -> Array:
        """The host's side as an array that shares its memory."""
        assert self._host is not None
        return self._host[: byte_count(shape, dtype)].view(dtype).reshape(shape)

    @property
    def address(self) -> int:
        """What TensorRT is told."""
        assert self._host is not None
        return int(self._host.ctypes.data if self._device is None else self._device)

    def upload(self, size: int, stream: Any) -> None:
        """Start to copy the first `size` bytes to the GPU, unless they live on the host."""
        if self._device is not None and self._host is not None:
            self._cuda.upload(self.address, self._host[:size], stream)

    def download(self, size: int, stream: Any) -> None:
        """Start to copy the first `size` bytes back, unless they live on the host."""
        if self._device is not None and self._host is not None:
            self._cuda.download(self._host[:size], self.address, stream)

    def free(self) -> None:
        """Give it back; doing so twice does nothing."""
        if self._device is not None:
            self._device.free()
        self._device = self._host = None


class Slot:
    """An engine's place to run. Not for two threads at once."""

    def __init__(
        self, engine: LoadedEngine, contexts: Contexts, listener: Listener | None = None
    ) -> None:
        """
        Raises:
            BackendError: no memory on the GPU, or TensorRT refused.
        """
        self._engine = engine
        self._listener = listener
        self._buffers = {p.name: _Buffer(engine.cuda) for p in (*engine.inputs, *engine.outputs)}
        with engine.cuda.current(), engine.library.logs.collecting() as messages:
            self.context = contexts.create()
            if self.context is None:
                raise failure(engine.library, "prepare the engine for execution", messages)
            self._stream = engine.cuda.stream()
            if listener is not None:
                listener.attach(self.context)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """Execute once: new arrays of the outputs and of what the listener heard.

        Raises:
            BackendError: see Session.run.
        """
        self._check(feeds)
        with self._engine.cuda.current(), self._engine.library.logs.collecting() as messages:
            self._set_inputs(feeds)
            shapes = self._output_shapes()
            self._set_outputs(shapes)
            for port in self._engine.inputs:
                self._buffers[port.name].upload(feeds[port.name].nbytes, self._stream)
            self._execute(messages)
            for port in self._readable():
                assert port.dtype is not None
                size = byte_count(shapes[port.name], port.dtype)
                self._buffers[port.name].download(size, self._stream)
            self._stream.synchronize()
            found = self._outputs(shapes)
            if self._listener is not None:
                found.update(self._listener.collect())
        return found

    def execute_ms(self, feeds: Feeds, rounds: int) -> list[float]:
        """GPU time of `rounds` executions of the same inputs, without copies."""
        self.run(feeds)
        durations = []
        cuda = self._engine.cuda
        with cuda.current(), self._engine.library.logs.collecting() as messages:
            before, after = cuda.event(), cuda.event()
            for _ in range(rounds):
                before.record(self._stream)
                self._execute(messages)
                after.record(self._stream)
                self._stream.synchronize()
                durations.append(float(after.time_since(before)))
            del before, after
        return durations

    def close(self) -> None:
        """Free everything."""
        with self._engine.cuda.current(), ExitStack() as stack:
            for buffer in self._buffers.values():
                stack.callback(buffer.free)
            self.context = None
            del self._stream

    def _check(self, feeds: Feeds) -> None:
        for port in self._engine.inputs:
            if port.name not in feeds:
                raise BackendError(f"no feed for input '{port.name}'", code="QD-BACKEND-FEED")
            fed = np.asarray(feeds[port.name])
            if fed.dtype != port.dtype:
                raise BackendError(
                    f"input '{port.name}' takes {port.dtype or port.type_name}, not {fed.dtype}",
                    code="QD-BACKEND-FEED",
                )
            assert port.range is not None
            low, high = port.range
            inside = len(fed.shape) == len(low) and all(
                a <= n <= b for a, n, b in zip(low, fed.shape, high, strict=True)
            )
            if not inside:
                wanted = f"{list(low)}" if low == high else f"{list(low)} to {list(high)}"
                raise BackendError(
                    f"input '{port.name}' has shape {list(fed.shape)}; the engine was built for "
                    f"{wanted}",
                    code="QD-BACKEND-FEED",
                )

    def _set_inputs(self, feeds: Feeds) -> None:
        for port in self._engine.inputs:
            fed = feeds[port.name]
            buffer = self._buffers[port.name]
            assert port.dtype is not None
            buffer.grow(fed.nbytes, port.on_host)
            buffer.array(fed.shape, port.dtype)[...] = fed
            self.context.set_input_shape(port.name, tuple(fed.shape))
            self.context.set_tensor_address(port.name, buffer.address)

    def _output_shapes(self) -> dict[str, Shape]:
        lacking = self.context.infer_shapes()
        if lacking:
            raise BackendError(
                f"the engine was not given {', '.join(map(repr, lacking))}", code="QD-BACKEND-FEED"
            )
        shapes = {p.name: tuple(self.context.get_tensor_shape(p.name)) for p in self._readable()}
        unknown = [name for name, shape in shapes.items() if min(shape, default=0) < 0]
        if unknown:
            raise BackendError(
                f"the shape of '{unknown[0]}' is known only after execution: "
                "qdebug cannot read such an output of an engine",
                code="QD-BACKEND-OUTPUT-SHAPE",
            )
        return shapes

    def _readable(self) -> list[Port]:
        return [p for p in self._engine.outputs if p.dtype is not None]

    def _set_outputs(self, shapes: Mapping[str, Shape]) -> None:
        for port in self._engine.outputs:
            if port.dtype is not None:
                size = byte_count(shapes[port.name], port.dtype)
            else:  # not read, but TensorRT must have somewhere to write it
                size = math.prod(self.context.get_tensor_shape(port.name)) * _WIDEST
            buffer = self._buffers[port.name]
            buffer.grow(size, port.on_host)
            self.context.set_tensor_address(port.name, buffer.address)

    def _execute(self, messages: Any) -> None:
        if not self.context.execute_async_v3(int(self._stream.handle)):
            raise failure(self._engine.library, "execute the engine", messages)

    def _outputs(self, shapes: Mapping[str, Shape]) -> dict[str, Array]:
        found = {}
        for port in self._readable():
            assert port.dtype is not None
            array = self._buffers[port.name].array(shapes[port.name], port.dtype)
            found[port.name] = array.astype(given_type(port.dtype))
        return found
