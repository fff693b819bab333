"""A pass over samples, a shard of it at a time, on the workers of an executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from qdebug.execute.context import Context
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.executor import Shard, Work, part_of, workers_note
from qdebug.types import Progress

ResultT = TypeVar("ResultT")


def over_shards(
    context: Context,
    work: Work[Shard, ResultT],
    subset: SampleSubset,
    stage: str,
    *,
    few: bool = False,
) -> Iterator[ResultT]:
    """What `work` gives for the shards of a pass over `subset`, in order. Raises as Executor.map.

    Args:
        stage: what the progress of workers is reported as; this process reports its own.
        few: see Executor.shards.
    """
    shards = context.executor.shards(len(subset.batches), few=few)
    results = context.executor.map(work, shards)
    return _reported(context, results, [part_of(subset, s).count for s in shards], stage)


def _reported(
    context: Context, results: Iterable[ResultT], counts: Sequence[int], stage: str
) -> Iterator[ResultT]:
    done = 0
    for result, count in zip(results, counts, strict=True):
        done += count
        if context.executor.workers:
            note = workers_note(context.executor)
            context.progress(Progress(stage, done, sum(counts), note))
        yield result
