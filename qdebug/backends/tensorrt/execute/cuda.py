"""The small part of CUDA that executing an engine takes, through pycuda: memory, streams, events.

Everything works in the GPU's primary context, which is pushed for the length of a `with` block, so
any thread can call. pycuda is imported on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.backends.tensorrt.execute.device import find_device
from qdebug.errors import BackendError, UsageError
from qdebug.wording import option

Bytes = npt.NDArray[np.uint8]
MEMORY_HINT = "Run fewer samples at once (the batch size), or capture fewer tensors."


class DeviceMemoryError(BackendError):
    """The GPU has not enough memory left."""


class Cuda:
    """A GPU, through pycuda. All of it is called inside `with cuda.current()`."""

    def __init__(self, driver: Any) -> None:
        """Of the first GPU; `driver` is the module of pycuda, initialized."""
        self._driver = driver
        self._context = driver.Device(0).retain_primary_context()

    @contextmanager
    def current(self) -> Iterator[None]:
        """The GPU is this thread's, and its errors become BackendErrors.

        Raises:
            BackendError: CUDA failed; DeviceMemoryError where there is no room.
        """
        try:
            self._context.push()
            try:
                yield
            finally:
                self._driver.Context.pop()
        except self._driver.MemoryError as error:
            raise DeviceMemoryError(
                "the GPU has no memory left", MEMORY_HINT, code="QD-BACKEND-MEMORY"
            ) from error
        except self._driver.Error as error:
            raise BackendError(f"CUDA failed: {error}", code="QD-BACKEND-EXECUTE") from error

    def allocate(self, size: int) -> Any:
        """At least one byte on the GPU: an object that is its address as an int, with `free()`."""
        return self._driver.mem_alloc(max(size, 1))

    def allocate_host(self, size: int) -> Bytes:
        """Page-locked memory of at least one byte, which the GPU reads and writes by itself."""
        found: Bytes = self._driver.pagelocked_empty(max(size, 1), np.uint8)
        return found

    def stream(self) -> Any:
        """A new stream, with `handle` and `synchronize()`. Forget it inside `current()` too:
        elsewhere it could not be freed."""
        return self._driver.Stream()

    def event(self) -> Any:
        """A new event, with `record(stream)` and `time_since(event)` in ms. See `stream`."""
        return self._driver.Event()

    def upload(self, address: int, source: Bytes, stream: Any) -> None:
        """Start to copy `source`, which is page-locked, to the GPU."""
        if source.size:
            self._driver.memcpy_htod_async(address, source, stream)

    def download(self, target: Bytes, address: int, stream: Any) -> None:
        """Start to copy from the GPU to `target`, which is page-locked."""
        if target.size:
            self._driver.memcpy_dtoh_async(target, address, stream)

    def read(self, address: int, size: int) -> Bytes:
        """What lies at an address of the GPU once everything given to it is done."""
        found = np.empty(size, np.uint8)
        self._driver.Context.synchronize()
        if size:
            self._driver.memcpy_dtoh(found, address)
        return found


@cache
def open_cuda() -> Cuda:
    """The first GPU, opened once per process.

    Raises:
        UsageError: pycuda is not installed.
        BackendError: there is no GPU, or it does not answer.
    """
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
        return Cuda(driver)
    except driver.Error as error:
        raise BackendError(
            f"the GPU ({device.name}) does not answer: {error}", code="QD-BACKEND-NO-GPU"
        ) from error
