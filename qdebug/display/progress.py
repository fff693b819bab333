"""Progress on the error stream: bars on a terminal, elsewhere a line from time to time. The
pipeline only calls back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

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
LINE_EVERY_S = 30.0
"""Off a terminal no more time than this passes without a line that says what is done."""
_SHORTEST_RATED = 0.2
"""No speed is shown of a stage shorter than this, in seconds: its first step, which is not timed,
is too large a part of it."""


@dataclass
class _Stage:
    """A stage, which runs for the time `run`: since when, from which step on, and how far it is."""

    task: TaskID
    begun: float
    first: int
    run: int
    step: Progress
    ends: float | None = None

    @property
    def label(self) -> str:
        """What is done."""
        return LABELS.get(self.step.stage, self.step.stage)

    def speed(self, now: float) -> str:
        """How many samples a second; "" where that cannot be told."""
        seconds, done = now - self.begun, self.step.done - self.first
        if seconds < _SHORTEST_RATED or done <= 0 or self.step.stage not in _SAMPLES:
            return ""
        return f"{done / seconds:.{1 if done < 100 * seconds else 0}f} samples/s"

    def left(self, now: float) -> str:
        """How long it will take, at the speed since it began: results of workers come in bursts."""
        return "" if self.ends is None else duration(max(0.0, self.ends - now))


class _Left(ProgressColumn):
    max_refresh = 0.5

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def render(self, task: Task) -> Text:
        stage: _Stage | None = task.fields["state"]
        return Text(stage.left(self._clock()) if stage else "")


class ProgressBars:
    """A context manager whose instances are progress callbacks. Off a terminal there are no bars,
    but a line from time to time: none of a command that is done before the first is due."""

    def __init__(
        self, console: Console, enabled: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` tells the time in seconds."""
        self._console, self._clock = console, clock
        self._prints_lines = enabled and not console.is_terminal
        self._began = self._said = clock()
        self._ended = threading.Event()
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            _Left(clock),
            console=console,
            transient=True,
            disable=not (enabled and console.is_terminal),
        )

    def __enter__(self) -> ProgressBars:
        self._bars.start()
        if self._prints_lines:
            threading.Thread(target=self._watch, name="qdebug progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        self._ended.set()

    def __call__(self, step: Progress) -> None:
        """Show one step."""
        now, stage = self._clock(), self._stages.get(step.stage)
        if stage is None:
            task = self._bars.add_task("", total=None, state=None, speed="")
            stage = _Stage(task, now, step.done, 1, step)
        elif step.done < stage.step.done or stage.step.done >= stage.step.total > 0:
            # It runs once more: over other samples, for example.
            stage = _Stage(stage.task, now, step.done, stage.run + 1, step)
        self._stages[step.stage] = self._current = stage
        stage.step, stage.ends = step, None
        done, rest = step.done - stage.first, step.total - step.done
        if done > 0 and rest > 0:
            stage.ends = now + (now - stage.begun) * rest / done
        self._bars.update(
            stage.task,
            completed=step.done,
            total=step.total or None,
            description=f"{stage.label}: {step.note}" if step.note else stage.label,
            state=stage,
            speed=stage.speed(now),
        )

    def print_if_due(self) -> None:
        """Print a line, if none was printed for so long."""
        now = self._clock()
        if not self._prints_lines or now - self._said < LINE_EVERY_S:
            return
        self._said = now
        minutes, seconds = divmod(int(now - self._began), 60)
        doing = _doing(self._current, now) if self._current else "reading the model"
        self._console.file.write(printable(f"qdebug: {minutes:02}:{seconds:02} {doing}") + "\n")
        self._console.file.flush()

    def _watch(self) -> None:
        # Looks more often than lines are due, so that none is late by as much again.
        while not self._ended.wait(min(1.0, LINE_EVERY_S / 10)):
            try:
                self.print_if_due()
            except (OSError, ValueError):  # the error stream is full, or closed
                return


def _doing(stage: _Stage, now: float) -> str:
    """What is done, such as "calibrating 3/16, 0:01:30 left"; of a stage that runs again, for which
    time: else the count would seem to run backwards."""
    step, left = stage.step, stage.left(now)
    again = f" (run {stage.run} of this stage)" if stage.run > 1 else ""
    of = f"/{step.total}" if step.total else ""
    parts = (
        f"{stage.label[:1].lower()}{stage.label[1:]} {step.done}{of}{again}",
        step.note,
        left and f"{left} left",
    )
    text = ", ".join(filter(None, parts))
    return f"working, after {text}" if step.done == step.total else text
