"""The process that the command line runs in: its signals and its standard streams."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import TextIO

from qdebug.errors import StoreError

_received: list[int] = []
_deferred: list[int] = []
"""The signal that came while an extension module was being loaded, until it is heeded."""
_AGAIN_S = 0.05


def catch_signals() -> None:
    """From here on SIGTERM, and SIGHUP of a terminal that closes, are a KeyboardInterrupt, so that
    what is half-written is removed; and no KeyboardInterrupt gets lost, nor meets an extension that
    is being loaded."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # not where a parent had it ignored
            signal.signal(number, _interrupt)
    sys.unraisablehook = _unraisable


_LOADING = frozenset(
    method.__code__
    for method in (ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module)
)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if _is_loading(frame):
        if not _deferred:
            _deferred.append(number)
            with suppress(RuntimeError):  # no thread can be started: `heed_signals` remains
                threading.Thread(target=_remind, args=(number,), daemon=True).start()
        return
    _deferred.clear()
    raise KeyboardInterrupt


def _is_loading(frame: FrameType | None) -> bool:
    """Whether an extension module is being loaded. An exception in the middle of that ends the
    process: onnx's own aborts, or writes where it must not."""
    while frame is not None:
        if frame.f_code in _LOADING:
            return True
        frame = frame.f_back
    return False


def _remind(number: int) -> None:
    """Have a signal that was deferred come again until it is heeded."""
    while True:
        time.sleep(_AGAIN_S)
        if not _deferred:
            return
        os.kill(os.getpid(), number)


def _unraisable(error: sys.UnraisableHookArgs) -> None:
    """Python drops what is raised in a callback of its garbage collector, or a finalizer: a Ctrl-C
    that comes there is sent once more, a moment later."""
    if issubclass(error.exc_type, KeyboardInterrupt):
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(error)


def terminated() -> bool:
    """Whether SIGTERM or SIGHUP came: `view` has Ctrl-C as its end."""
    return any(number != signal.SIGINT for number in _received)


def signalled() -> bool:
    """Whether a signal came that ends the program."""
    return bool(_received)


def heed_signals() -> None:
    """Notice a signal that came, also where foreign code dropped what was raised then, as the
    import of an extension may.

    Raises:
        KeyboardInterrupt: one came.
    """
    if signalled():
        _deferred.clear()
        raise KeyboardInterrupt


def interrupted_code() -> int:
    """The exit code of a program that was interrupted: 128 + the signal."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def open_missing_streams() -> None:
    """Direct the standard streams that were closed (`>&-`) to nowhere: otherwise the next files
    that are opened take their place, and what libraries print goes into those."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(fd)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


_STDERR = 2


@contextmanager
def standard_output() -> Iterator[None]:
    """What is printed in the block is flushed when it ends; a reader that went away (`| head`) is
    not an error.

    Raises:
        StoreError: the standard output is a file on a full disk, for example.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)
    except OSError as error:
        failed = output_error(error)
        raise failed from error


def output_error(error: OSError) -> StoreError:
    """What is said where the standard output took no more, which is discarded from now on."""
    discard(sys.stdout)
    return StoreError(
        f"the standard output cannot be written: {error.strerror or error}",
        code="QD-STORE-OUTPUT",
    )


def discard(stream: TextIO) -> None:
    """Discard what is still buffered: otherwise the interpreter tries to write it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
