"""Signals to a command that has workers, and what a killed one leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import PATIENCE_S

pytest.importorskip("distributed")

COMMAND = [sys.executable, "-m", "qdebug", "compare", "net.onnx", "--inputs", "long.npz"]
COMMAND += ["--batch-size", "1", "--cluster", "local:1"]
_DONE = (
    "qdebug: progress is saved: the same command goes on from there\n"
    "qdebug: interrupted; nothing half-written was left behind\n"
)


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder for temporary files of a command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


_WORKER = "qdebug-cluster-*/workers/dask-scratch-space/worker-*"
"""The folder of a worker that has started, in that for temporary files."""


def started(desk: Any, temporary: Path) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a shell makes them, whose worker has started."""
    desk.data("long.npz", x=np.random.default_rng(0).normal(size=(20_000, 3, 8, 8)).astype("f4"))
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert until(lambda: any(temporary.glob(_WORKER)))
    assert process.poll() is None
    return process


def ends_alone(group: int) -> bool:
    """Whether all processes of a group end without being told to."""

    def alive() -> bool:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text("utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                return True
        return False

    return until(lambda: not alive())


def until(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_group_says_what_is_kept_and_leaves_nothing(
    desk: Any, temporary: Path, how: signal.Signals, code: int
) -> None:
    running = started(desk, temporary)
    os.killpg(running.pid, how)
    out, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, out, err) == (code, "", _DONE)
    assert ends_alone(running.pid)
    assert list(temporary.iterdir()) == []


def test_workers_of_a_killed_command_end(desk: Any, temporary: Path) -> None:
    running = started(desk, temporary)
    running.kill()
    running.communicate(timeout=PATIENCE_S)
    assert ends_alone(running.pid)
