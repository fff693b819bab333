"""`qdebug bisect`: calibrate, rate the layers, search, verify, and say what it costs."""

from __future__ import annotations

import time
from contextlib import ExitStack

from qdebug.config.bisect import BisectSettings
from qdebug.decide.bisect.search import search_from
from qdebug.decide.bisect.setup import prepare
from qdebug.decide.search.outcome import BisectResult
from qdebug.decide.search.pareto import check_select_point
from qdebug.execute.context import time_limit_told
from qdebug.types import ProgressCallback, ignore_progress


def bisect(settings: BisectSettings, progress: ProgressCallback = ignore_progress) -> BisectResult:
    """Find the cheapest layers to keep in higher precision so that the target holds.

    Raises:
        QdebugError: bad input, or a runtime or a metric that failed; what was evaluated is kept.
    """
    check_select_point(settings.select_point)
    started = time.monotonic()
    with ExitStack() as stack, time_limit_told(settings.time_limit):
        return search_from(settings.search, prepare(settings, progress, stack), started)
