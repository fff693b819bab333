"""Directories with one file per feed."""

from __future__ import annotations

from pathlib import Path

from qdebug.model.samples.npy import open_array, read_all
from qdebug.model.samples.npz import open_npz
from qdebug.types import Feeds


class NpyFeeds:
    """`.npy` files in order, each a feed of a model with a single input."""

    def __init__(self, files: list[Path], input_name: str) -> None:
        self._files = files
        self._input_name = input_name

    def read(self, index: int) -> Feeds | None:
        """Feed `index`. Raises SampleError for a file that is no `.npy`."""
        if index >= len(self._files):
            return None
        return {self._input_name: read_all(open_array(self._files[index]))}

    def where(self, index: int) -> str:
        """The file."""
        return str(self._files[index])


class NpzFeeds:
    """`.npz` files in order, each a feed: names to arrays."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def read(self, index: int) -> Feeds | None:
        """Feed `index`. Raises SampleError for a file that is no `.npz`."""
        if index >= len(self._files):
            return None
        arrays = open_npz(self._files[index])
        return {name: read_all(array) for name, array in arrays.items()}

    def where(self, index: int) -> str:
        """The file."""
        return str(self._files[index])
