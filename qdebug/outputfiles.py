"""Files for the user (JSON, plans, engines): checked before the work starts, written whole or not
at all, and never through a link that somebody planted."""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import re
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
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
        raise _no_place(path, directory, flag) from None
    except OSError as error:
        raise _refused(path, flag, error) from error


def _no_place(path: str, directory: Path, flag: str) -> StoreError:
    """The error of a file whose directory is not there, or takes no new files, as /proc does not:
    advises to make it only where it can be made."""
    above = next((p for p in (directory, *directory.parents) if os.path.lexists(p)), Path("/"))
    code = "QD-STORE-OUTPUT-PATH"
    if above == directory:
        return StoreError(
            f"{flag}: {path} cannot be written: {directory} takes no new files",
            "Give a path in another directory.",
            code=code,
        )
    try:
        PartialFile(above / directory.name).discard()
    except OSError:
        hint = "Give another path."
    else:
        hint = f"Run 'mkdir -p {directory}', or give another path."
    return StoreError(
        f"{flag}: {path} cannot be written: there is no directory {directory}", hint, code=code
    )


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
    """Write files that belong together: all or none, also where the program is interrupted.

    The first is written last: where it is there, so are the others, even after a kill.

    Raises:
        StoreError: as of `write_bytes`; those that were there before stay then.
    """
    path = next(iter(files))
    partials: dict[Path, PartialFile] = {}
    try:
        for path, data in files.items():
            partials[path] = PartialFile(path)
            _fill(partials[path], data)
        with uninterrupted():
            for path in reversed(partials):
                partials[path].publish(force=force)
    except OSError as error:
        for each in partials.values():
            each.withdraw()
        if isinstance(error, FileExistsError):
            raise output_exists(str(path), flag) from error
        raise _refused(str(path), flag, error) from error
    finally:
        for each in partials.values():
            each.discard()


def _fill(partial: PartialFile, data: Content) -> None:
    if isinstance(data, bytes):
        partial.write(data)
        return
    with os.fdopen(os.dup(partial.fd), "wb") as file:
        data(file)


def keep(path: Path, data: Content) -> None:
    """Write a file of a cache, whole or not at all; a disk that refuses is no error. What killed
    programs left in its folder is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clear(path.parent)
        if path.is_symlink():  # of somebody who shares the folder
            path.unlink()
        partial = PartialFile(path)
    except OSError:
        return
    try:
        _fill(partial, data)
        partial.publish(force=True)
    except OSError:
        pass
    finally:
        partial.discard()


@cache
def _clear(folder: Path) -> None:
    """Remove the partial files that killed programs left in a folder; once in a process."""
    for path, busy in _unfinished(folder, _PARTIAL):
        if not busy:
            path.unlink(missing_ok=True)


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


def temporary_folder() -> Path:
    """The system's folder for temporary files.

    Raises:
        StoreError: none takes files, or the one that the environment names does not (Python's
            `tempfile` would pass over it without a word).
    """
    name = next((n for n in ("TMPDIR", "TEMP", "TMP") if os.environ.get(n)), "TMPDIR")
    wanted = os.environ.get(name)
    if not wanted or (os.path.isdir(wanted) and os.access(wanted, os.W_OK | os.X_OK)):  # noqa: PTH112 (as above)
        with suppress(FileNotFoundError):
            return Path(tempfile.gettempdir())
    raise StoreError(
        f"{name}: {wanted} is not a folder that takes files"
        if wanted
        else "there is no folder that takes temporary files",
        f"Let {name} name one.",
        code="QD-STORE-TEMPORARY",
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

    Its name cannot be guessed and it is created anew, so that nobody can have planted a link there.
    It is locked as long as its process lives: so what a killed one left is known, and the next
    PartialFile of the same target removes it.
    """

    def __init__(self, target: str | Path) -> None:
        """Create the file.

        Args:
            target: through a link, the file that it leads to is replaced, not the link.

        Raises:
            OSError: the system refuses.
        """
        self.target = Path(os.path.realpath(target))
        remove_leftovers(self.target)
        self._published = self._replaced = False
        self.fd = -1
        while self.fd < 0:
            token = secrets.token_hex(_TOKEN_BYTES)
            self.path = self.target.with_name(f".{self.target.name}.{token}.partial")
            with suppress(FileExistsError):
                self.fd = os.open(self.path, _NEW, 0o666)
                if not (_lock(self.fd) and self._is_here()):
                    self._close()  # somebody took it for a leftover before it was locked

    def write(self, data: bytes) -> None:
        """Append; a script becomes executable.

        Raises:
            OSError: the disk refuses.
        """
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]
        if data.startswith(b"#!"):
            os.fchmod(self.fd, 0o755)

    def publish(self, *, force: bool) -> None:
        """Take the target's place, in one step.

        Raises:
            FileExistsError: there is a file and `force` is False.
            OSError: the system refuses; the file is still there under its own name.
        """
        self._replaced = os.path.lexists(self.target)
        if force:
            self.path.replace(self.target)
        else:
            self._publish_new()
        self._published = True

    def _publish_new(self) -> None:
        try:
            os.link(self.path, self.target, follow_symlinks=False)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if os.path.lexists(self.target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            self.path.replace(self.target)
        else:
            with suppress(OSError):  # discard() tries again
                self.path.unlink()

    def withdraw(self) -> None:
        """Remove what was published, unless it replaced something: that is gone."""
        if self._published and not self._replaced:
            with suppress(OSError):
                self.target.unlink()

    def discard(self) -> None:
        """Remove the file if it was not published, and close it."""
        if self._is_here():
            with suppress(OSError):
                self.path.unlink()
        self._close()

    def _is_here(self) -> bool:
        """Whether the file is still under its own name."""
        try:
            return self.fd >= 0 and os.path.samestat(os.fstat(self.fd), self.path.lstat())
        except OSError:
            return False

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_TOKEN_BYTES = 6
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BUSY = {errno.EAGAIN, errno.EACCES}


def being_written(target: str | Path, own: Path | None = None) -> bool:
    """Whether a file is being written to `target` right now, `own` aside: what a killed program
    left is not."""
    final = Path(os.path.realpath(target))
    found = _unfinished(final.parent, _partial_of(final))
    return any(busy for path, busy in found if path != own)


def remove_leftovers(target: Path) -> None:
    """Remove the partial files of `target` that killed programs left."""
    with suppress(OSError):
        for path, busy in _unfinished(target.parent, _partial_of(target)):
            if not busy:
                path.unlink()


_TOKEN = rf"\.[0-9a-f]{{{2 * _TOKEN_BYTES}}}\.partial"
_PARTIAL = re.compile(rf"\..+{_TOKEN}", re.DOTALL)


def _partial_of(target: Path) -> re.Pattern[str]:
    return re.compile(rf"\.{re.escape(target.name)}{_TOKEN}")


def _unfinished(folder: Path, name: re.Pattern[str]) -> Iterator[tuple[Path, bool]]:
    """The partial files in a folder, and whether they are being written."""
    try:
        found = [e for e in os.scandir(folder) if name.fullmatch(e.name)]
    except OSError:
        return
    for entry in found:
        try:
            fd = os.open(entry.path, _OLD)
        except OSError:  # a link that somebody planted, or it is gone
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(entry.path), False
        except OSError as error:
            if error.errno in _BUSY:
                yield Path(entry.path), True
        finally:
            os.close(fd)


@contextmanager
def own_folder(prefix: str, parent: str | Path) -> Iterator[Path]:
    """A new folder, which is removed at the end. It is locked as long as its process lives: so what
    a killed one left is known, and the next with this prefix removes it. A file in it says that it
    is ours: a folder of the user may be called alike.

    Raises:
        OSError: the system refuses.
    """
    _remove_folders(prefix, parent)
    fd = -1
    while fd < 0:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # somebody took it for a leftover before it was locked
            fd = os.open(path, _FOLDER)
            if not (_lock(fd) and path.exists()):
                os.close(fd)
                fd = -1
    try:
        (path / _OURS).touch()
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _remove_folders(prefix: str, parent: str | Path) -> None:
    """Remove the folders of ours that killed programs left."""
    for entry in os.scandir(parent):
        if not entry.name.startswith(prefix):
            continue
        try:
            fd = os.open(entry.path, _FOLDER)
        except OSError:  # a link, or it is gone, or it belongs to somebody else
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.lexists(Path(entry.path) / _OURS):
                    shutil.rmtree(entry.path, ignore_errors=True)
        except OSError:  # in use; or a file system without locks, where nobody can know
            pass
        finally:
            os.close(fd)


_OURS = ".qdebug-temporary"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _lock(fd: int) -> bool:
    """Lock a file that is being written; False where another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in _BUSY  # some network file systems have no locks
    return True


_ENDINGS: list[Callable[[], None]] = []


def at_end(action: Callable[[], None]) -> None:
    """Have something put away when the program ends, also where it is interrupted."""
    _ENDINGS.append(action)
    atexit.register(action)


def put_away() -> None:
    """Do what `at_end` was given, for a program that ends without Python's own ending."""
    for action in _ENDINGS:
        action()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP within, which takes a moment, come after it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return
    caught: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda received, _: caught.append(received))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for received in caught[:1]:
            signal.raise_signal(received)


def _is_special(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 (as above)


def _refused(path: str, flag: str, error: OSError) -> StoreError:
    return StoreError(
        f"{flag}: {path} cannot be written: {error.strerror or error}",
        "Give another path.",
        code="QD-STORE-OUTPUT-PATH",
    )
