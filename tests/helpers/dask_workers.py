"""Workers of dask that join a scheduler that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def joining(address: str, folder: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of its own that joins a scheduler, and is not started anew."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny"]
    command += ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder), *more]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()
