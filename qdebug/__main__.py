"""The program: the console script, and `python -m qdebug`."""

from __future__ import annotations

import os
import sys

from qdebug.cli.process import catch_signals, interrupted_code, open_missing_streams


def entry() -> None:
    """Import the command line and run it; ends the process with its exit code."""
    open_missing_streams()
    try:
        catch_signals()
        from qdebug.cli.app import entry as run

        run()
    except KeyboardInterrupt:  # while modules are imported, or when all is done
        sys.stderr.write("qdebug: interrupted\n")
        sys.stderr.flush()
        from qdebug.outputfiles import put_away

        put_away()
        os._exit(interrupted_code())


if __name__ == "__main__":
    entry()
