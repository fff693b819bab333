"""Run work over batches in several threads, with results in order and a bound on what is held."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


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
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="qdebug")
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
