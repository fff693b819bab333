"""Samples that are objects in memory, in place of a path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from qdebug.errors import SampleError
from qdebug.inmemory import InMemory
from qdebug.network.samples.arrays import ArrayInMemory
from qdebug.network.samples.iterables import feeds_of
from qdebug.network.samples.samples import Samples

_IN_MEMORY = "the samples given in memory"


def samples_in_memory(given: object) -> InMemory:
    """DATA for `open_samples`, of an object in place of a path.

    Args:
        given: `Samples`; a dict of arrays with all samples, or one such array, as in an .npz; an
            iterable of feeds, each a dict of arrays, or a function that returns one.

    Raises:
        SampleError: it is none of these.
    """
    if isinstance(given, Samples):
        return InMemory(_IN_MEMORY, given)
    if isinstance(given, np.ndarray):
        given = {"array": given}
    if isinstance(given, Mapping):
        arrays = {str(name): ArrayInMemory(np.asarray(array)) for name, array in given.items()}
        return InMemory(_IN_MEMORY, arrays)
    if isinstance(given, Iterable) or callable(given):
        return InMemory(_IN_MEMORY, feeds_of(given, _IN_MEMORY))
    raise SampleError(
        f"samples cannot be of type {type(given).__name__}",
        "Give a path, a dict of arrays, or an iterable of such dicts.",
        code="QD-SAMPLES-TYPE",
    )
