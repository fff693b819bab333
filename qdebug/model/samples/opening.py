"""From the DATA argument to samples: which format it is, and whether it fits the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.model.samples import iterables
from qdebug.model.samples.arrays import open_array, open_hdf5, open_npy, open_npz
from qdebug.model.samples.feed_files import (
    NpyFeeds,
    NpzFeeds,
    OnnxTestData,
    find_data_sets,
    natural_key,
    open_json,
)
from qdebug.model.samples.feeds import open_feeds
from qdebug.model.samples.matching import find_names
from qdebug.model.samples.samples import Layout, SampleArray, Samples, Source
from qdebug.model.samples.stacked import open_stacked
from qdebug.types import TensorSpec

STACKED: dict[str, Callable[[Path], dict[str, SampleArray]]] = {
    ".npz": open_npz,
    ".npy": open_npy,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
}
"""Formats whose arrays hold all samples, by file suffix."""

KINDS = (
    "an .npz, .npy, .h5 or .hdf5 file, a directory of .npy, .npz or test_data_set_*, "
    "Polygraphy's inputs .json, or script.py:function"
)


def open_samples(
    spec: str,
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    batch_size: int | None = None,
) -> Samples:
    """Opens the user's DATA argument for a model; see the package for formats and axes.

    Args:
        spec: a path, or `script.py:function`.
        inputs: the model's inputs, in the model's order.
        limit: use at most so many samples (`--samples`).
        batch_size: samples per execution (`--batch-size`); default is the model's, or 1.

    Raises:
        SampleError: the data cannot be read, or does not fit the model.
    """
    if not inputs:
        raise SampleError(f"{spec}: the model has no inputs to feed.", "Check the model.")
    if limit is not None and limit < 1:
        raise SampleError(f"--samples is {limit}; it must be at least 1.")
    source = _open_source(spec, inputs)
    if isinstance(source, Mapping):
        reader, layout, extras = open_stacked(source, inputs, spec, limit)
        samples = Samples(reader, layout, extras, inputs, spec)
    else:
        feed_reader, layout, extras = open_feeds(source, inputs, spec, limit)
        samples = Samples(feed_reader, layout, extras, inputs, spec)
    _check_full_batches(layout, spec)
    return samples if batch_size is None else samples.with_batch_size(batch_size)


def _open_source(spec: str, inputs: Sequence[TensorSpec]) -> Source:
    named = iterables.split_spec(spec)
    path = named[0] if named else Path(spec)
    try:
        if not path.exists():
            raise SampleError(f"{path}: no such file or directory.", f"Give {KINDS}.")
        if named:
            return iterables.open_script(*named)
        if path.is_dir():
            return open_directory(path, inputs)
        return _open_file(path)
    except OSError as error:
        raise SampleError(f"{path}: cannot be read ({error}).", "Check its permissions.") from error


def _open_file(path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix == ".json":
        return open_json([path])
    if suffix not in STACKED:
        raise SampleError(f"{path}: unknown kind of data.", f"Give {KINDS}.")
    return STACKED[suffix](path)


def _check_full_batches(layout: Layout, where: str) -> None:
    rest = layout.count % layout.batch_size
    if layout.batch_is_free or layout.offsets is not None or not rest:
        return
    full = layout.count - rest
    raise SampleError(
        f"{where}: {layout.count} samples do not fill the model's batches of {layout.batch_size}.",
        f"Use --samples {full}." if full else f"Give at least {layout.batch_size} samples.",
    )


_SUFFIXES = (".npy", ".npz", ".json")


def open_directory(path: Path, inputs: Sequence[TensorSpec]) -> Source:
    """What a directory holds, by its files' kind.

    Raises:
        SampleError: no known files, more than one kind, or `.npy` names that fit no input.
    """
    data_sets = find_data_sets(path)
    if data_sets:
        return OnnxTestData(data_sets, inputs)
    files = {suffix: _files(path, suffix) for suffix in _SUFFIXES}
    kinds = [suffix for suffix in _SUFFIXES if files[suffix]]
    if kinds[:2] == [".npy", ".npz"]:
        raise SampleError(
            f"{path}: holds both .npy and .npz files.", "Keep one kind in the directory."
        )
    if not kinds:
        raise SampleError(
            f"{path}: holds no .npy, .npz or .json files and no test_data_set_* directories.",
            "Give a directory of one of these, or an .npz file.",
        )
    if kinds[0] == ".npy":
        return _open_npy_files(files[".npy"], inputs)
    return NpzFeeds(files[".npz"]) if kinds[0] == ".npz" else open_json(files[".json"])


def _files(path: Path, suffix: str) -> list[Path]:
    found = (file for file in path.iterdir() if file.suffix == suffix and file.is_file())
    return sorted(found, key=natural_key)


def _open_npy_files(files: list[Path], inputs: Sequence[TensorSpec]) -> Source:
    found = find_names([file.stem for file in files], inputs)
    if found or len(inputs) > 1:
        # With several inputs the names must fit; `match_names` says which one is missing.
        return {file.stem: open_array(file) for file in files}
    return open_npy(files[0]) if len(files) == 1 else NpyFeeds(files, inputs[0].name)
