"""Files that the user gives: opened only where they are files.

A pipe that nobody writes to would hold the program up for ever, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
"""How a run file begins."""

_WORDS = (
    (stat.S_ISFIFO, "it is a pipe, not a file"),
    (stat.S_ISSOCK, "it is a socket, not a file"),
    (stat.S_ISCHR, "it is a device, not a file"),
    (stat.S_ISBLK, "it is a device, not a file"),
)


class NotAFileError(OSError):
    """A pipe, a device or a socket; `strerror` says which."""


def open_file(path: str | Path) -> BufferedReader:
    """Open a file to read it.

    Raises:
        IsADirectoryError: it is a directory.
        NotAFileError: it is something else, or no file can have this name.
        OSError: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block here
    except ValueError as error:  # a zero byte
        raise NotAFileError(errno.EINVAL, "no file can have this name", str(path)) from error
    try:
        _check(os.fstat(fd).st_mode, path)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "rb")


def check_file(path: str | Path) -> None:
    """Make sure that other libraries may open `path`, a file or a directory.

    Raises:
        NotAFileError: it is something else.
        OSError: there is nothing, or it may not be looked at.
    """
    mode = Path(path).stat().st_mode
    if not stat.S_ISDIR(mode):
        _check(mode, path)


def read_bytes(path: str | Path) -> bytes:
    """What is in a file.

    Raises:
        OSError: as of `open_file`, or it cannot be read.
    """
    with open_file(path) as file:
        return file.read()


def read_text(path: str | Path) -> str:
    """The UTF-8 text in a file; ends of lines are line feeds.

    Raises:
        OSError: as of `open_file`, or it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _check(mode: int, path: str | Path) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    words = next((words for is_one, words in _WORDS if is_one(mode)), "it is not a file")
    raise NotAFileError(errno.EINVAL, words, str(path))
