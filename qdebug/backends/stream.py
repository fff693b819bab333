"""Run work over batches in several threads, with results in order and a bound on what is held."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


class Threads(ThreadPoolExecutor):
    """Threads that work in the context of whoever submits the work: its messages spell settings as
    those of the caller."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, thread_name_prefix="qdebug")

    def submit(
        self, fn: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[ResultT]:
        """See Executor.submit."""
        return super().submit(copy_context().run, partial(fn, *args, **kwargs))


def map_in_order(
    work: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int
) -> Iterator[ResultT]:
    """`work` of each item, in order; at most `workers + 1` exist besides the one the caller holds.

    One runtime thread per sample with several samples in flight was measured faster than several
    threads per sample, and the order makes sums independent of timing. An exception, or closing
    the iterator early, drops what has not started. With one worker nothing overlaps: an item is
    begun when the caller asks for it.
    """
    if workers <= 1:
        yield from map(work, items)
        return
    pending: deque[Future[ResultT]] = deque()
    iterator = iter(items)
    pool = Threads(workers)
    try:
        for item in iterator:
            pending.append(pool.submit(work, item))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
