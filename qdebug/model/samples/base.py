"""What a file format hands over, and the small records the samples package is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from qdebug.types import Array, Feeds


class SampleArray(Protocol):
    """All samples of one name, stacked on axis 0, and read slice by slice."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole array's shape; axis 0 counts samples."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type as stored; any byte order."""

    def read(self, start: int, stop: int) -> Array:
        """Samples start to stop, in memory of their own; an array of rank 0 as a whole."""


class FeedSource(Protocol):
    """Feeds that are stored, or made, one at a time."""

    def read(self, index: int) -> Feeds | None:
        """Feed `index` by the file's own names, or None past the last one."""

    def where(self, index: int) -> str:
        """The name of feed `index` in a message."""


Source = Mapping[str, SampleArray] | FeedSource
"""What one file format gives: stacked arrays by name, or feeds one by one."""


@dataclass(frozen=True)
class Batch:
    """`count` samples from `start`: one execution of the model."""

    index: int
    start: int
    count: int


@dataclass(frozen=True)
class Layout:
    """How samples become executions.

    `offsets` is None when samples lie on the inputs' leading axis and every execution takes
    `batch_size` of them (the last one may take fewer when `batch_is_free`). Otherwise the user's
    feeds are executed as given: execution i takes samples offsets[i] to offsets[i + 1].
    """

    count: int
    batch_size: int
    batch_is_free: bool
    offsets: Sequence[int] | None = None


class Reader(Protocol):
    """Reads samples as model inputs; safe to call from several threads."""

    def read(self, start: int, count: int) -> dict[str, Array]:
        """`count` samples from `start`, by model input name, of the types the model takes."""


def natural_key(path: Path) -> tuple[list[int | str], str]:
    """Sorts `img2` before `img10`; ties are broken by the plain name."""
    parts = re.split(r"([0-9]+)", path.name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], path.name


def shape_text(shape: tuple[int | str | None, ...]) -> str:
    """A shape for a message: `[N, 3, 32, 32]`, with `?` for an unnamed dynamic axis."""
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def some(names: list[str], most: int = 8) -> str:
    """The names in quotes, cut after `most`."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "nothing"
