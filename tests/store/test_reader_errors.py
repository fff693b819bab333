"""What is not a complete run file is refused, and what was not kept is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from qdebug.errors import StoreError
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with RunWriter(tmp_path / "run.h5", overwrite=False, keep=Keep("all"), filter="raw") as writer:
        for row, sample in enumerate((2, 9)):
            tensors = {"conv1/out": np.ones((1, 2000), np.float32), "fc": np.ones(3, np.float32)}
            writer.put_rows("reference", row, sample, tensors)
        return writer.finish("{}")


@pytest.fixture
def run(path: Path) -> Iterator[RunReader]:
    with RunReader(path) as reader:
        yield reader


def test_files_that_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    h5py.File(tmp_path / "other.h5", "w").close()
    cases = {"none": "no such file", ".": "is a directory", "text": "not an HDF5 file"}
    cases |= {"empty": "not an HDF5 file", "other.h5": "not a qdebug run"}
    for name, message in cases.items():
        with pytest.raises(StoreError, match=message):
            RunReader(tmp_path / name)


def test_runs_that_cannot_be_used(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.attrs["complete"] = False
    with pytest.raises(StoreError, match="incomplete"):
        RunReader(path)
    with h5py.File(path, "a") as file:
        file.attrs["schema"] = "qdebug.run/9"
    with pytest.raises(StoreError, match=r"qdebug\.run/9"):
        RunReader(path)


def test_damaged_runs(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["results"], file["plan"]
        file["results"] = "{"
    with RunReader(path) as run:
        with pytest.raises(StoreError, match="results cannot be read"):
            _ = run.results
        with pytest.raises(StoreError, match="'plan' cannot be read"):
            _ = run.plan_text
    with h5py.File(path, "a") as file:
        del file["samples"]
    with pytest.raises(StoreError, match="damaged"):
        RunReader(path)


def test_a_truncated_run(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="truncated"):
        RunReader(path)


def test_an_unknown_tensor_shows_the_nearest(run: RunReader) -> None:
    with pytest.raises(StoreError, match=r"'conv2/out'(?s:.*)'conv1/out'"):
        run.read("reference", "conv2/out", 2)
    with pytest.raises(StoreError, match="kept no activations of this role"):
        run.read("candidate", "fc", 2)


def test_an_unknown_sample_shows_the_nearest(run: RunReader) -> None:
    with pytest.raises(StoreError, match="sample 8 were not kept; the nearest kept sample is 9"):
        run.read("reference", "fc", 8)


def test_an_unknown_role_is_a_mistake_of_the_caller(run: RunReader) -> None:
    with pytest.raises(ValueError, match="role"):
        run.read("both", "fc", 2)  # type: ignore[arg-type]
