"""Arrays of feeds that are not model inputs, gathered over all feeds."""

from __future__ import annotations

import numpy as np

from qdebug.errors import SampleError
from qdebug.types import Array, Feeds


class Extras:
    """Collects labels feed by feed; kept in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Array]] = {}
        self._feeds = 0

    def add(self, extras: Feeds, count: int, where: str) -> None:
        """Adds the extras of a feed of `count` samples.

        Raises:
            SampleError: an extra that the feeds before do not have, or the other way round, or
                that does not have `count` rows.
        """
        different = sorted(set(extras) ^ set(self._rows)) if self._feeds else []
        if different:
            raise SampleError(
                f"{where}: array '{different[0]}' is not in every feed.",
                "Give it in every feed, or in none.",
            )
        for name, array in extras.items():
            self._rows.setdefault(name, []).append(_rows(name, array, count, where))
        self._feeds += 1

    def joined(self, count: int, where: str) -> dict[str, Array]:
        """The extras of the first `count` samples, one row each."""
        return {name: _join(name, rows, where)[:count] for name, rows in self._rows.items()}


def _rows(name: str, array: Array, count: int, where: str) -> Array:
    if array.shape[:1] == (count,):
        return np.array(array)
    if count == 1:
        return np.array(array)[np.newaxis]
    length = array.shape[0] if array.ndim else "no"
    raise SampleError(
        f"{where}: array '{name}' has {length} rows, the inputs have {count} samples.",
        "An array that is no model input is taken for labels, one row per sample.",
    )


def _join(name: str, rows: list[Array], where: str) -> Array:
    try:
        return np.concatenate(rows)
    except (ValueError, TypeError) as error:
        raise SampleError(
            f"{where}: array '{name}' differs in shape or type between feeds ({error}).",
            "Give labels of one shape.",
        ) from error
