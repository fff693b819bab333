"""A GPU that is the host's own memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from qdebug.backends.tensorrt.execute.cuda import Bytes, DeviceMemoryError, Event


class FakeCuda:
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

    def allocate_host(self, size: int) -> _Memory:
        """See Cuda.allocate_host."""
        return _Memory(None, size)

    def stream(self) -> _Stream:
        """See Cuda.stream."""
        return _Stream()

    def event(self) -> Event:
        """See Cuda.event."""
        return _Event()

    def read(self, address: int, size: int) -> Bytes:
        """See Cuda.read."""
        return np.frombuffer(ctypes.string_at(address, size), np.uint8)

    def free_bytes(self) -> int:
        """See Cuda.free_bytes."""
        return self.limit_bytes - self.used_bytes


class _Memory:
    def __init__(self, cuda: FakeCuda | None, size: int) -> None:
        self.array = np.full(max(size, 1), 0xAB, np.uint8)
        self.address = int(self.array.ctypes.data)
        self._cuda, self._size = cuda, size
        if cuda is not None:
            cuda.used_bytes += size

    def free(self) -> None:
        if self._cuda is not None:
            self._cuda.used_bytes -= self._size
        self._cuda = None


class _Stream:
    handle = 1

    def upload(self, address: int, source: Any, size: int) -> None:
        ctypes.memmove(address, source.address, size)

    def download(self, target: Any, address: int, size: int) -> None:
        ctypes.memmove(target.address, address, size)

    def record(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Event:
    def elapsed_ms(self, earlier: Event) -> float:
        return 1.0
