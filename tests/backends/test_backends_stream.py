"""map_in_order: order, the bound on what is in flight, and what happens when it ends early."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from patience import PATIENCE_S

from qdebug.backends.stream import available_cores, map_in_order


def test_order_whatever_the_timing() -> None:
    def work(i: int) -> int:
        time.sleep(0.01 if i % 4 == 0 else 0)
        return i * i

    assert list(map_in_order(work, range(40), 4)) == [i * i for i in range(40)]


@pytest.mark.parametrize("workers", [1, 3])
def test_nothing_and_less_than_workers(workers: int) -> None:
    assert list(map_in_order(str, [], workers)) == []
    assert list(map_in_order(str, [1], workers)) == ["1"]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_what_is_in_flight_is_bounded(workers: int) -> None:
    taken = [0]

    def items() -> Iterator[int]:
        for i in range(30):
            taken[0] += 1
            yield i

    for consumed, result in enumerate(map_in_order(lambda i: i, items(), workers)):
        assert result == consumed
        # Beside the one just handed out, at most `workers` others were even asked for.
        assert taken[0] - (consumed + 1) <= workers


def test_workers_run_at_once() -> None:
    barrier = threading.Barrier(3, timeout=PATIENCE_S)

    def work(i: int) -> int:
        barrier.wait()
        return i

    assert list(map_in_order(work, range(6), 3)) == list(range(6))


def test_an_exception_comes_in_order_and_stops_the_rest() -> None:
    started: list[int] = []

    def work(i: int) -> int:
        started.append(i)
        if i == 5:
            raise RuntimeError("five")
        return i

    seen = []
    with pytest.raises(RuntimeError, match="five"):
        for result in map_in_order(work, range(1000), 2):
            seen.append(result)
    assert seen == [0, 1, 2, 3, 4]
    assert len(started) <= 8


def test_an_exception_of_the_items_propagates() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        list(map_in_order(lambda i: i, items(), 2))


def test_closing_early_drops_what_has_not_started() -> None:
    started: list[int] = []

    def work(i: int) -> int:
        started.append(i)
        return i

    results = map_in_order(work, range(1000), 2)
    assert next(results) == 0
    results.close()
    count = len(started)
    assert count <= 4
    time.sleep(0.02)
    assert len(started) == count
    assert not [t for t in threading.enumerate() if t.name.startswith("qdebug")]


def test_cores() -> None:
    assert available_cores() >= 1
