"""The program: the console script, and `python -m qdebug`.

Ctrl-C ends it quietly from its first line on: importing the rest takes a moment, too.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_INTERRUPTED = 130


def entry() -> None:
    """Import the command line and run it; ends the process with its exit code."""
    # While modules are imported a KeyboardInterrupt may get lost, or be made another error of, and
    # there is nothing yet to put away. Where SIGINT is ignored, as behind nohup, it stays so.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if ours:
            signal.signal(signal.SIGINT, _leave)
        from qdebug.cli.app import entry as run

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        _leave()
    finally:
        if ours:  # what is left is the interpreter's own end: no traceback of that either
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
    try:
        os.write(2, b"qdebug: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    entry()
