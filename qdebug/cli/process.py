"""The process that the command line runs in: its signals and its standard streams."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from qdebug.errors import StoreError, UsageError

_received: list[int] = []
"""The signals that came."""


def catch_signals() -> None:
    """From here on SIGTERM, and SIGHUP of a terminal that closes, are a KeyboardInterrupt, so that
    what is half-written is removed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # not where a parent had it ignored
            signal.signal(number, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def signalled() -> bool:
    """Whether a signal came that ends the program."""
    return bool(_received)


def interrupted_code() -> int:
    """The exit code of a program that was interrupted: 128 + the signal."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def check_directory() -> None:
    """Refuse to work in a directory that is gone.

    Raises:
        UsageError: it is.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the working directory cannot be used: {error.strerror}",
            "Change to a directory that exists.",
            code="QD-USAGE-DIRECTORY",
        ) from error


_STDOUT, _STDERR = 1, 2
_results: list[TextIO] = []


@contextmanager
def results_apart() -> Iterator[None]:
    """Within, what is printed goes to the error stream: the standard output, which `output` gives,
    is for the result alone. The user's code and libraries print what they like, also past Python
    (C's printf), and may close what they print to."""
    own = sys.stdout
    try:
        is_output = own.fileno() == _STDOUT
    except (OSError, ValueError):  # in memory, as tests and notebooks have it
        is_output = False
    apart = own
    if is_output:
        own.flush()
        buffering = 1 if own.isatty() else -1
        apart = os.fdopen(os.dup(_STDOUT), "w", buffering, own.encoding, own.errors)
        os.dup2(_STDERR, _STDOUT)
    _results.append(apart)
    sys.stdout = os.fdopen(os.dup(_STDERR), "w", 1, "utf-8", "backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError):
            sys.stdout.close()
        _results.pop()
        sys.stdout = own
        if is_output:
            os.dup2(apart.fileno(), _STDOUT)
            with suppress(OSError):
                apart.close()


def output() -> TextIO:
    """The standard output."""
    return _results[-1] if _results else sys.stdout


@contextmanager
def standard_output() -> Iterator[None]:
    """What is printed to `output` in the block is flushed when it ends; a reader that went away
    (`| head`) is not an error.

    Raises:
        StoreError: the standard output is a file on a full disk, for example.
    """
    try:
        yield
        output().flush()
    except BrokenPipeError:
        discard(output())
    except OSError as error:
        failed = output_error(error)
        raise failed from error


def output_error(error: OSError) -> StoreError:
    """What is said where the standard output took no more, which is discarded from now on."""
    discard(output())
    return StoreError(
        f"the standard output cannot be written: {error.strerror or error}",
        code="QD-STORE-OUTPUT",
    )


def discard(stream: TextIO) -> None:
    """Discard what is still buffered: otherwise the interpreter tries to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
