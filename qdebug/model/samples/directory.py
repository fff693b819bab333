"""Directories: of `.npy`, of `.npz`, of Polygraphy's JSON, or of ONNX test data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qdebug.errors import SampleError
from qdebug.model.samples.base import Source, natural_key
from qdebug.model.samples.feed_files import NpyFeeds, NpzFeeds
from qdebug.model.samples.inputs_json import open_json
from qdebug.model.samples.names import find_names
from qdebug.model.samples.npy import open_array, open_npy
from qdebug.model.samples.onnx_test_data import OnnxTestData, find_data_sets
from qdebug.types import TensorSpec

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
