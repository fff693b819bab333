"""An engine as a Session: two executions in flight, so that copies overlap with what the caller
does with the results."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from qdebug.backends.tensorrt.execute.cuda import DeviceMemoryError
from qdebug.backends.tensorrt.execute.runtime import (
    Contexts,
    LoadedEngine,
    given_type,
    skipped_outputs,
)
from qdebug.backends.tensorrt.execute.slot import Listener, RunTimes, Slot
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


SLOTS = 2
"""Executions in flight. While the GPU copies and computes one, the caller takes the other."""


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
    """See Session. What it holds on the GPU is freed by `close`, when a `with` block ends, or with
    the session itself."""

    def __init__(
        self,
        engine: LoadedEngine,
        *,
        skipped: Sequence[Skipped] = (),
        heard: Heard | None = None,
        slots: int = SLOTS,
    ) -> None:
        """
        Args:
            engine: what to execute; the session becomes its owner.
            skipped: tensors that are not observable in it.
            heard: tensors observed while it runs; then one execution is in flight.
            slots: executions in flight.
        """
        self._engine: LoadedEngine | None = engine
        self._heard = heard
        self._listener = heard.listener if heard else None
        self._contexts: Contexts | None = Contexts(engine)
        self._limit = 1 if heard else slots
        self._slots: list[Slot] = []
        self._free: list[Slot] = []
        self._changed = threading.Condition()
        outputs = {p.name: given_type(p.dtype) for p in engine.outputs if p.dtype is not None}
        self.dtypes: Mapping[str, np.dtype[np.generic]] = {
            **outputs,
            **(heard.dtypes if heard else {}),
        }
        self.skipped = (*skipped, *skipped_outputs(engine))
        self._past = RunTimes()

    def __enter__(self) -> TensorRTSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_past"):  # set last: it was made
            with suppress(Exception):
                self.close()

    @property
    def times(self) -> RunTimes:
        """GPU time of all executions so far."""
        total = self._past
        for slot in self._slots:
            total = total.plus(slot.times)
        return total

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        found = self._executed(feeds)
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
        with self._slot() as slot:
            slot.execute_ms(feeds, max(rounds // 10, 1))
            return statistics.median(slot.execute_ms(feeds, rounds))

    def layer_times(self, feeds: Feeds, rounds: int = 10) -> tuple[LayerTime, ...]:
        """Median time of each layer of the engine, in execution order.

        Measuring keeps layers from overlapping, so the sum exceeds `latency_ms`.
        """
        with self._changed:
            engine, contexts = self._engine, self._contexts
        if engine is None or contexts is None:
            raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
        # A place of its own: a context that was once profiled stays slower.
        slot = Slot(engine, contexts)
        try:
            profiler = LayerProfiler(engine.library.module, slot.context)
            return profiler.medians(lambda: slot.run(feeds), rounds)
        finally:
            slot.close()

    def release(self) -> None:
        """Give back the memory of places that are not in use; the next `run` takes it again."""
        with self._changed:
            for slot in self._free:
                self._past = self._past.plus(slot.times)
                self._slots.remove(slot)
                slot.close()
            self._free = []

    def close(self) -> None:
        """See Session.close. Waits for executions in flight."""
        with self._changed:
            contexts = self._contexts
            self._engine = self._contexts = None
            self._changed.wait_for(lambda: len(self._free) == len(self._slots))
            self._past = self.times
            for slot in self._slots:
                slot.close()
            used = bool(self._slots)
            self._slots, self._free = [], []
            self._changed.notify_all()
        if contexts is not None and used:
            contexts.save()

    def _executed(self, feeds: Feeds) -> dict[str, Array]:
        """What a slot gives: with fewer in flight, where the GPU has no room for all."""
        while True:
            with self._slot() as slot:
                last = self._limit == 1
                try:
                    return slot.run(feeds)
                except DeviceMemoryError:
                    if last:
                        raise
                    self._do_without(slot)

    def _do_without(self, slot: Slot) -> None:
        with self._changed:
            if len(self._slots) > 1:
                self._past = self._past.plus(slot.times)
                self._slots.remove(slot)
                slot.close()
            self._limit = len(self._slots)

    @contextmanager
    def _slot(self) -> Iterator[Slot]:
        slot = self._take()
        try:
            yield slot
        finally:
            with self._changed:
                if slot in self._slots:
                    self._free.append(slot)
                self._changed.notify_all()

    def _take(self) -> Slot:
        """A slot that is free, or a new one as long as there is room for it."""
        with self._changed:
            while True:
                if self._engine is None or self._contexts is None:
                    raise BackendError("the session is closed", code="QD-BACKEND-CLOSED")
                if self._free:
                    return self._free.pop()
                if len(self._slots) < self._limit:
                    try:
                        slot = Slot(self._engine, self._contexts, self._listener)
                    except DeviceMemoryError:
                        if not self._slots:
                            raise
                        self._limit = len(self._slots)  # the GPU has no room for another
                        continue
                    self._slots.append(slot)
                    return slot
                self._changed.wait()
