"""How long each layer of an engine takes, as TensorRT's profiler reports it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from qdebug.engine_info.profile import LayerTime


class LayerProfiler:
    """Hears the times of a context's layers. Must live as long as the context executes."""

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
