"""The temporary file a run is written to, until it is whole and takes the place of the target."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import re
import resource
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from qdebug.errors import StoreError
from qdebug.outputfiles import PartialFile, being_written
from qdebug.wording import option

_FULL = {errno.ENOSPC, errno.EDQUOT}
_ATTEMPTS, _LONGEST_WAIT_S = 4, 0.05


class PartialRun(PartialFile):
    """A run file that is being written; a second run to the same target is refused.

    HDF5's own locking must be off: it would conflict with the lock on the file.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        """Check the target, and create the temporary file.

        Raises:
            StoreError: the target exists and `overwrite` is False, its directory is missing or
                not writable, or another run is writing it.
        """
        _check_target(target, overwrite)
        self._overwrite = overwrite
        try:
            super().__init__(target)
            self._wait_for_others(target)
        except OSError as error:
            raise StoreError(
                f"{target}: cannot be written ({error.strerror}).",
                _elsewhere(),
                code="QD-STORE-OUTPUT-PATH",
            ) from error

    def _wait_for_others(self, target: Path) -> None:
        """Of two runs that begin at once, one goes on."""
        for _ in range(_ATTEMPTS):
            if not being_written(self.target, own=self.path):
                return
            self.discard()
            time.sleep(random.uniform(0, _LONGEST_WAIT_S))
            super().__init__(target)
        self.discard()
        raise StoreError(
            f"{target}: another run is writing it now.",
            f"Wait for it to end, or choose another path with {option('output')}.",
            code="QD-STORE-BUSY",
        )

    def size_bytes(self) -> int:
        """How large the temporary file is."""
        return os.fstat(self.fd).st_size

    def free_bytes(self) -> int:
        """How much the file system of the target has left."""
        return shutil.disk_usage(self.path.parent).free

    def release_memory(self) -> None:
        """Start writing what only the page cache has; drop what is on the disk already.

        Memory that was never used before can cost more than the disk: on a virtual machine a
        large file was written at 0.4 GB/s into a growing page cache, and at 2 GB/s this way.
        """
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it is only advice; fsync() reports what failed
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def finish(self) -> None:
        """Publish the file once it is on the disk.

        Raises:
            OSError: the disk refused; the temporary file is still there.
        """
        os.fsync(self.fd)
        self.publish(force=self._overwrite)
        self._close()
        # Makes the new name survive a power loss; not every file system offers it.
        with contextlib.suppress(OSError):
            directory = os.open(self.target.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)


def _check_target(target: Path, overwrite: bool) -> None:
    final = Path(os.path.realpath(target))
    parent = final.parent
    if not parent.is_dir():
        raise StoreError(
            f"{target}: there is no directory {parent}.",
            f"Run `mkdir -p {parent}`, or choose another path with {option('output')}.",
            code="QD-STORE-OUTPUT-PATH",
        )
    try:
        mode = final.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise StoreError(
            f"{target}: exists and is not a regular file.",
            _elsewhere(),
            code="QD-STORE-OUTPUT-PATH",
        )
    if not overwrite:
        raise _exists(target)


def _exists(target: Path) -> StoreError:
    return StoreError(
        f"{target}: already exists.",
        f"Replace it with {option('force')}, or choose another path with {option('output')}.",
        code="QD-STORE-OUTPUT-EXISTS",
    )


def errno_of(error: BaseException) -> int | None:
    """The system's error number; HDF5 has it only in the text when closing a file fails."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"errno = (\d+)", str(error))):
        number = int(found.group(1))
    return number


@dataclass(frozen=True)
class SizeNeeded:
    """How large a run file would be, in bytes: as far as is known ahead (0: nothing), and as far as
    it was written."""

    expected: int
    written: int = 0

    def __str__(self) -> str:
        if self.expected > self.written:
            return f"about {_readable(self.expected)}"
        return f"more than {_readable(self.written)}"


def largest_file() -> float:
    """How large a file this process may write, in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return math.inf if limit == resource.RLIM_INFINITY else limit


def write_error(target: Path, error: BaseException, needed: SizeNeeded, free: int) -> StoreError:
    """The message for a write that failed.

    Args:
        free: bytes the disk has for it, once the unfinished file is gone.
    """
    number = errno_of(error)
    if number == errno.EEXIST:
        return _exists(target)
    if number in _FULL:
        return disk_full(target, needed, free)
    if number == errno.EFBIG:
        limit = largest_file()
        allowed = f" of {_readable(limit)}" if math.isfinite(limit) else ""
        return StoreError(
            f"{target}: the run file needs {needed}, beyond the limit{allowed} for one file.",
            f"Raise `ulimit -f`, or {_keep_less()}.",
            code="QD-STORE-FILE-LIMIT",
        )
    reason = os.strerror(number) if number else (str(error).splitlines() or ["unknown"])[0]
    return StoreError(
        f"{target}: writing the run file failed ({reason}).",
        f"Check the disk, or choose another path with {option('output')}.",
        code="QD-STORE-OUTPUT-PATH",
    )


def disk_full(target: Path, needed: SizeNeeded, free: int) -> StoreError:
    """The message for a disk that cannot hold the run file, of which `free` bytes are free."""
    return StoreError(
        f"{target}: the disk is full: the run file needs {needed}; {_readable(free)} available.",
        f"Choose a path on another disk with {option('output')}, or {_keep_less()}.",
        code="QD-STORE-DISK-FULL",
    )


def _elsewhere() -> str:
    return f"Choose another path with {option('output')}."


def _keep_less() -> str:
    return f"keep less ({option('keep', 'worst:8')}, {option('keep', 'none')})"


def _readable(count: float) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
