"""TensorRT's progress monitor as qdebug's progress. Its calls come from C++ that no exception may
cross."""

from __future__ import annotations

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

    def phase_start(self, name: str, steps: int) -> None:
        """A phase of `steps` steps began, within the one that began last."""
        self._phases[name] = _Phase(max(int(steps), 1))
        self._show()

    def step_complete(self, name: str, step: int) -> None:
        """Step `step` of a phase is done."""
        phase = self._phases.get(name)
        if phase is not None:
            phase.done = int(step) + 1
            self._show()

    def phase_finish(self, name: str) -> None:
        """A phase is over. Its parent counts it with the step that follows."""
        self._phases.pop(name, None)

    def finish(self) -> None:
        """The build is over."""
        self._report(_PARTS)

    def _show(self) -> None:
        share = 0.0  # of the outermost phase; an inner one is one step of the phase it is in
        for phase in reversed(self._phases.values()):
            share = min((phase.done + share) / phase.steps, 1.0)
        self._report(int(_PARTS * share))

    def _report(self, done: int) -> None:
        if done > self._shown:
            self._shown = done
            self._callback(Progress(STAGE, done, _PARTS))


def make_monitor(trt: Any, progress: BuildProgress) -> Any:
    """A `trt.IProgressMonitor` that tells `progress`."""

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            progress.phase_start(phase_name, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            progress.step_complete(phase_name, step)
            return True

        def phase_finish(self, phase_name: str) -> None:
            progress.phase_finish(phase_name)

    return Monitor()
