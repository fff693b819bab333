"""The small part of CUDA that executing an engine takes, through pycuda: memory, streams, events.

Everything works in the GPU's primary context, which is pushed for the length of a `with` block, so
any thread can call. pycuda is imported on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.errors import BackendError, UsageError
from qdebug.wording import option

Bytes = npt.NDArray[np.uint8]


class DeviceMemoryError(BackendError):
    """The GPU has not enough memory left."""


class DeviceMemory(Protocol):
    """Memory on the GPU."""

    address: int

    def free(self) -> None:
        """Give it back; doing so twice does nothing."""
        ...


class HostMemory(Protocol):
    """Page-locked memory, which the GPU reads and writes by itself: `array` is all of it."""

    address: int
    array: Bytes

    def free(self) -> None:
        """Give it back; `array` must not be used any more."""
        ...


class Event(Protocol):
    """A point in a stream."""

    def elapsed_ms(self, earlier: Event) -> float:
        """Milliseconds of GPU time from `earlier`, once both have passed."""
        ...


class Stream(Protocol):
    """Work that the GPU does in order."""

    handle: int

    def upload(self, address: int, source: HostMemory, size: int) -> None:
        """Start to copy the first `size` bytes of `source` to the GPU."""
        ...

    def download(self, target: HostMemory, address: int, size: int) -> None:
        """Start to copy `size` bytes from the GPU to `target`."""
        ...

    def record(self, event: Event) -> None:
        """Set `event` to the point that the stream has been filled to."""
        ...

    def synchronize(self) -> None:
        """Wait until all of it is done."""
        ...


class Cuda(Protocol):
    """A GPU. All else but `free_bytes` is called inside `with cuda.current()`."""

    def current(self) -> Any:
        """A context manager: the GPU is this thread's, and its errors become BackendErrors."""
        ...

    def allocate(self, size: int) -> DeviceMemory:
        """At least one byte on the GPU.

        Raises:
            DeviceMemoryError: there is no room.
        """
        ...

    def allocate_host(self, size: int) -> HostMemory:
        """Page-locked memory of at least one byte."""
        ...

    def stream(self) -> Stream:
        """A new stream. Forget it inside `current()` too: elsewhere it could not be freed."""
        ...

    def event(self) -> Event:
        """A new event. See `stream`."""
        ...

    def read(self, address: int, size: int) -> Bytes:
        """What lies at an address of the GPU once everything given to it is done."""
        ...

    def free_bytes(self) -> int:
        """The GPU's free memory, in bytes."""
        ...


class PyCuda:
    """The first GPU, through pycuda. See Cuda."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._context = driver.Device(0).retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """See Cuda.current."""
        with _mapped_errors(self._driver):
            self._context.push()
            try:
                yield
            finally:
                self._driver.Context.pop()

    def allocate(self, size: int) -> DeviceMemory:
        """See Cuda.allocate."""
        return _DeviceMemory(self._driver.mem_alloc(max(size, 1)))

    def allocate_host(self, size: int) -> HostMemory:
        """See Cuda.allocate_host."""
        return _HostMemory(self._driver.pagelocked_empty(max(size, 1), np.uint8))

    def stream(self) -> Stream:
        """See Cuda.stream."""
        return _Stream(self._driver)

    def event(self) -> Event:
        """See Cuda.event."""
        return _Event(self._driver.Event())

    def read(self, address: int, size: int) -> Bytes:
        """See Cuda.read."""
        found = np.empty(size, np.uint8)
        self._driver.Context.synchronize()
        if size:
            self._driver.memcpy_dtoh(found, address)
        return found

    def free_bytes(self) -> int:
        """See Cuda.free_bytes."""
        with self.current():
            return int(self._driver.mem_get_info()[0])


class _DeviceMemory:
    def __init__(self, allocation: Any) -> None:
        self._allocation = allocation
        self.address = int(allocation)

    def free(self) -> None:
        if self._allocation is not None:
            self._allocation.free()
            self._allocation = None


class _HostMemory:
    def __init__(self, array: Bytes) -> None:
        self.array = array
        self.address = int(array.ctypes.data)

    def free(self) -> None:
        if self.array.size:
            allocation: Any = self.array.base
            self.array = np.empty(0, np.uint8)
            allocation.free()


class _Stream:
    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._stream = driver.Stream()
        self.handle = int(self._stream.handle)

    def upload(self, address: int, source: HostMemory, size: int) -> None:
        if size:
            self._driver.memcpy_htod_async(address, source.array[:size], self._stream)

    def download(self, target: HostMemory, address: int, size: int) -> None:
        if size:
            self._driver.memcpy_dtoh_async(target.array[:size], address, self._stream)

    def record(self, event: Event) -> None:
        assert isinstance(event, _Event)
        event.raw.record(self._stream)

    def synchronize(self) -> None:
        self._stream.synchronize()


class _Event:
    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def elapsed_ms(self, earlier: Event) -> float:
        assert isinstance(earlier, _Event)
        return float(self.raw.time_since(earlier.raw))


@contextmanager
def _mapped_errors(driver: Any) -> Iterator[None]:
    """The one edge at which pycuda's exceptions become ours."""
    try:
        yield
    except driver.MemoryError as error:
        raise DeviceMemoryError(
            "the GPU has no memory left", MEMORY_HINT, code="QD-BACKEND-MEMORY"
        ) from error
    except driver.Error as error:
        raise BackendError(f"CUDA failed: {error}", code="QD-BACKEND-EXECUTE") from error


MEMORY_HINT = "Run fewer samples at once (the batch size), or capture fewer tensors."

_opened: list[PyCuda] = []
_opening = threading.Lock()


def open_cuda() -> PyCuda:
    """The first GPU, opened once per process.

    Raises:
        UsageError: pycuda is not installed.
        BackendError: there is no GPU, or it does not answer.
    """
    with _opening:
        if not _opened:
            _opened.append(_open())
        return _opened[0]


def _open() -> PyCuda:
    device = find_device()
    if isinstance(device, str):
        raise BackendError(
            f"an engine cannot be executed here: {device}",
            "Without a GPU engines are built and audited only; "
            f"{option('backend', 'simulation')} simulates them.",
            code="QD-BACKEND-NO-GPU",
        )
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise UsageError(
            f"pycuda, with which engines are executed, cannot be loaded: {error}",
            "pip install pycuda (it is compiled: the CUDA toolkit must be installed).",
            code="QD-USAGE-PYCUDA",
        ) from error
    try:
        driver.init()
        return PyCuda(driver)
    except driver.Error as error:
        raise BackendError(
            f"the GPU ({device.name}) does not answer: {error}", code="QD-BACKEND-NO-GPU"
        ) from error
