"""TensorRT's progress monitor as qdebug's progress, and Ctrl-C during a build.

A build runs in C++ and calls back into Python; an exception raised there, KeyboardInterrupt
included, would end the process. So Ctrl-C is only noted, and the next callback asks the builder to
stop.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from qdebug.types import Progress, ProgressCallback

STAGE = "build"
_PARTS = 100


@dataclass
class _Phase:
    steps: int
    done: int = 0


class BuildProgress:
    """The progress of a build with nested phases, as a percentage that never falls."""

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._phases: dict[str, _Phase] = {}
        self._shown = -1
        self.failure: BaseException | None = None
        self.cancelled = False

    def phase_start(self, name: str, steps: int) -> None:
        """A phase of `steps` steps began, within the one that began last."""
        self._phases[name] = _Phase(max(int(steps), 1))
        self._show()

    def step_complete(self, name: str, step: int) -> bool:
        """Step `step` of a phase is done; False tells the builder to stop."""
        phase = self._phases.get(name)
        if phase is not None:
            phase.done = int(step) + 1
            self._show()
        return not self.cancelled

    def phase_finish(self, name: str) -> None:
        """A phase is over. Its parent counts it with the step that follows."""
        self._phases.pop(name, None)

    def cancel(self) -> None:
        """Ask the builder to stop."""
        self.cancelled = True

    def finish(self) -> None:
        """The build is over."""
        self._report(_PARTS)

    def _show(self) -> None:
        self._report(int(_PARTS * self._share()))

    def _share(self) -> float:
        """Of the outermost phase; an inner one stands for one step of the phase it is in."""
        share = 0.0
        for phase in reversed(self._phases.values()):
            share = min((phase.done + share) / phase.steps, 1.0)
        return share

    def _report(self, done: int) -> None:
        if done <= self._shown:
            return
        self._shown = done
        try:
            self._callback(Progress(STAGE, done, _PARTS))
        except BaseException as error:
            self.failure, self.cancelled = error, True


def make_monitor(trt: Any, progress: BuildProgress) -> Any:
    """A `trt.IProgressMonitor` that tells `progress`."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.phase_start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            return progress.step_complete(phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            progress.phase_finish(phase_name)

    return Monitor()


@contextmanager
def interruptible(progress: BuildProgress) -> Iterator[None]:
    """Ctrl-C in the block cancels `progress`, and is raised when the block is left. A second one
    kills the process, as a build that makes no step cannot be stopped otherwise.

    Raises:
        KeyboardInterrupt: Ctrl-C came during the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        progress.cancel()
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if not pressed:
            raise
    finally:
        if before is not None:  # else it was set outside of Python, and cannot be set again
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
