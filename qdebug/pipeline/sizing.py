"""How many samples to run at once, and in which groups to capture tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.model.samples import Samples
from qdebug.run.base import Session
from qdebug.run.stream import available_cores
from qdebug.types import Tensors

_BATCH_BYTES = 8 << 20
"""Captured bytes per execution to aim for: enough to amortise calls, little enough for caches."""
_LARGEST_BATCH = 64
_MOST_WORKERS = 8


@dataclass(frozen=True)
class Parallelism:
    """`workers` executions in flight, `threads` within each operator."""

    workers: int
    threads: int


@dataclass(frozen=True)
class Sizing:
    """What a probe of the reference found.

    Attributes:
        samples: with the batch size to use.
        bytes_per_batch: captured by the reference in one execution, by tensor.
    """

    samples: Samples
    bytes_per_batch: Mapping[str, int]


def parallelism() -> Parallelism:
    """One thread per execution and as many executions as cores; more threads on large machines."""
    cores = available_cores()
    workers = min(cores, _MOST_WORKERS)
    return Parallelism(workers, max(1, cores // workers))


def probe(session: Session, samples: Samples, chosen: int | None) -> Sizing:
    """Run the first sample, and choose the batch size where the model leaves it free.

    A batch is used only where two samples together give what each gives alone: every tensor twice
    as long, the first half equal. Else every sample runs by itself.
    """
    first = next(iter(samples.batches()))
    alone = session.run(samples.feeds(first.start, first.count))
    sizes = {name: array.nbytes for name, array in alone.items()}
    if chosen is not None or not samples.batch_is_free or samples.count < 2:
        return Sizing(samples, sizes)
    per_sample = sum(sizes.values()) or 1
    size = min(_LARGEST_BATCH, max(1, _BATCH_BYTES // per_sample), samples.count)
    if size == 1 or not _independent(alone, session.run(samples.feeds(0, 2))):
        return Sizing(samples, sizes)
    return Sizing(samples.with_batch_size(size), {name: n * size for name, n in sizes.items()})


def capture_groups(
    tensors: Sequence[str], sizes: Mapping[str, int], in_flight: int, budget: int
) -> list[list[str]]:
    """`tensors`, in order, in groups that fit `budget` bytes with `in_flight` executions held.

    A tensor is held up to three times: by the reference, the candidate and the cut layers.
    """
    groups: list[list[str]] = []
    room = 0
    for tensor in tensors:
        need = 3 * sizes.get(tensor, 0) * in_flight
        if not groups or need > room:
            groups.append([])
            room = budget
        groups[-1].append(tensor)
        room -= need
    return groups


def _independent(alone: Tensors, together: Tensors) -> bool:
    for name, one in alone.items():
        two = together[name]
        if one.ndim == 0 or two.shape != (2 * one.shape[0], *one.shape[1:]):
            return False
        half = two[: one.shape[0]]
        if np.issubdtype(one.dtype, np.floating):
            tolerance = 1e-4 * float(np.max(np.abs(one), initial=0.0))
            if not np.allclose(half, one, rtol=1e-4, atol=tolerance, equal_nan=True):
                return False
        elif not np.array_equal(half, one):
            return False
    return True
