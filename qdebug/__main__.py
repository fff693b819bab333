"""The program: the console script, and `python -m qdebug`."""

from __future__ import annotations

import os
import sys

from qdebug.cli.process import catch_signals, interrupted_code

_OPENBLAS_WAIT = "OPENBLAS_THREAD_TIMEOUT", "16"
"""Threads of numpy's OpenBLAS sleep after 2^16 cycles without work. By default they spin for 2^26,
some 25 ms, on the cores that ONNX Runtime's threads could have. Read when numpy is imported."""


def entry() -> None:
    """Import the command line and run it; ends the process with its exit code."""
    os.environ.setdefault(*_OPENBLAS_WAIT)
    catch_signals()
    try:
        from qdebug.cli.app import entry as run

        run()
    except KeyboardInterrupt:  # while modules are imported, or when all is done
        sys.stderr.write("qdebug: interrupted\n")
        sys.exit(interrupted_code())


if __name__ == "__main__":
    entry()
