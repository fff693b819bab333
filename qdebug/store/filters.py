"""Lossless HDF5 filters for activations, and the choice between them by measurement.

Measured on the activations of a face detector (36 MB per sample, 12 % zeros), 2 cores:
`scripts/bench/bench_store.py` repeats it. Uncompressed chunks win unless the disk is slow.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdebug.errors import StoreError
from qdebug.store.schema import FilterName
from qdebug.types import Array

_PROBE_BYTES = 8 << 20
_PROBE_BYTES_PER_TENSOR = 2 << 20
_PROBE_WORTHWHILE_BYTES = 1 << 20
_REPEATS = 2


@dataclass(frozen=True)
class Cost:
    """What a filter does to the probe: seconds to compress it, and its size afterwards."""

    seconds: float
    stored_bytes: int


def dataset_options(name: FilterName) -> Mapping[str, Any]:
    """Arguments of h5py's create_dataset() for a filter.

    Raises:
        StoreError: hdf5plugin is not installed.
    """
    if name == "raw":
        return {}
    try:
        import hdf5plugin
    except ImportError as error:
        raise StoreError(
            f"The filter '{name}' needs hdf5plugin.", "Run `pip install hdf5plugin`."
        ) from error
    if name == "lz4":
        return dict(hdf5plugin.Bitshuffle(cname="lz4"))
    return dict(hdf5plugin.Bitshuffle(cname="zstd", clevel=1))


def choose(tensors: Iterable[Array], directory: Path) -> FilterName:
    """The filter with the shortest time to compress and write these tensors to this disk.

    Takes at most 8 MiB of them, and about 0.2 s. "raw" when hdf5plugin is missing, or when there
    is too little to measure.

    Raises:
        OSError: the directory cannot be written.
    """
    probe = _probe(tensors)
    size = sum(array.nbytes for array in probe)
    if size < _PROBE_WORTHWHILE_BYTES:
        return "raw"
    try:
        names: tuple[FilterName, ...] = ("lz4", "zstd")
        costs = {name: compress_cost(probe, dataset_options(name)) for name in names}
    except StoreError:
        return "raw"
    return fastest(costs, size, disk_seconds(probe, directory))


def fastest(costs: Mapping[FilterName, Cost], size: int, raw_seconds: float) -> FilterName:
    """The filter with the least compression plus disk time; "raw" wins ties.

    Args:
        costs: measured on `size` bytes.
        size: uncompressed bytes of the probe.
        raw_seconds: time to write `size` bytes to the disk as they are.
    """
    best: FilterName = "raw"
    best_seconds = raw_seconds
    for name, cost in costs.items():
        seconds = cost.seconds + raw_seconds * cost.stored_bytes / size
        if seconds < best_seconds:
            best, best_seconds = name, seconds
    return best


def compress_cost(probe: list[Array], options: Mapping[str, Any]) -> Cost:
    """Compress the probe in memory, one chunk per array; the best of two."""
    best = Cost(float("inf"), 0)
    for _ in range(_REPEATS):
        with h5py.File("probe", "w", driver="core", backing_store=False, rdcc_nbytes=0) as file:
            start = time.perf_counter()
            sets = [
                file.create_dataset(str(i), data=array, chunks=array.shape, **options)
                for i, array in enumerate(probe)
            ]
            seconds = time.perf_counter() - start
            stored = sum(item.id.get_storage_size() for item in sets)
        best = min(best, Cost(seconds, stored), key=lambda cost: cost.seconds)
    return best


def disk_seconds(probe: list[Array], directory: Path) -> float:
    """Write the probe to a nameless file and wait until the disk has it; the best of two."""
    best = float("inf")
    for _ in range(_REPEATS):
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            start = time.perf_counter()
            for array in probe:
                file.write(array.data)
            # The run ends with an fsync, so what counts is the disk, not the page cache.
            os.fsync(file.fileno())
            best = min(best, time.perf_counter() - start)
    return best


def _probe(tensors: Iterable[Array]) -> list[Array]:
    """One-dimensional pieces of the floats, at most 8 MiB together, from many tensors."""
    pieces: list[Array] = []
    left = _PROBE_BYTES
    for array in tensors:
        if array.dtype.kind != "f" or not array.size or left <= 0:
            continue
        count = max(1, min(left, _PROBE_BYTES_PER_TENSOR) // array.itemsize)
        piece = np.ascontiguousarray(array).reshape(-1)[:count]
        pieces.append(piece)
        left -= piece.nbytes
    return pieces
