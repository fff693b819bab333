"""Who executes work that can be divided: this process, or others that an executor gives it to.

Work is a function that opens what all its parts need, and returns a function that executes one
part. Executing a part twice, anywhere, gives the same. Results come back in the order of the parts,
so that what is added up does not depend on who was first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

from qdebug.network.samples.subset import SampleSubset
from qdebug.wording import counted

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
Work = Callable[[ExitStack], Callable[[PartT], ResultT]]
"""Opens what the parts need, which the stack closes; returns what executes a part."""

_FEWEST, _MANY = 16, 256
_SHORT, _LONG = 8, 16
"""Shards of a pass: at least 16, if there are as many executions. Beyond that they are of 8
executions each, and where these would be more than 256, of 16, since what comes back of a shard
does not depend on how long it is. Their number decides in which order sums are added, so it depends
on the samples alone, not on who computes."""


@dataclass(frozen=True)
class Shard:
    """The executions from number `start` to `stop` of those of a pass."""

    start: int
    stop: int


class Executor(Protocol):
    """Executes the parts of some work."""

    @property
    def workers(self) -> int:
        """How many other processes there are now, at least 1; 0 where this process does all."""

    def map(
        self,
        work: Work[PartT, ResultT],
        parts: Iterable[PartT],
        near: Callable[[PartT], int | None] = lambda _: None,
    ) -> Generator[ResultT, None, None]:
        """The results of `parts`, in order. Other processes begin at once; closing the iterator
        drops what is left.

        Args:
            near: parts of one number do better on one worker, which keeps something for them.

        Raises:
            QdebugError: as the work does.
            ClusterError: workers fail, or see other files than this process.
        """


class ThisProcess:
    """Executes each part when its result is asked for. See Executor."""

    workers = 0

    def map(
        self,
        work: Work[PartT, ResultT],
        parts: Iterable[PartT],
        near: Callable[[PartT], int | None] = lambda _: None,
    ) -> Generator[ResultT, None, None]:
        """See Executor."""
        with ExitStack() as stack:
            run = work(stack)
            for part in parts:
                yield run(part)


THIS_PROCESS = ThisProcess()


def shards_of(executions: int) -> list[Shard]:
    """A pass over so many executions, in shards of nearly equal length. See `_FEWEST`. Each is one
    execution, or has at most 16, so that `shards_of` a shard has one execution in each."""
    count = max(_FEWEST, min(_MANY, executions // _SHORT), -(-executions // _LONG))
    return cut_evenly(executions, min(executions, count))


def cut_evenly(executions: int, count: int) -> list[Shard]:
    """A pass over so many executions in `count` shards, whose lengths differ by one at most."""
    edges = [k * executions // count for k in range(count + 1)] if count else [0]
    return [Shard(*pair) for pair in pairwise(edges)]


def part_of(subset: SampleSubset, shard: Shard) -> SampleSubset:
    """The executions of a shard."""
    return SampleSubset(subset.samples, subset.batches[shard.start : shard.stop])


def workers_note(executor: Executor) -> str:
    """How many work, for whoever shows progress; "" where this process does."""
    return counted(executor.workers, "worker") if executor.workers else ""
