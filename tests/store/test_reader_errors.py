"""What is not a complete run file is refused, and what was not kept is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from qdebug.errors import StoreError
from qdebug.store.reader import RunReader
from qdebug.store.schema import Keep
from qdebug.store.writer import RunWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with RunWriter(tmp_path / "run.h5", overwrite=False) as writer:
        writer.choose(Keep("all"), (2, 9), "float32")
        for sample in (2, 9):
            tensors = {"conv1/out": np.ones((1, 2000), np.float32), "fc": np.ones(3, np.float32)}
            writer.put("reference", sample, tensors)
        return writer.finish("{}")


@pytest.fixture
def run(path: Path) -> Iterator[RunReader]:
    with RunReader(path) as reader:
        yield reader


def test_files_that_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    h5py.File(tmp_path / "other.h5", "w").close()
    with pytest.raises(StoreError, match="QD-STORE-NOT-FOUND"):
        RunReader(tmp_path / "none")
    for name in (".", "text", "empty", "other.h5"):
        with pytest.raises(StoreError, match="QD-STORE-NOT-A-RUN"):
            RunReader(tmp_path / name)


def test_runs_that_cannot_be_used(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.attrs["complete"] = False
    with pytest.raises(StoreError, match="QD-STORE-INCOMPLETE"):
        RunReader(path)
    with h5py.File(path, "a") as file:
        file.attrs["schema"] = "qdebug.run/9"
    with pytest.raises(StoreError, match=r"(?s)qdebug\.run/9.*QD-STORE-VERSION"):
        RunReader(path)


@pytest.mark.parametrize("chunks", [None, (1 << 16,)])
@pytest.mark.parametrize(
    ("name", "kind"), [("samples", np.int64), ("results", h5py.string_dtype())]
)
def test_datasets_that_were_not_written_are_not_read(
    path: Path, name: str, kind: Any, chunks: tuple[int, ...] | None
) -> None:
    """However much a small file declares."""
    with h5py.File(path, "a") as file:
        del file[name]
        file.create_dataset(name, (1 << 36,), kind, chunks=chunks)
    with pytest.raises(StoreError, match="QD-STORE-DAMAGED"), RunReader(path) as run:
        assert run.results


def test_damaged_runs(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["results"], file["plan"]
        file["results"] = "{"
    with RunReader(path) as run:
        with pytest.raises(StoreError, match=r"(?s)results.*QD-STORE-DAMAGED"):
            _ = run.results
        with pytest.raises(StoreError, match=r"(?s)'plan'.*QD-STORE-DAMAGED"):
            _ = run.plan_text
    with h5py.File(path, "a") as file:
        del file["samples"]
    with pytest.raises(StoreError, match="QD-STORE-DAMAGED"):
        RunReader(path)


def test_a_truncated_run(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match="QD-STORE-NOT-A-RUN"):
        RunReader(path)


def test_an_unknown_tensor_shows_the_nearest(run: RunReader) -> None:
    with pytest.raises(StoreError, match=r"'conv2/out'(?s:.*)'conv1/out'.*QD-STORE-NO-TENSOR"):
        run.read("reference", "conv2/out", 2)
    with pytest.raises(StoreError, match="QD-STORE-NO-TENSOR"):
        run.read("candidate", "fc", 2)


def test_an_unknown_sample_shows_the_nearest(run: RunReader) -> None:
    with pytest.raises(StoreError, match=r"(?s)sample 8.*sample is 9.*QD-STORE-NOT-KEPT"):
        run.read("reference", "fc", 8)


def test_an_unknown_role_is_a_mistake_of_the_caller(run: RunReader) -> None:
    with pytest.raises(ValueError, match="role"):
        run.read("both", "fc", 2)


def _compress(path: Path, **options: object) -> None:
    """Rewrite a dataset with a filter, as h5repack does."""
    with h5py.File(path, "a") as file:
        group = file["tensors/00000"]
        values = group["reference"][()]
        del group["reference"]
        group.create_dataset("reference", data=values, chunks=values.shape, **options)


READ = """
import sys
if sys.argv[2] == "without":
    sys.modules["hdf5plugin"] = None
from qdebug.errors import StoreError
from qdebug.network.samples import Batch
from qdebug.store.reader import RunReader
try:
    with RunReader(sys.argv[1]) as run:
        print(run.read("reference", "conv1/out", 2).sum())
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("plugin", "expected"), [("with", "2000.0"), ("without", "QD-STORE-FILTER")]
)
def test_a_compressed_run_needs_the_plugin_and_says_so(
    plugin: str, expected: str, path: Path
) -> None:
    import hdf5plugin

    _compress(path, **hdf5plugin.Bitshuffle(cname="lz4"))
    done = subprocess.run(
        [sys.executable, "-c", READ, path, plugin], capture_output=True, text=True, check=False
    )
    assert expected in done.stdout, done.stderr


def test_a_run_compressed_with_what_hdf5_has_needs_no_plugin(path: Path) -> None:
    _compress(path, compression="gzip")
    with RunReader(path) as run:
        assert run.read("reference", "conv1/out", 9).sum() == 2000


def test_a_run_that_was_cut_off_while_it_is_open_gives_no_zeros(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with RunWriter(tmp_path / "run.h5", overwrite=False) as writer:
        writer.choose(Keep("all"), range(8), "float32")
        for row in range(8):
            tensors = {name: rng.normal(size=(1, 20000)).astype(np.float32) for name in "ab"}
            writer.put("reference", row, tensors)
        path = writer.finish("{}")
    with RunReader(path) as reader:
        reader.read("reference", "a", 0)
        os.truncate(path, int(path.stat().st_size * 0.3))  # HDF5 holds the index of row 3 by now
        with pytest.raises(StoreError, match="QD-STORE-CHANGED"):
            reader.read("reference", "a", 3)


def test_a_run_that_is_replaced_stays_readable_as_it_was(path: Path) -> None:
    with RunReader(path) as reader:
        (path.parent / "other").write_bytes(b"other")
        (path.parent / "other").replace(path)
        assert reader.read("reference", "fc", 9).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.reshape(-1),
        lambda rows: rows.reshape(len(rows), -1),
        lambda rows: rows[:, :, :5],
        lambda rows: rows.astype(np.float64),
        lambda rows: rows[0, 0, 0],
    ],
)
def test_a_tensor_in_another_form_is_damaged(path: Path, change: Any) -> None:
    with h5py.File(path, "r+") as file:
        name = "tensors/00000/reference"
        rows = file[name][()]
        del file[name]
        file[name] = change(rows)
    with RunReader(path) as reader, pytest.raises(StoreError, match="QD-STORE-DAMAGED"):
        reader.read("reference", "conv1/out", 9)
