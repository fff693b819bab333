"""The process that the command line runs in: its signals and its standard streams."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import signal
import sys
import termios
import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import NoReturn, TextIO

from qdebug.errors import StoreError
from qdebug.wording import printable

_received: list[int] = []
_deferred: list[int] = []
"""The signal that came while an extension module was being loaded, until it is heeded."""
_AGAIN_S = 0.05


def catch_signals() -> None:
    """From here on SIGTERM, and SIGHUP of a terminal that closes, are a KeyboardInterrupt, so that
    what is half-written is removed; and no KeyboardInterrupt gets lost, nor meets an extension that
    is being loaded."""
    for number in _ENDING:
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


_STDOUT, _STDERR = 1, 2


@contextmanager
def foreign_errors_escaped() -> Iterator[None]:
    """Within, what libraries write on the error stream past Python reaches it with control
    characters escaped: logs of ONNX Runtime, say, name nodes as the model does. A process of its
    own passes it on, so that the last words of this one arrive too where it crashes."""
    direct = os.dup(_STDERR)
    source, sink = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # the other process stays deaf
    try:
        child = os.fork()
        if not child:
            _pass_on(source, sink, direct)
    except OSError:  # there may be no more processes: the log stays as it is
        os.close(sink)
        child = 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(source)
    if not child:
        os.close(direct)
        yield
        return
    os.dup2(sink, _STDERR)
    os.close(sink)
    python = sys.stderr
    if python.fileno() == _STDERR:  # what Python prints is escaped where it is foreign
        sys.stderr = os.fdopen(os.dup(direct), "w", 1, python.encoding, "backslashreplace")
    try:
        yield
    finally:
        _wait_until_read()
        sys.stderr = python
        os.dup2(direct, _STDERR)
        os.close(direct)
        with suppress(OSError):
            os.waitpid(child, os.WNOHANG)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_COLOURED_LINE = re.compile(r"^\x1b\[[\d;]*m\n?|\x1b\[[\d;]*m$", re.MULTILINE)
"""How ONNX Runtime begins and ends a line."""
_LOGGED = re.compile(r"^\d{4}-\d\d-\d\d [\d:.]+ \[[EW]:onnxruntime:[^\n]*\n", re.MULTILINE)
"""What it logs of sessions that others open, as onnxslim does to fold constants. What fails there
is left as it is, and raised where it matters."""


def _pass_on(source: int, sink: int, target: int) -> NoReturn:
    """What the process does that passes on what comes from `source`, until nobody can write to it
    any more. Who waits for the end of another stream of this program must not wait for it."""
    try:
        for other in (0, 1, _STDERR, sink):
            os.close(other)
        decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        while data := os.read(source, 1 << 16):
            with suppress(OSError):  # a full disk, a terminal that is gone: nobody waits for us
                text = _LOGGED.sub("", _COLOURED_LINE.sub("", decode(data)))
                os.write(target, printable(text, kept="\n\t").encode())
    finally:
        os._exit(0)


def _wait_until_read() -> None:
    """Until all that was written on the error stream is passed on; but not for ever."""
    until = time.monotonic() + _READ_S
    unread = array("i", [0])
    while time.monotonic() < until:
        fcntl.ioctl(_STDERR, termios.FIONREAD, unread)
        if not unread[0]:
            return
        time.sleep(_LOOK_S)


_READ_S, _LOOK_S = 1.0, 0.001
_results: list[TextIO] = []


@contextmanager
def results_apart() -> Iterator[None]:
    """Within, what is printed goes to the error stream: the standard output, which `output` gives,
    is for the result alone. The user's code and libraries print what they like, also past Python
    (C's printf), and may close what they print to."""
    own = sys.stdout
    with _file_apart(own) as apart:
        _results.append(apart)
        sys.stdout = os.fdopen(os.dup(_STDERR), "w", 1, "utf-8", "backslashreplace")
        try:
            yield
        finally:
            with suppress(OSError):
                sys.stdout.close()
            _results.pop()
            sys.stdout = own


@contextmanager
def _file_apart(stream: TextIO) -> Iterator[TextIO]:
    """`stream` on a descriptor of its own, where it is the standard output: file descriptor 1 is
    the error stream within. Of a stream in memory, as tests and notebooks have it, itself."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        number = -1
    if number != _STDOUT:
        yield stream
        return
    stream.flush()
    direct = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    apart = os.fdopen(
        os.dup(direct), "w", 1 if stream.isatty() else -1, stream.encoding, stream.errors
    )
    try:
        yield apart
    finally:
        with suppress(OSError):
            apart.close()
        os.dup2(direct, _STDOUT)
        os.close(direct)


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
