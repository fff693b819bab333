"""A part of the data, as `photos/[20:60]`: samples 20 to 60, the last one not included."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from qdebug.errors import SampleError
from qdebug.network.samples.samples import (
    FeedSource,
    PreparedSamples,
    RawSamples,
    SampleArray,
    Source,
)
from qdebug.network.samplespec import SampleSpec
from qdebug.types import Array, Feeds, TensorSpec

_PART = re.compile(r"(?P<data>.+)\[(?P<start>\d*):(?P<stop>\d*)\]")


@dataclass(frozen=True)
class Part:
    """Samples `start` to `stop`, or to the last one."""

    start: int = 0
    stop: int | None = None


def split_part(data: str) -> tuple[str, Part | None]:
    """The data, and the part of it that is asked for; None for all."""
    found = _PART.fullmatch(data)
    if found is None:
        return data, None
    stop = int(found["stop"]) if found["stop"] else None
    return found["data"], Part(int(found["start"] or 0), stop)


def part_of(source: Source, part: Part, where: str) -> Source:
    """A part of what a reader found.

    Raises:
        SampleError: it is empty.
    """
    if part.stop is not None and part.stop <= part.start:
        _refuse_empty(where)
    if isinstance(source, RawSamples):
        return _RawPart(source, part, where)
    if isinstance(source, Mapping):
        return _rows(source, part, where)
    return _FeedPart(source, part)


def _refuse_empty(where: str) -> NoReturn:
    raise SampleError(
        f"{where}: that part holds no samples.",
        "Write [START:STOP], of which START counts from 0.",
        code="QD-SAMPLES-EMPTY",
    )


def _rows(arrays: Mapping[str, SampleArray], part: Part, where: str) -> dict[str, SampleArray]:
    if any(array.shape and array.shape[0] <= part.start for array in arrays.values()):
        _refuse_empty(where)
    return {n: _Rows(array, part) if array.shape else array for n, array in arrays.items()}


class _Rows:
    """Some rows of an array."""

    def __init__(self, array: SampleArray, part: Part) -> None:
        stop = array.shape[0] if part.stop is None else min(part.stop, array.shape[0])
        self.shape: tuple[int, ...] = (stop - part.start, *array.shape[1:])
        self.dtype: np.dtype[np.generic] = array.dtype
        self._array, self._start = array, part.start

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop of these."""
        stop = min(stop, self.shape[0])
        return self._array.read(self._start + start, self._start + stop)


@dataclass(frozen=True)
class _RawPart:
    """A part of samples that are no arrays yet."""

    source: RawSamples
    part: Part
    where: str

    def prepared(self, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> PreparedSamples:
        """See RawSamples."""
        found = self.source.prepared(replace(spec, limit=self.part.stop), inputs)
        arrays = part_of(found.arrays, Part(self.part.start), self.where)
        assert not isinstance(arrays, RawSamples)
        last = "the last" if self.part.stop is None else str(self.part.stop - 1)
        origin = replace(
            found.origin,
            told=f"{self.part.start} to {last} of {found.origin.told}",
            texts=found.origin.texts[self.part.start :],
        )
        return PreparedSamples(arrays, replace(found.spec, limit=spec.limit), origin)


@dataclass(frozen=True)
class _FeedPart:
    """Some feeds of a source."""

    source: FeedSource
    part: Part

    def read(self, index: int) -> Feeds | None:
        """See FeedSource."""
        number = self.part.start + index
        ended = self.part.stop is not None and number >= self.part.stop
        return None if ended else self.source.read(number)

    def where(self, index: int) -> str:
        """See FeedSource."""
        return self.source.where(self.part.start + index)
