"""HDF5 files: every dataset is an array, named by its path without the leading '/'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.model.samples.base import SampleArray
from qdebug.types import Array


def open_hdf5(path: Path) -> dict[str, SampleArray]:
    """The datasets of an HDF5 file by path, none of them read yet.

    Raises:
        SampleError: h5py is missing, the file is no HDF5 file or truncated, or has no datasets.
    """
    try:
        import h5py
    except ImportError as error:
        raise SampleError(f"{path}: reading it needs h5py.", "Run `pip install h5py`.") from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise SampleError(
            f"{path}: not an HDF5 file, truncated, or locked by a writer ({error}).",
            "Close or repeat the program that wrote it.",
        ) from error
    arrays: dict[str, SampleArray] = {}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            is_text = h5py.check_string_dtype(item.dtype) is not None
            arrays[name] = Hdf5Array(item.asstr() if is_text else item, item, f"{path}: '{name}'")

    file.visititems(add)
    if not arrays:
        raise SampleError(f"{path}: holds no datasets.", "Write one dataset per model input.")
    return arrays


class Hdf5Array:
    """A dataset; text is read as numpy strings."""

    def __init__(self, source: Any, dataset: Any, where: str) -> None:
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.dtype: np.dtype[np.generic] = np.dtype("U") if source is not dataset else dataset.dtype
        self._source = source
        self._where = where

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop.

        Raises:
            SampleError: the data is damaged, or needs a filter that is not installed.
        """
        try:
            data = self._source[start:stop] if self.shape else self._source[()]
        except OSError as error:
            raise SampleError(
                f"{self._where}: cannot be read ({error}).",
                "Copy the file again; for a filter, `pip install hdf5plugin` and import it.",
            ) from error
        return np.asarray(data, dtype=self.dtype if self.dtype.kind == "U" else None)
