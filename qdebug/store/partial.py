"""The temporary file a run is written to, until it is whole and takes the place of the target."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path

from qdebug.errors import StoreError
from qdebug.wording import option

_FULL = {errno.ENOSPC, errno.EDQUOT}
_BUSY = {errno.EAGAIN, errno.EACCES}


def partial_path(target: str | Path) -> Path:
    """Where a run is written until it is whole."""
    final = Path(os.path.realpath(target))
    return final.with_name(f".{final.name}.partial")


def being_written(target: str | Path) -> bool:
    """Whether a run is being written to `target` right now: what a killed one left is not."""
    try:
        fd = os.open(partial_path(target), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    finally:
        os.close(fd)
    return False


class PartialFile:
    """Owns `.NAME.partial` beside the target, from construction to publish() or discard().

    The lock on it ends with the process, so what a killed run left behind is taken over, and a
    second run to the same target is refused. HDF5's own locking must be off: it would conflict.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        """Check the target, and create the temporary file.

        Raises:
            StoreError: the target exists and `overwrite` is False, its directory is missing or
                not writable, or another run is writing it.
        """
        self.target = target
        # Through a link, replace the file it leads to, not the link.
        self._final = Path(os.path.realpath(target))
        self._check_target(overwrite)
        self.path = partial_path(self._final)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(
                f"{target}: cannot be written ({error.strerror}).",
                _elsewhere(),
                code="QD-STORE-OUTPUT-PATH",
            ) from error
        self._lock()

    def _check_target(self, overwrite: bool) -> None:
        parent = self._final.parent
        if not parent.is_dir():
            raise StoreError(
                f"{self.target}: there is no directory {parent}.",
                f"Run `mkdir -p {parent}`, or choose another path with {option('output')}.",
                code="QD-STORE-OUTPUT-PATH",
            )
        try:
            mode = self._final.stat().st_mode
        except OSError:
            return
        if not stat.S_ISREG(mode):
            raise StoreError(
                f"{self.target}: exists and is not a regular file.",
                _elsewhere(),
                code="QD-STORE-OUTPUT-PATH",
            )
        if not overwrite:
            raise StoreError(
                f"{self.target}: already exists.",
                f"Replace it with {option('force')}, or choose another path with"
                f" {option('output')}.",
                code="QD-STORE-OUTPUT-EXISTS",
            )

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks; do without one there.
            if error.errno in _BUSY:
                os.close(self._fd)
                raise StoreError(
                    f"{self.target}: another run is writing it now.",
                    f"Wait for it to end, or choose another path with {option('output')}.",
                    code="QD-STORE-BUSY",
                ) from error

    def size_bytes(self) -> int:
        """How large the temporary file is."""
        return os.fstat(self._fd).st_size

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
                os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def publish(self) -> None:
        """Put the temporary file in the target's place, in one step, once it is on the disk.

        Raises:
            OSError: the disk refused; the temporary file is still there.
        """
        os.fsync(self._fd)
        self.path.replace(self._final)
        self._close()
        # Makes the new name survive a power loss; not every file system offers it.
        with contextlib.suppress(OSError):
            directory = os.open(self._final.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def empty(self) -> None:
        """Give back the space, so that a full disk does not stop HDF5 from closing the file."""
        if self._is_here():
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)

    def discard(self) -> None:
        """Remove the temporary file; the target stays as it was."""
        if self._is_here():
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._close()

    def _is_here(self) -> bool:
        """Whether the file is still under its temporary name: an interrupt may come in publish()
        just after it took the target's place, and must not destroy it there.
        """
        try:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), self.path.stat())
        except OSError:
            return False

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def errno_of(error: BaseException) -> int | None:
    """The system's error number; HDF5 has it only in the text when closing a file fails."""
    number = getattr(error, "errno", None)
    if number is None and (found := re.search(r"errno = (\d+)", str(error))):
        number = int(found.group(1))
    return number


def write_error(target: Path, error: BaseException, needed: int, free: int) -> StoreError:
    """The message for a write that failed.

    Args:
        needed: estimated size of the whole file in bytes, 0 when unknown.
        free: bytes the disk has for it, once the unfinished file is gone.
    """
    number = errno_of(error)
    if number in _FULL:
        return disk_full(target, needed, free)
    if number == errno.EFBIG:
        return StoreError(
            f"{target}: the run file exceeds the largest file allowed here"
            f" (it needs {_about(needed)}).",
            f"Raise `ulimit -f`, or {_keep_less()}.",
            code="QD-STORE-FILE-LIMIT",
        )
    reason = os.strerror(number) if number else str(error).splitlines()[0]
    return StoreError(
        f"{target}: writing the run file failed ({reason}).",
        f"Check the disk, or choose another path with {option('output')}.",
        code="QD-STORE-OUTPUT-PATH",
    )


def disk_full(target: Path, needed: int, free: int) -> StoreError:
    """The message for a disk that cannot hold the run file; sizes in bytes."""
    return StoreError(
        f"{target}: the disk is full: the run file needs {_about(needed)};"
        f" {_readable(free)} available.",
        f"Choose a path on another disk with {option('output')}, or {_keep_less()}.",
        code="QD-STORE-DISK-FULL",
    )


def _elsewhere() -> str:
    return f"Choose another path with {option('output')}."


def _keep_less() -> str:
    return f"keep less ({option('keep', 'worst:8')}, {option('keep', 'none')})"


def _about(needed: int) -> str:
    return f"about {_readable(needed)}" if needed else "more"


def _readable(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
