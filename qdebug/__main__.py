"""The program: the console script, and `python -m qdebug`."""

from __future__ import annotations

import os
import sys


def entry() -> None:
    """Import the command line and run it; ends the process with its exit code."""
    try:
        from qdebug.cli.app import entry as run

        run()
    except KeyboardInterrupt:  # while modules are imported, or when all is done
        sys.stderr.write("qdebug: interrupted\n")
        sys.stderr.flush()
        os._exit(130)


if __name__ == "__main__":
    entry()
