"""What HDF5 writes a run file to: a file that never refuses.

HDF5 crashes the process where it cannot write out what it holds, when a file is closed at the
latest. So what the disk refuses is kept in memory, the error is remembered for those who write, and
HDF5 closes a file that is then thrown away.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any


class Sink:
    """The file object of an h5py file; see the module. For one thread at a time.

    Attributes:
        error: what the disk said first; None as long as it took everything.
        size: of the file, what the disk refused included; in bytes.
    """

    def __init__(self, fd: int) -> None:
        """Write to the file `fd`, which stays the caller's."""
        self.error: OSError | None = None
        self._fd = fd
        self._at = 0
        self.size = os.fstat(fd).st_size
        self._refused: list[tuple[int, bytes]] = []

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset from the start, or from the end."""
        self._at = offset + (self.size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        """Where the next write goes."""
        return self._at

    def write(self, data: Any) -> int:
        """All of it, to the disk or else to memory."""
        view, at = memoryview(data), self._at
        self._at += view.nbytes
        self.size = max(self.size, self._at)
        try:
            while view and self._is_taking:
                done = os.pwrite(self._fd, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            self.error = error
        if view:
            self._refused.append((at, bytes(view)))
        return len(data)

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`; beyond the end with zeros."""
        view, start = memoryview(buffer).cast("B"), self._at
        found = b""
        with suppress(OSError):
            found = os.pread(self._fd, view.nbytes, start)
        view[:] = found.ljust(view.nbytes, b"\0")
        for at, data in self._refused:
            low, high = max(at, start), min(at + len(data), start + view.nbytes)
            if low < high:
                view[low - start : high - start] = data[low - at : high - at]
        self._at += view.nbytes
        return view.nbytes

    def read(self, size: int) -> bytes:
        """The next bytes."""
        data = bytearray(size)
        self.readinto(data)
        return bytes(data)

    def truncate(self, size: int) -> int:
        """Make the file so long."""
        self.size = size
        if self._is_taking:
            try:
                os.ftruncate(self._fd, size)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """There is no buffer."""

    def leave(self) -> None:
        """Let go of the file: HDF5 may keep this object longer than the file descriptor lives."""
        self._fd = -1

    @property
    def _is_taking(self) -> bool:
        return self._fd >= 0 and self.error is None
