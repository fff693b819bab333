"""Progress on the error stream: bars on a terminal, elsewhere a line from time to time. The
pipeline only calls back."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
)
from rich.progress import (
    Progress as Bars,
)
from rich.text import Text

from qdebug.types import Progress
from qdebug.wording import duration, printable

_LOG = logging.getLogger(__name__)
LABELS = {
    "branches": "Following branches",
    "build": "Building",
    "calibrate": "Calibrating",
    "compare": "Comparing",
    "engine": "Running the engine",
    "framework": "Comparing with the framework",
    "cures": "Quantizing in other ways",
    "evaluate": "Evaluating",
    "rate layers": "Measuring layers' errors",
    "reference": "Running FP32",
    "effects": "Keeping layers in FP32 one by one",
    "remedies": "Trying remedies",
    "restored": "Running with layers in FP32",
    "repair": "Repairing",
    "factors": "Choosing channel scales",
    "ranges": "Choosing ranges",
    "least squares": "Refitting weights",
    "bias correction": "Correcting biases",
    "head shift": "Shifting the outputs of heads",
    "search": "Searching",
    "sweep": "Combinations",
    "workers": "Waiting for workers",
}
"""What is said of each stage."""
_SAMPLES = ("branches", "calibrate", "compare", "engine", "evaluate", "reference", "restored")
"""Stages that count samples."""
_LOG_EVERY_S = 10.0
"""With -v off a terminal, the time between two lines of one stage."""
LINE_EVERY_S = 30.0
"""Off a terminal no more time than this passes without a line that says what is done."""
_SHORTEST_RATED = 0.2
"""No speed is shown of a stage shorter than this, in seconds: its first step, which is not timed,
is too large a part of it."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        unit = task.fields.get("unit", "")
        if not speed or not unit or (task.elapsed or 0) < _SHORTEST_RATED:
            return Text()
        return Text(f"{speed:.{1 if speed < 100 else 0}f} {unit}/s", no_wrap=True)


class _TimeLeft(ProgressColumn):
    """At the speed since the stage began: results of workers come in bursts, which may lie further
    apart than what rich looks back at."""

    max_refresh = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        ends = task.fields.get("ends")
        return Text("" if ends is None else duration(max(0.0, ends - self._clock())))


class Lines:
    """What a command does, as lines of its own: none of a command that is done before the first is
    due."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """`clock` tells the time in seconds."""
        self._console, self._clock = console, clock
        self._began = self._said = clock()
        self._step: tuple[Progress, int] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="qdebug progress", daemon=True)

    def start(self) -> None:
        """From now on lines are printed when they are due, also while nothing is reported."""
        self._thread.start()

    def end(self) -> None:
        """No line is printed any more."""
        self._ended.set()

    def step(self, step: Progress, run: int) -> None:
        """What is done now, for the time `run` of this stage."""
        self._step = step, run

    def heard(self) -> None:
        """Something else was printed just now that says it."""
        self._said = self._clock()

    def say_if_due(self) -> None:
        """Print a line, if none was printed for so long."""
        now = self._clock()
        if now - self._said >= LINE_EVERY_S:
            self._said = now
            seconds = int(now - self._began)
            minutes = f"{seconds // 60:02}:{seconds % 60:02}"
            doing = _doing(*self._step) if self._step else "reading the model"
            text = printable(f"qdebug: {minutes} {doing}")
            self._console.file.write(f"{text}\n")
            self._console.file.flush()

    def _watch(self) -> None:
        # Looks more often than lines are due, so that none is late by as much again.
        while not self._ended.wait(min(1.0, LINE_EVERY_S / 10)):
            try:
                self.say_if_due()
            except (OSError, ValueError):  # the error stream is full, or closed
                return


def _doing(step: Progress, run: int) -> str:
    """What is done, such as "calibrating 3/16"; of a stage that runs again, for which time: else
    the count would seem to run backwards."""
    label = LABELS.get(step.stage, step.stage)
    total = f"/{step.total}" if step.total else ""
    text = f"{label[:1].lower()}{label[1:]} {step.done}{total}"
    if run > 1:
        text += f" (run {run} of this stage)"
    if step.note:
        text += f", {step.note}"
    return f"working, after {text}" if step.done == step.total else text


class ProgressBars:
    """A context manager whose instances are progress callbacks. Off a terminal there are no bars,
    but a line from time to time; and log lines: one when a stage begins, one when it ends, and some
    in between."""

    def __init__(
        self, console: Console, enabled: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` tells the time in seconds."""
        self._logs = enabled and not console.is_terminal
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._lines = Lines(console, clock) if self._logs else None
        self._begun: dict[str, tuple[float, int]] = {}
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            _Rate(),
            _TimeLeft(clock),
            console=console,
            transient=True,
            disable=not (enabled and console.is_terminal),
        )
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, Progress] = {}
        self._runs: Counter[str] = Counter()

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        if self._lines:
            self._lines.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        if self._lines:
            self._lines.end()

    def __call__(self, step: Progress) -> None:
        """Show one step."""
        last, now = self._last.get(step.stage), self._clock()
        begins = last is None or _starts_over(last, step)
        if begins:
            self._begun[step.stage] = now, step.done
            self._runs[step.stage] += 1
        left = _seconds_left(step, now, *self._begun[step.stage])
        if self._lines:
            self._lines.step(step, self._runs[step.stage])
            self._log(step, now, left, begins=begins)
        if step.stage not in self._tasks:
            unit = "samples" if step.stage in _SAMPLES else ""
            self._tasks[step.stage] = self._bars.add_task("", total=None, unit=unit)
        elif begins:
            # Its clock, too: else a second run of few steps has the rate of a moment.
            self._bars.reset(self._tasks[step.stage], total=step.total or None)
        self._last[step.stage] = step
        label = LABELS.get(step.stage, step.stage)
        self._bars.update(
            self._tasks[step.stage],
            completed=step.done,
            total=step.total or None,
            description=f"{label}: {step.note}" if step.note else label,
            ends=None if left is None else now + left,
        )

    def _log(self, step: Progress, now: float, left: float | None, *, begins: bool) -> None:
        recent = not begins and now - self._logged[step.stage] < _LOG_EVERY_S
        if recent and step.done != step.total:
            return
        self._logged[step.stage] = now
        if self._lines and _LOG.isEnabledFor(logging.INFO):
            self._lines.heard()
        label = LABELS.get(step.stage, step.stage)
        of = f" of {step.total}" if step.total else ""
        rest = "" if left is None else f", {duration(left)} left"
        _LOG.info("%s: %d%s%s%s", label, step.done, of, step.note and f", {step.note}", rest)


def _seconds_left(step: Progress, now: float, begun: float, first: int) -> float | None:
    """How long a stage will take from `now`, if it goes on as since `begun`, when `first` was done;
    None where that cannot be said or it is done."""
    done, rest = step.done - first, step.total - step.done
    if done <= 0 or rest <= 0:
        return None
    return (now - begun) * rest / done


def _starts_over(last: Progress, step: Progress) -> bool:
    """Whether a stage runs once more: over other samples, for example."""
    return step.done < last.done or last.done >= last.total > 0
