"""Arrays in HDF5 files, read row by row; and what may be read of an HDF5 file at all.

A dataset may say that its data lie in another file, and a link may lead there: neither is followed,
since a file from elsewhere would show what this machine holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from qdebug.errors import SampleError
from qdebug.inputfiles import check_file
from qdebug.network.samples.damage import reading
from qdebug.network.samples.samples import SampleArray, Source
from qdebug.types import Array, TensorSpec


def read_file(path: Path, _: Sequence[TensorSpec]) -> Source:
    """All samples, by the name of the input. Raises as `open_hdf5`."""
    return open_hdf5(path)


def open_hdf5(path: Path) -> dict[str, SampleArray]:
    """The datasets of an HDF5 file by path, none of them read yet.

    Raises:
        SampleError: the file is not HDF5, or truncated, or has no datasets.
    """
    import h5py

    with reading(path, "Copy the file again, or end the program that writes it."):
        check_file(path)
        arrays = _datasets(h5py.File(path, "r"), path)
    if not arrays:
        raise SampleError(
            f"{path}: holds no datasets.",
            "Write one dataset per model input.",
            code="QD-SAMPLES-FORMAT",
        )
    return arrays


def _datasets(file: Any, path: Path) -> dict[str, SampleArray]:
    """The datasets of an h5py file by path. Links are not followed.

    Raises:
        SampleError: the data of one lie in another file.
    """
    import h5py

    names: list[str] = []
    file.visit(names.append)
    arrays: dict[str, SampleArray] = {}
    for name in names:
        item = file[name]
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            continue
        if lies_elsewhere(item):
            raise SampleError(
                f"{path}: the data of '{name}' lie in another file.",
                "Copy them into this file, as `h5repack` does.",
                code="QD-SAMPLES-HDF5-EXTERNAL",
            )
        is_text = h5py.check_string_dtype(item.dtype) is not None
        arrays[name] = Hdf5Array(item.asstr() if is_text else item, item, f"{path}: '{name}'")
    return arrays


def lies_elsewhere(dataset: Any) -> bool:
    """Whether an h5py dataset takes its data from other files, which may be any on this machine."""
    return bool(dataset.external) or bool(dataset.is_virtual)


def own_item(group: Any, name: str) -> Any:
    """What an h5py group itself holds under a name.

    Raises:
        KeyError: nothing.
        ValueError: it is a link, or its data lie in another file.
    """
    import h5py

    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise ValueError(f"'{name}' is a link to somewhere else")
    item = group[name]
    if isinstance(item, h5py.Dataset) and lies_elsewhere(item):
        raise ValueError(f"the data of '{name}' lie in another file")
    return item


def own_values(group: Any, name: str) -> Any:
    """All that a dataset of an h5py group holds. A small file may declare one of any size: nothing
    is read unless all of it was written.

    Raises:
        KeyError: as `own_item`.
        ValueError: as `own_item`, or it was not written completely.
    """
    dataset = own_item(group, name)
    if dataset.chunks:
        declared = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        there = dataset.id.get_num_chunks()
    else:
        declared, there = dataset.nbytes or 0, dataset.id.get_storage_size()
    if there < declared:
        raise ValueError(f"'{name}' was not written completely")
    return dataset[()]


INSTALL_FILTER = "Run `pip install hdf5plugin`, or decompress the file with `h5repack -f NONE`."


def missing_filter(dataset: Any) -> str:
    """An HDF5 filter that an h5py dataset needs and that is not installed, or "".

    Registers the filters of hdf5plugin, where that is installed, before one is called missing.
    """
    import h5py

    properties = dataset.id.get_create_plist()
    used = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    if any(not h5py.h5z.filter_avail(code) for code, *_ in used):
        with suppress(ImportError):
            import_module("hdf5plugin")  # registers its filters with HDF5
    for code, _, _, name in used:
        if not h5py.h5z.filter_avail(code):
            return f"'{name.decode(errors='replace') or code}'"
    return ""


class Hdf5Array:
    """A dataset; text is read as numpy strings."""

    def __init__(self, source: Any, dataset: Any, where: str) -> None:
        self.shape: tuple[int, ...] = tuple(dataset.shape)
        self.dtype: np.dtype[np.generic] = np.dtype("U") if source is not dataset else dataset.dtype
        self._source = source
        self._where = where
        self._missing = missing_filter(dataset)

    def read(self, start: int, stop: int) -> Array:
        """Rows start to stop.

        Raises:
            SampleError: the data is damaged, or needs a filter that is not installed.
        """
        if self._missing:
            raise SampleError(
                f"{self._where}: compressed with the HDF5 filter {self._missing}, which is not"
                " installed.",
                INSTALL_FILTER,
                code="QD-SAMPLES-FILTER",
            )
        with reading(self._where):
            data = self._source[start:stop] if self.shape else self._source[()]
        return np.asarray(data, dtype=self.dtype if self.dtype.kind == "U" else None)
