"""The temporary file a run is written to, until it is whole and takes the place of the target."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
import shutil
import stat
from pathlib import Path

from qdebug.errors import StoreError
from qdebug.outputfiles import PartialFile
from qdebug.wording import option

_LEAST_BYTES = 1 << 20
"""HDF5 crashes the process where a file cannot hold its first 2 kB."""


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
        except BlockingIOError as error:
            raise StoreError(
                f"{target}: another run is writing it now.",
                f"Wait for it to end, or choose another path with {option('output')}.",
                code="QD-STORE-BUSY",
            ) from error
        except OSError as error:
            raise StoreError(
                f"{target}: cannot be written ({error.strerror}).",
                _elsewhere(),
                code="QD-STORE-OUTPUT-PATH",
            ) from error

    def check_space(self, needed: int = _LEAST_BYTES) -> None:
        """See that so many bytes can be written.

        Raises:
            OSError: the disk, or the limit of this process for one file, has not as many.
        """
        if needed > self.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if needed > _largest_file():
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    def size_bytes(self) -> int:
        """How large the temporary file is."""
        return os.fstat(self.fd).st_size

    def free_bytes(self) -> int:
        """How much the file system of the target has for it, what it takes already included."""
        return shutil.disk_usage(self.target.parent).free + self.size_bytes()

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

    def error(self, error: BaseException, expected: int) -> StoreError:
        """The message for a write that failed.

        Args:
            expected: how large the run file would be, in bytes, as far as is known; else 0.
        """
        number, written = _errno_of(error), self.size_bytes()
        needed = f"more than {_readable(written)}"
        if expected > written:
            needed = f"about {_readable(expected)}"
        keep_less = f"keep less ({option('keep', 'worst:8')}, {option('keep', 'none')})"
        if number == errno.EEXIST:
            return _exists(self.target)
        if number in (errno.ENOSPC, errno.EDQUOT):
            free = _readable(self.free_bytes())
            return StoreError(
                f"{self.target}: the disk is full: the run file needs {needed}; {free} available.",
                f"Choose a path on another disk with {option('output')}, or {keep_less}.",
                code="QD-STORE-DISK-FULL",
            )
        if number == errno.EFBIG:
            limit = _readable(_largest_file())
            return StoreError(
                f"{self.target}: the run file needs {needed}, beyond the limit of {limit} for one "
                "file.",
                f"Raise `ulimit -f`, or {keep_less}.",
                code="QD-STORE-FILE-LIMIT",
            )
        reason = os.strerror(number) if number else (str(error).splitlines() or ["unknown"])[0]
        return StoreError(
            f"{self.target}: writing the run file failed ({reason}).",
            f"Check the disk, or choose another path with {option('output')}.",
            code="QD-STORE-OUTPUT-PATH",
        )


def _check_target(target: Path, overwrite: bool) -> None:
    final = Path(os.path.realpath(target))
    if not final.parent.is_dir():
        raise StoreError(
            f"{target}: there is no directory {final.parent}.",
            f"Run `mkdir -p {final.parent}`, or choose another path with {option('output')}.",
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


def _elsewhere() -> str:
    return f"Choose another path with {option('output')}."


def _errno_of(error: BaseException) -> int | None:
    """The system's error number; HDF5 has it only in the text when closing a file fails."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"errno = (\d+)", str(error))):
        number = int(found.group(1))
    return number


def _largest_file() -> float:
    """How large a file this process may write, in bytes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _readable(count: float) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
