"""TensorRT's debug tensors as arrays. Its calls come from C++ that no exception may cross."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from qdebug.run.engine import CaptureWay
from qdebug.run.tensorrt.execute.cuda import Cuda
from qdebug.run.tensorrt.execute.runtime import numpy_type
from qdebug.types import Array


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
            self._heard[name] = data.view(dtype).reshape(axes)
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
