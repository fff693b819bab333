"""Signals to a command that has workers, and what a killed one leaves."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results import without_times

pytest.importorskip("distributed")

COMMAND = [sys.executable, "-m", "qdebug", "compare", "net.onnx", "--inputs", "long.npz"]
COMMAND += ["--batch-size", "1", "--cluster", "local:1"]
_DONE = "qdebug: interrupted; nothing half-written was left behind\n"


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """The folder for temporary files of a command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def started(desk: Any, temporary: Path, until_there: str) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a shell makes them, whose folder holds a file of
    that name: "job-*" where its worker works, "workers" before it does."""
    desk.data("long.npz", x=np.random.default_rng(0).normal(size=(20_000, 3, 8, 8)).astype("f4"))
    process = subprocess.Popen(
        COMMAND,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert until(lambda: any(temporary.glob(f"qdebug-cluster-*/{until_there}")))
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
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize(
    ("how", "code", "there"),
    [
        (signal.SIGINT, 130, "job-*"),
        (signal.SIGHUP, 129, "job-*"),
        (signal.SIGTERM, 143, "workers"),
    ],
)
def test_a_signal_to_the_group_gives_one_line_and_leaves_nothing(
    desk: Any, temporary: Path, how: signal.Signals, code: int, there: str
) -> None:
    running = started(desk, temporary, there)
    os.killpg(running.pid, how)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (code, "", _DONE)
    assert ends_alone(running.pid)
    assert list(temporary.iterdir()) == []


def test_workers_of_a_killed_command_end_and_the_next_one_removes_its_files(
    desk: Any, temporary: Path
) -> None:
    running = started(desk, temporary, "job-*")
    running.kill()
    running.communicate(timeout=60)
    assert ends_alone(running.pid)
    assert len(list(temporary.glob("qdebug-cluster-*"))) == 1
    command = ("compare", "net.onnx", "--inputs", "data.npz", "--cluster", "local:1")
    assert desk.spawn(*command, env=os.environ | {"TMPDIR": str(temporary)}).code == 0
    assert list(temporary.iterdir()) == []


def workers_of(pid: int) -> list[int]:
    """The processes that a command started for its workers."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text("utf-8").rpartition(")")[2].split()[1])
            called = stat.with_name("cmdline").read_text("utf-8")
        except OSError:
            continue
        if parent == pid and "spawn_main" in called:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--inputs", "some.npz", "--calib-data", "some.npz"),
        ("calibrate", "--calib-data", "some.npz", "--method", "minmax,entropy"),
        ("bisect", "--inputs", "some.npz", "--target", "output.sqnr_db>=40"),
        ("repair", "--calib-data", "some.npz", "--only", "ranges"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_workers_that_are_killed_change_nothing(
    desk: Any, temporary: Path, load_json: Any, arguments: tuple[str, ...]
) -> None:
    """By SIGKILL, as what ends processes where memory is short sends it: each once."""
    name, *rest = arguments
    desk.data("some.npz", x=np.random.default_rng(0).normal(size=(64, 3, 8, 8)).astype("f4"))
    command = (name, "net.onnx", *rest, "--no-cache", "--batch-size", "1", "--json")
    environment = os.environ | {"TMPDIR": str(temporary)}
    with desk.started(*command, "spread.json", "--cluster", "local:2", env=environment) as running:
        assert until(lambda: any(temporary.glob("qdebug-cluster-*/job-*")))
        killed = workers_of(running.pid)
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        _, said = running.communicate(timeout=120)
    assert running.returncode == 0, said
    assert len(killed) == 2
    assert desk.run(*command, "alone.json").code == 0
    one, other = (
        without_times(load_json(Path(f"{which}.json").read_text())) for which in ("alone", "spread")
    )
    assert one == other


def test_a_temporary_folder_that_is_full_is_said(desk: Any) -> None:
    """By a file of work for workers, which has no room."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, 1 << 10))

    command = ("calibrate", "net.onnx", "--calib-data", "data.npz", "--cluster", "local:1")
    done = desk.spawn(*command, preexec_fn=limit)
    assert done.code == 2 and "QD-STORE-TEMPORARY" in done.err
