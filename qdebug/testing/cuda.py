"""A GPU that is the host's own memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from qdebug.backends.tensorrt.execute.cuda import Bytes, Cuda, DeviceMemoryError


class FakeCuda(Cuda):
    """See Cuda.

    Attributes:
        limit_bytes: what can be allocated at once.
        used_bytes: what is.
    """

    def __init__(self, limit_bytes: int = 2**30) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    @contextmanager
    def current(self) -> Iterator[None]:
        """See Cuda.current."""
        yield

    def allocate(self, size: int) -> _Memory:
        """See Cuda.allocate."""
        if self.used_bytes + size > self.limit_bytes:
            raise DeviceMemoryError("the GPU has no memory left", code="QD-BACKEND-MEMORY")
        return _Memory(self, size)

    def allocate_host(self, size: int) -> Bytes:
        """See Cuda.allocate_host."""
        return np.full(max(size, 1), 0xAB, np.uint8)

    def stream(self) -> _Passive:
        """See Cuda.stream."""
        return _Passive()

    def event(self) -> _Passive:
        """See Cuda.event."""
        return _Passive()

    def upload(self, address: int, source: Bytes, stream: object) -> None:
        """See Cuda.upload."""
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, target: Bytes, address: int, stream: object) -> None:
        """See Cuda.download."""
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def read(self, address: int, size: int) -> Bytes:
        """See Cuda.read."""
        return np.frombuffer(ctypes.string_at(address, size), np.uint8)


class _Memory:
    def __init__(self, cuda: FakeCuda, size: int) -> None:
        self._array = np.full(max(size, 1), 0xAB, np.uint8)
        self._cuda, self._size = cuda, size
        cuda.used_bytes += size

    def __int__(self) -> int:
        return int(self._array.ctypes.data)

    def free(self) -> None:
        self._cuda.used_bytes -= self._size


class _Passive:
    """A stream on which everything is done at once, or an event in it."""

    handle = 1

    def synchronize(self) -> None:
        pass

    def record(self, stream: object) -> None:
        pass

    def time_since(self, earlier: object) -> float:
        return 1.0
