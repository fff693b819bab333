"""An engine as a Session."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdebug.backends.tensorrt.execute.runtime import (
    Contexts,
    LoadedEngine,
    given_type,
    skipped_outputs,
)
from qdebug.backends.tensorrt.execute.slot import Listener, Slot
from qdebug.engine_info.measurements import LayerTime
from qdebug.errors import BackendError
from qdebug.types import Array, Feeds, Skipped, Tensors


class LayerProfiler:
    """Receives the times of a context's layers. Must live as long as the context executes."""

    def __init__(self, trt: Any, context: Any) -> None:
        self._reports: list[list[tuple[str, float]]] = [[]]
        reports = self._reports

        class Profiler(trt.IProfiler):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.IProfiler.__init__(self)

            def report_layer_time(self, layer_name: str, ms: float) -> None:
                reports[-1].append((layer_name, ms))

        self._profiler = Profiler()
        context.profiler = self._profiler

    def medians(self, run: Callable[[], object], rounds: int) -> tuple[LayerTime, ...]:
        """The median over `rounds` executions, after one that is not counted.

        Args:
            run: executes the context once and waits for it.
        """
        run()
        self._reports.clear()
        for _ in range(rounds):
            self._reports.append([])
            run()
        first = self._reports[0]
        # By position: names of layers may repeat.
        columns = zip(*[[ms for _, ms in report] for report in self._reports], strict=True)
        medians = (statistics.median(column) for column in columns)
        return tuple(LayerTime(n, m) for (n, _), m in zip(first, medians, strict=True))


@dataclass(frozen=True)
class Heard:
    """What a listener adds to a session.

    Attributes:
        listener: see Listener.
        dtypes: of the tensors that it receives in every execution.
        translate: from what it receives to arrays by the names in `dtypes`.
    """

    listener: Listener
    dtypes: Mapping[str, np.dtype[np.generic]]
    translate: Callable[[Mapping[str, Array], Feeds], Tensors]


class TensorRTSession:
    """See EngineSession. Executions of several threads take turns. What it holds on the GPU is
    freed by `close`, when a `with` block ends, or with the session itself."""

    def __init__(
        self,
        engine: LoadedEngine,
        *,
        skipped: Sequence[Skipped] = (),
        heard: Heard | None = None,
    ) -> None:
        """
        Args:
            engine: what to execute; the session becomes its owner.
            skipped: tensors that are not observable in it.
            heard: tensors observed while it runs.
        """
        self._opened: tuple[LoadedEngine, Contexts] | None = engine, Contexts(engine)
        self._heard, self._turn = heard, threading.RLock()
        self._place: Slot | None = None
        outputs = {p.name: given_type(p.dtype) for p in engine.outputs if p.dtype is not None}
        self.dtypes: Mapping[str, np.dtype[np.generic]] = {
            **outputs,
            **(heard.dtypes if heard else {}),
        }
        self.skipped = (*skipped, *skipped_outputs(engine))

    def __enter__(self) -> TensorRTSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "skipped"):  # set last: it was made
            with suppress(Exception):
                self.close()

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        with self._turn:
            found = self._slot().run(feeds)
        if self._heard is not None:
            outputs = {n: a for n, a in found.items() if n in self.dtypes}
            found = {**self._heard.translate(found, feeds), **outputs}
        absent = [name for name in self.dtypes if name not in found]
        if absent:
            raise BackendError(
                f"the engine ran without reporting '{absent[0]}'", code="QD-BACKEND-NOT-OBSERVABLE"
            )
        return {name: found[name] for name in self.dtypes}

    def latency_ms(self, feeds: Feeds, rounds: int = 50) -> float:
        """Median GPU time of one execution, in milliseconds, copies not counted."""
        with self._turn:
            slot = self._slot()
            slot.execute_ms(feeds, max(rounds // 10, 1))
            return statistics.median(slot.execute_ms(feeds, rounds))

    def layer_times(self, feeds: Feeds, rounds: int = 10) -> tuple[LayerTime, ...]:
        """Median time of each layer of the engine, in execution order.

        Measuring keeps layers from overlapping, so the sum exceeds `latency_ms`.
        """
        engine, contexts = self._held()
        slot = Slot(engine, contexts)  # its own: a context that was once profiled stays slower
        try:
            profiler = LayerProfiler(engine.library.module, slot.context)
            return profiler.medians(lambda: slot.run(feeds), rounds)
        finally:
            slot.close()

    def release(self) -> None:
        """Give back the memory that is not in use; the next `run` takes it again."""
        with self._turn:
            if self._place is not None:
                self._place.close()
            self._place = None

    def close(self) -> None:
        """See Session.close. Waits for an execution in flight."""
        with self._turn:
            if self._place is not None and self._opened is not None:
                self._opened[1].save()
            self.release()
            self._opened = None

    def _held(self) -> tuple[LoadedEngine, Contexts]:
        if self._opened is None:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        return self._opened

    def _slot(self) -> Slot:
        held = self._held()
        if self._place is None:
            self._place = Slot(*held, self._heard.listener if self._heard else None)
        return self._place
