"""The process that the command line runs in: its signals and its standard streams."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_received: list[int] = []


def catch_sigterm() -> None:
    """From here on SIGTERM is a KeyboardInterrupt, so that what is half-written is removed."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # not where a parent had it ignored
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, _: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def terminated() -> bool:
    """Whether SIGTERM came."""
    return bool(_received)


def interrupted_code() -> int:
    """The exit code of a program that was interrupted: 128 + the signal."""
    return 128 + (signal.SIGTERM if terminated() else signal.SIGINT)


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
