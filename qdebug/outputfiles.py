"""Files for the user (JSON, plans, engines): checked before the work starts, and written whole or
not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NoReturn

from qdebug.errors import StoreError, UsageError
from qdebug.wording import option


def check_writable(path: str, flag: str) -> None:
    """Find out before a long run whether `path` can be written after it.

    Raises:
        StoreError: it is a directory, or its directory is missing or takes no files.
    """
    if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises on a name that is too long)
        raise StoreError(
            f"{flag}: {path} is a directory",
            "Give the path of a file.",
            code="QD-STORE-OUTPUT-PATH",
        )
    if _is_special(path):
        return
    directory = Path(os.path.realpath(path)).parent
    try:
        PartialFile(path).discard()
    except FileNotFoundError:
        raise StoreError(
            f"{flag}: {path} cannot be written: there is no directory {directory}",
            f"Run 'mkdir -p {directory}', or give another path.",
            code="QD-STORE-OUTPUT-PATH",
        ) from None
    except OSError as error:
        raise _refused(path, flag, error) from error


def check_new(path: str, flag: str, *, force: bool) -> None:
    """As `check_writable`, and refuse to replace a file unless `force`.

    Raises:
        StoreError: it exists, or cannot be written.
    """
    check_writable(path, flag)
    if os.path.isfile(path) and not force:  # noqa: PTH113 (as above)
        raise output_exists(path, flag)


def output_exists(path: str, flag: str) -> StoreError:
    """The error of a file that exists and may not be replaced."""
    return StoreError(
        f"{flag}: {path} exists",
        f"Give {option('force')} to replace it.",
        code="QD-STORE-OUTPUT-EXISTS",
    )


def make_folder(path: str, names: Iterable[str], flag: str, *, force: bool) -> None:
    """Make a folder for files called `names`, and refuse to replace one unless `force`.

    Raises:
        StoreError: one exists, or it cannot be made.
    """
    folder = Path(path)
    for name in names:
        if not force and os.path.lexists(folder / name):
            raise output_exists(str(folder / name), flag)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path, flag, error) from error


def write_text(path: str, text: str, flag: str, *, force: bool) -> None:
    """`write_bytes` of `text` in UTF-8."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), flag, force=force)


def write_bytes(path: str, data: bytes, flag: str, *, force: bool) -> None:
    """Write a file in one step: what was there stays until the new one is whole.

    Raises:
        StoreError: it cannot be written, or it exists (another program may have written it since
            it was checked) and `force` is False.
    """
    if not _is_special(path):
        write_all({Path(path): data}, flag, force=force)
        return
    try:
        Path(path).write_bytes(data)  # a device or a pipe is written to, not replaced
    except OSError as error:
        raise _refused(path, flag, error) from error


Content = bytes | Callable[[IO[bytes]], object]
"""What a file holds, or what writes that."""


def write_all(files: Mapping[Path, Content], flag: str, *, force: bool) -> None:
    """Write files that belong together. The first takes its place last: where it is there, so are
    the others.

    Raises:
        StoreError: as of `write_bytes`; where one cannot be filled, none is written.
    """
    path = next(iter(files))
    partials: dict[Path, PartialFile] = {}
    try:
        for path, data in files.items():
            partials[path] = PartialFile(path)
            partials[path].fill(data)
        for path in reversed(partials):
            partials[path].publish(force=force)
    except FileExistsError as error:
        raise output_exists(str(path), flag) from error
    except OSError as error:
        raise _refused(str(path), flag, error) from error
    finally:
        for each in partials.values():
            each.discard()


def keep(path: Path, data: Content) -> None:
    """Write a file of a cache, whole or not at all; a disk that refuses is no error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():  # of somebody who shares the folder
            path.unlink()
        partial = PartialFile(path)
        try:
            partial.fill(data)
            partial.publish(force=True)
        finally:
            partial.discard()


def check_distinct(outputs: Mapping[str, str | None], inputs: Mapping[str, str | None]) -> None:
    """Refuse to write two things to one file, or over something that is read (--force or not).

    Both map what the user calls it (a flag) to its path.

    Raises:
        UsageError: two of them are one file.
    """
    taken = {os.path.realpath(path): flag for flag, path in inputs.items() if path}
    for flag, path in outputs.items():
        if not path or _is_special(path):
            continue
        other = taken.setdefault(os.path.realpath(path), flag)
        if other != flag:
            raise UsageError(
                f"{flag}: {path} is also {other}",
                f"Give another path for {flag}.",
                code="QD-USAGE-SAME-FILE",
            )


def refuse_temporary(folder: Path, what: str, error: Exception, why: str = "") -> NoReturn:
    """The folder for temporary files takes no more.

    Args:
        what: is lost by that.
        why: the system says so.

    Raises:
        StoreError: always.
    """
    raise StoreError(
        f"{folder}: {what}{why and f': {why}'}",
        "Make room, or let TMPDIR name a folder on a larger disk.",
        code="QD-STORE-TEMPORARY",
    ) from error


@contextmanager
def kept_in(folder: Path, what: str) -> Iterator[None]:
    """Within, `what` is written to a temporary file in `folder`.

    Raises:
        StoreError: it takes no more.
    """
    try:
        yield
    except OSError as error:
        lost = f"{what} cannot be kept in a temporary file"
        refuse_temporary(folder, lost, error, error.strerror or str(error))


class PartialFile:
    """A file beside its target, whose place it takes once it is whole.

    It is locked as long as its process lives. What a killed one left, the next one of the same
    target takes over.
    """

    def __init__(self, target: str | Path) -> None:
        """Create the file.

        Args:
            target: through a link, the file that it leads to is replaced, not the link.

        Raises:
            BlockingIOError: another process is writing it.
            OSError: the system refuses.
        """
        self.target = Path(os.path.realpath(target))
        self.path = _partial_of(self.target)
        self.fd = -1
        while self.fd < 0:
            fd = os.open(self.path, _NEW, 0o666)
            try:
                _lock(fd)
                if _is_at(fd, self.path):  # it was not published before it was locked here
                    os.ftruncate(fd, 0)
                    self.fd = fd
            finally:
                if self.fd < 0:
                    os.close(fd)

    def fill(self, data: Content) -> None:
        """Write the content; a script becomes executable.

        Raises:
            OSError: the disk refuses.
        """
        with os.fdopen(os.dup(self.fd), "wb") as file:
            _ = file.write(data) if isinstance(data, bytes) else data(file)
        if isinstance(data, bytes) and data.startswith(b"#!"):
            os.fchmod(self.fd, 0o755)

    def publish(self, *, force: bool) -> None:
        """Take the target's place, in one step.

        Raises:
            FileExistsError: there is a file and `force` is False.
            OSError: the system refuses; the file is still there under its own name.
        """
        if not force and os.path.lexists(self.target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.path.replace(self.target)

    def discard(self) -> None:
        """Remove the file if it was not published, and close it; may be called again."""
        if self.fd < 0:
            return
        if _is_at(self.fd, self.path):
            with suppress(OSError):
                self.path.unlink()
        fd, self.fd = self.fd, -1
        os.close(fd)


_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _lock(fd: int) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
"""What file systems say that have no locks, as some of a network do not."""


def being_written(target: str | Path) -> bool:
    """Whether a file is being written to `target` right now: what a killed program left is not."""
    try:
        fd = os.open(_partial_of(Path(os.path.realpath(target))), _OLD)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def _partial_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is the one under a name."""
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _is_special(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 (as above)


def _refused(path: str, flag: str, error: OSError) -> StoreError:
    if isinstance(error, BlockingIOError):
        return StoreError(
            f"{flag}: {path} is being written by another run",
            "Wait for it to end, or give another path.",
            code="QD-STORE-BUSY",
        )
    return StoreError(
        f"{flag}: {path} cannot be written: {error.strerror or error}",
        "Give another path.",
        code="QD-STORE-OUTPUT-PATH",
    )
