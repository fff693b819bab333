"""A sample file that changes while it is read is refused: no figure comes from two states of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from qdebug.errors import SampleError
from qdebug.network.samples import Samples, open_samples
from qdebug.network.samples.readers.npy import open_array
from qdebug.types import TensorSpec


def _files(given: str) -> list[Path]:
    path = Path(given)
    return sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]


def _read_all(samples: Samples) -> None:
    for batch in samples.batches():
        samples.feeds(batch.start, batch.count)


def _cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _written_anew(file: Path) -> None:
    """As many bytes, at another time."""
    content = file.read_bytes()
    file.write_bytes(content)
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


def _replaced(file: Path) -> None:
    other = file.with_name("other.tmp")
    other.write_bytes(file.read_bytes())
    os.utime(other, ns=(0, file.stat().st_mtime_ns))
    other.replace(file)


@pytest.mark.parametrize("change", [_cut_off, _written_anew, _replaced])
def test_a_file_that_changed_is_refused_in_every_format(
    tmp_path: Path, write: Callable[..., str], arrays, inputs, change: Callable[[Path], None]
) -> None:
    given = write(tmp_path, arrays)
    if given.endswith(".py"):
        pytest.skip("a script reads its files itself")
    samples = open_samples(given, inputs)
    _read_all(samples)
    for file in _files(given):
        change(file)
    with pytest.raises(SampleError) as caught:
        _read_all(samples)
    assert caught.value.code == "QD-SAMPLES-CHANGED"


@pytest.mark.parametrize("name", ["a.h5", "a.npy", "a.npz"])
def test_labels_of_a_file_that_was_cut_off_are_refused(tmp_path: Path, name: str) -> None:
    x, labels = np.ones((64, 8), np.float32), np.arange(1, 65)
    path = tmp_path / name
    if name.endswith(".h5"):
        with h5py.File(path, "w") as file:
            file["x"], file["labels"] = x, labels
    elif name.endswith(".npz"):
        np.savez(path, x=x, labels=labels)
    else:
        path = tmp_path / "folder"
        path.mkdir()
        np.save(path / "x.npy", x)
        np.save(path / "labels.npy", labels)
    samples = open_samples(str(path), [TensorSpec("x", ("N", 8), np.dtype(np.float32))])
    for file in _files(str(path)):
        _cut_off(file)
    with pytest.raises(SampleError) as caught:
        samples.extras["labels"]
    assert caught.value.code == "QD-SAMPLES-CHANGED"


def test_a_file_that_is_gone_is_said_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.ones((4, 8), np.float32)
    samples = open_samples(
        str(tmp_path / "a.h5"), [TensorSpec("x", ("N", 8), np.dtype(np.float32))]
    )
    (tmp_path / "a.h5").unlink()
    with pytest.raises(SampleError) as caught:
        _read_all(samples)
    assert caught.value.code == "QD-SAMPLES-DAMAGED"


def test_fewer_values_than_asked_for_are_never_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((64, 8), np.float32))
    array = open_array(tmp_path / "a.npy")
    _cut_off(tmp_path / "a.npy")
    with pytest.raises(SampleError) as caught:
        array.read(60, 64)
    assert caught.value.code == "QD-SAMPLES-DAMAGED"
