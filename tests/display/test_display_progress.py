"""Progress bars: on a terminal, and nowhere else."""

from __future__ import annotations

import ast
import io
import time
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from rich.console import Console

import qdebug
from qdebug.display.progress import LABELS, ProgressBars
from qdebug.types import Progress


def stages() -> set[str]:
    """Those that the sources report."""
    found = set()
    for path in Path(qdebug.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                place = {"Progress": 0, "Walk": 3}.get(call.func.id)
                given = call.args[place : place + 1] if place is not None else []
                given += [k.value for k in call.keywords if k.arg == "stage"]
                found |= {x.value for x in given if isinstance(x, ast.Constant)}
    return {str(stage) for stage in found if stage}


def test_every_stage_is_said_in_words() -> None:
    assert {"repair", "factors", "least squares"} <= stages() <= LABELS.keys()


def shown(terminal: bool, enabled: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    with ProgressBars(console, enabled=enabled) as progress:
        for done in (0, 5, 10):
            progress(Progress("calibrate", done, 10))
            progress(Progress("compare", done, 10))
    return file.getvalue()


def test_on_a_terminal() -> None:
    text = shown(terminal=True, enabled=True)
    assert "Calibrating" in text and "Comparing" in text and "10/10" in text


def test_a_build_counts_no_samples() -> None:
    file = io.StringIO()
    with ProgressBars(Console(file=file, force_terminal=True, width=80), enabled=True) as progress:
        for done in (0, 40, 100):
            progress(Progress("build", done, 100))
    assert "Building" in file.getvalue() and "samples/s" not in file.getvalue()


def test_the_rate_of_a_stage_that_runs_again_is_its_own() -> None:
    def shown_at_last(*steps: tuple[float, int, int]) -> str:
        file, now = io.StringIO(), [0.0]
        console = Console(file=file, force_terminal=True, width=80, get_time=lambda: now[0])
        with ProgressBars(console, enabled=True, clock=lambda: now[0]) as progress:
            for at, done, total in steps:
                now[0] = at
                progress(Progress("calibrate", done, total))
        return file.getvalue()

    once = [(0.0, 50, 100), (1.0, 100, 100)]
    assert "50.0 samples/s" in shown_at_last(*once)
    # Of no time to speak of, though long after the stage had begun at first.
    again = shown_at_last(*once, (2.0, 10, 14), (2.00001, 12, 14), (2.00002, 14, 14))
    assert "14/14" in again and "samples/s" not in again


@pytest.mark.parametrize(("terminal", "enabled"), [(False, True), (True, False)])
def test_nowhere_else(terminal: bool, enabled: bool) -> None:
    text = shown(terminal, enabled)
    assert "Calibrating" not in text and "Comparing" not in text


def test_on_a_terminal_the_time_left_is_that_of_the_whole_stage() -> None:
    """Results of workers come in bursts, here a minute apart."""
    now, file = [0.0], io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, get_time=lambda: now[0])
    with ProgressBars(console, enabled=True, clock=lambda: now[0]) as progress:
        for done in (0, 97, 98, 100):
            now[0] = 60.0 if done else 0.0
            progress(Progress("compare", done, 1000, "4 workers"))
        now[0] = 70.0
        progress._bars.refresh()
        assert "0:08:50" in file.getvalue()


def lines_of(*steps: tuple[float, Progress | None], **how: Any) -> list[str]:
    """What is printed off a terminal when it is looked at at these times, after these steps."""
    now, file = [100.0], io.StringIO()
    bars = ProgressBars(Console(file=file, **how), enabled=True, clock=lambda: now[0])
    for at, step in steps:
        now[0] = 100.0 + at
        if step is not None:
            bars(step)
        bars.print_if_due()
    return file.getvalue().splitlines()


def test_off_a_terminal_a_line_is_printed_every_30_seconds() -> None:
    seconds = [(float(k), Progress("effects", k, 90, "2 workers")) for k in range(1, 91)]
    assert lines_of(*seconds) == [
        "qdebug: 00:30 keeping layers in FP32 one by one 30/90, 2 workers, 0:01:00 left",
        "qdebug: 01:00 keeping layers in FP32 one by one 60/90, 2 workers, 0:00:30 left",
        "qdebug: 01:30 working, after keeping layers in FP32 one by one 90/90, 2 workers",
    ]
    assert not lines_of(*seconds[:29])


def test_a_stage_that_runs_again_does_not_seem_to_run_backwards() -> None:
    steps = [(30.0, 19), (40.0, 64), (60.0, 15)]
    first, again = lines_of(*((at, Progress("ranges", done, 64)) for at, done in steps))
    assert "19/64" in first and "15/64" in again
    assert "run 2" in again and "run" not in first


def test_a_line_is_printed_while_nothing_is_reported() -> None:
    search = Progress("search", 7, 0, "a\x1b[2Jb\n")
    assert lines_of((30.0, None), (59.0, search), (4000.0, None), (4001.0, None)) == [
        "qdebug: 00:30 reading the model",
        "qdebug: 66:40 searching 7, a\\x1b[2Jb\\n",
    ]
    assert not any(
        line.startswith("qdebug") for line in lines_of((99.0, search), force_terminal=True)
    )


def test_lines_are_printed_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qdebug.display.progress.LINE_EVERY_S", 0.05)
    for enabled in (True, False):
        file = io.StringIO()
        with ProgressBars(Console(file=file), enabled=enabled):
            ends = time.monotonic() + PATIENCE_S
            while enabled and time.monotonic() < ends and not file.getvalue():
                time.sleep(0.01)
            time.sleep(0.2)
        printed = file.getvalue()
        time.sleep(0.2)
        assert file.getvalue() == printed and printed.startswith("qdebug: 00:0") == enabled
