"""How many samples to run at once, and in which groups to capture tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.backends.base import Session
from qdebug.backends.stream import available_cores
from qdebug.errors import BackendError
from qdebug.network.samples import Samples
from qdebug.types import Array, Tensors

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

    @property
    def bytes_per_sample(self) -> dict[str, float]:
        """The same of one sample."""
        return {name: n / self.samples.batch_size for name, n in self.bytes_per_batch.items()}


def parallelism() -> Parallelism:
    """One thread per execution and as many executions as cores; more threads on large machines."""
    cores = available_cores()
    workers = min(cores, _MOST_WORKERS)
    return Parallelism(workers, max(1, cores // workers))


def probe(
    session: Session, samples: Samples, chosen: int | None, bytes_per_sample: float = 0.0
) -> Sizing:
    """Run the first sample, and choose the batch size where the model leaves it free.

    A batch is used only where two samples together give what each gives by itself: every tensor
    twice as long, each half equal. Otherwise, or where two do not run, every sample runs by itself.

    Args:
        bytes_per_sample: that will be captured, where that is more than `session` gives.
    """
    first = next(iter(samples.batches()))
    alone = session.run(samples.feeds(first.start, first.count))
    sizes = {name: array.nbytes for name, array in alone.items()}
    if chosen is not None or not samples.batch_is_free or samples.count < 2:
        return Sizing(samples, sizes)
    per_sample = max(1, sum(sizes.values()), math.ceil(bytes_per_sample))
    size = min(_LARGEST_BATCH, max(1, _BATCH_BYTES // per_sample), samples.count)
    if size == 1:
        return Sizing(samples, sizes)
    # Both halves: along a time axis the first row does not depend on the second.
    parts = (alone, session.run(samples.feeds(1, 1)))
    try:
        together = session.run(samples.feeds(0, 2))
    except BackendError:  # the axis is declared free, and an operator inside takes one sample only
        return Sizing(samples, sizes)
    if not _independent(parts, together):
        return Sizing(samples, sizes)
    return Sizing(samples.with_batch_size(size), {name: n * size for name, n in sizes.items()})


def capture_groups(
    tensors: Sequence[str], sizes: Mapping[str, int], budget: int
) -> list[list[str]]:
    """`tensors`, in order, in groups of which the sizes, as far as they are known, fit a budget."""
    groups: list[list[str]] = []
    room = 0
    for tensor in tensors:
        need = sizes.get(tensor, 0)
        if not groups or need > room:
            groups.append([])
            room = budget
        groups[-1].append(tensor)
        room -= need
    return groups


def _independent(parts: Sequence[Tensors], together: Tensors) -> bool:
    return all(_same_rows(two, [part[name] for part in parts]) for name, two in together.items())


def _same_rows(together: Array, parts: Sequence[Array]) -> bool:
    """Whether `together` is `parts`, all of one shape, one after the other."""
    if parts[0].ndim == 0 or len({part.shape for part in parts}) > 1:
        return False
    expected = np.concatenate(parts)
    if together.shape != expected.shape:
        return False
    if not np.issubdtype(expected.dtype, np.floating):
        return np.array_equal(together, expected)
    largest = np.max(np.abs(expected), where=np.isfinite(expected), initial=0.0)
    tolerance = 1e-4 * float(largest)
    return np.allclose(together, expected, rtol=1e-4, atol=tolerance, equal_nan=True)
