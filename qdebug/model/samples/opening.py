"""From the DATA argument to samples: which format it is, and whether it fits the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from qdebug.errors import SampleError
from qdebug.inmemory import InMemory
from qdebug.model.samples.arrays import ArrayInMemory, open_array, open_npy, open_npz, read_all
from qdebug.model.samples.feed_files import (
    FeedFiles,
    find_data_sets,
    natural_key,
    npz_feed,
    open_json,
    test_data_feed,
)
from qdebug.model.samples.feeds import open_feeds
from qdebug.model.samples.hdf5 import open_hdf5
from qdebug.model.samples.iterables import feeds_of, open_script, split_spec
from qdebug.model.samples.matching import find_names
from qdebug.model.samples.pictures import SUFFIXES, picture_suffix, refuse_pictures
from qdebug.model.samples.samples import SampleArray, Samples, Source
from qdebug.model.samples.stacked import open_stacked
from qdebug.model.samples.unchanged import open_unchanged
from qdebug.types import TensorSpec
from qdebug.wording import option

STACKED: dict[str, Callable[[Path], dict[str, SampleArray]]] = {
    ".npz": open_npz,
    ".npy": open_npy,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
}
"""Formats whose arrays hold all samples, by file suffix."""

_IN_MEMORY = "the samples given in memory"
KINDS = (
    "an .npz, .npy, .h5 or .hdf5 file, a directory of .npy, .npz or test_data_set_*, "
    "Polygraphy's inputs .json, or script.py:function, which loads anything else"
)


def open_samples(
    spec: str,
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    batch_size: int | None = None,
    limited_by: str = "samples",
) -> Samples:
    """Opens the user's DATA argument for a model; see the package for formats and axes.

    Args:
        spec: a path, `script.py:function`, or what `samples_in_memory` made of an object.
        inputs: the model's inputs, in the model's order.
        limit: use at most this many samples.
        batch_size: samples per execution; default is the model's, or 1.
        limited_by: the setting that `limit` is; "" for data of which all are taken.

    Raises:
        SampleError: the data cannot be read, or does not fit the model.
    """
    if not inputs:
        raise SampleError(
            f"{spec}: the model has no inputs, so samples cannot be given to it.",
            "Check that this is the model that you mean: 'qdebug inspect' lists its inputs.",
            code="QD-SAMPLES-NO-INPUTS",
        )
    if limit is not None and limit < 1:
        raise SampleError(
            f"{option(limited_by or 'samples')} is {limit}; it must be at least 1.",
            code="QD-SAMPLES-COUNT",
        )
    source = spec.value if isinstance(spec, InMemory) else _open_source(spec, inputs)
    if isinstance(source, Samples):
        samples = source.first(limit)
        samples.check_inputs(inputs)
    elif isinstance(source, Mapping):
        reader, layout, extras = open_stacked(source, inputs, spec, limit)
        samples = Samples(reader, layout, extras, inputs, spec)
    else:
        feed_reader, layout, extras = open_feeds(source, inputs, spec, limit)
        samples = Samples(feed_reader, layout, extras, inputs, spec)
    _check_full_batches(samples, spec, limited_by)
    return samples if batch_size is None else samples.with_batch_size(batch_size)


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


def _open_source(spec: str, inputs: Sequence[TensorSpec]) -> Source:
    named = split_spec(spec)
    path = named[0] if named else Path(spec)
    try:
        if not path.exists():
            raise SampleError(
                f"{path}: no such file or directory.", f"Give {KINDS}.", code="QD-SAMPLES-NOT-FOUND"
            )
        if named:
            return open_script(*named)
        if path.is_dir():
            return open_directory(path, inputs)
        return _open_file(path, inputs)
    except OSError as error:
        raise SampleError(
            f"{path}: cannot be read ({error}).",
            "Check its permissions.",
            code="QD-SAMPLES-DAMAGED",
        ) from error


def _open_file(path: Path, inputs: Sequence[TensorSpec]) -> Source:
    suffix = path.suffix.lower()
    if suffix == ".json":
        return open_json([path])
    if suffix in SUFFIXES:
        raise refuse_pictures(path, path.suffix, inputs)
    if suffix not in STACKED:
        raise SampleError(
            f"{path}: unknown kind of data.", f"Give {KINDS}.", code="QD-SAMPLES-FORMAT"
        )
    return open_unchanged(path, STACKED[suffix])


def _check_full_batches(samples: Samples, where: str, limited_by: str) -> None:
    rest = samples.left_over
    if not rest:
        return
    full = samples.count - rest
    raise SampleError(
        f"{where}: {samples.count} samples do not fill the model's batches of "
        f"{samples.batch_size}.",
        f"Use {option(limited_by, str(full))}."
        if full and limited_by
        else f"Give {full or samples.batch_size} samples, or another multiple.",
        code="QD-SAMPLES-BATCH",
    )


_SUFFIXES = (".npy", ".npz", ".json")


def open_directory(path: Path, inputs: Sequence[TensorSpec]) -> Source:
    """What a directory holds, by its files' kind.

    Raises:
        SampleError: no known files, more than one kind, or `.npy` names that fit no input.
    """
    data_sets = find_data_sets(path)
    if data_sets:
        return FeedFiles(data_sets, partial(test_data_feed, names=[spec.name for spec in inputs]))
    files = {suffix: _files(path, suffix) for suffix in _SUFFIXES}
    kinds = [suffix for suffix in _SUFFIXES if files[suffix]]
    if kinds[:2] == [".npy", ".npz"]:
        raise SampleError(
            f"{path}: holds both .npy and .npz files.",
            "Keep one kind in the directory.",
            code="QD-SAMPLES-FORMAT",
        )
    if not kinds and (found := picture_suffix(path.iterdir())):
        error = refuse_pictures(path, found, inputs)
        raise error
    if not kinds:
        raise SampleError(
            f"{path}: a directory without .npy, .npz and .json files and test_data_set_* folders.",
            "Give a directory with one of these, or an .npz file.",
            code="QD-SAMPLES-FORMAT",
        )
    if kinds[0] == ".npy":
        return _open_npy_files(files[".npy"], inputs)
    if kinds[0] == ".npz":
        return FeedFiles(files[".npz"], npz_feed)
    return open_json(files[".json"])


def _files(path: Path, suffix: str) -> list[Path]:
    found = (file for file in path.iterdir() if file.suffix == suffix and file.is_file())
    return sorted(found, key=natural_key)


def _open_npy_files(files: list[Path], inputs: Sequence[TensorSpec]) -> Source:
    found = find_names([file.stem for file in files], inputs)
    if found or len(inputs) > 1:
        # With several inputs the names must fit; `match_names` says which one is missing.
        return {n: a for file in files for n, a in open_unchanged(file, open_npy).items()}
    if len(files) == 1:
        return open_unchanged(files[0], open_npy)
    return FeedFiles(files, lambda file: {inputs[0].name: read_all(open_array(file))})
