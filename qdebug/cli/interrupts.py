"""Ctrl-C that is neither lost nor mistaken for a failure."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_AGAIN_AFTER = 0.02
"""Seconds after which an interruption that was lost is raised again: by then the call that could
not pass it on has returned."""


@contextmanager
def noting_interrupts(noted: threading.Event) -> Iterator[None]:
    """Set `noted` when Ctrl-C comes, beside the KeyboardInterrupt that it raises.

    Where that meets a callback that can pass no exception on (the import system has some), Python
    would print and drop it: it is raised again.
    """

    def note(number: int, frame: FrameType | None) -> None:
        noted.set()
        signal.default_int_handler(number, frame)

    def unraisable(lost: UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            again = (threading.main_thread().ident, signal.SIGINT)
            threading.Timer(_AGAIN_AFTER, signal.pthread_kill, again).start()
        else:
            before(lost)

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # it is ignored, as behind nohup, or somebody else's
        return
    before, sys.unraisablehook = sys.unraisablehook, unraisable
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = before
