"""Memory holds one batch, and any slice is the array's slice."""

from __future__ import annotations

import base64
import io
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdebug.network.samples import Samples, open_samples
from qdebug.network.samples.readers.npz import open_npz
from qdebug.network.samples.samples import Extras
from qdebug.types import TensorSpec

MB = 1 << 20
ROW = 64 * 1024  # float32 values: 256 KB


def write_npz(path: Path, rows: int, compressed: bool) -> str:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (rows, ROW)}
    )
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with (
        zipfile.ZipFile(path / "big.npz", "w", kind) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for row in range(rows):
            member.write(np.full(ROW, row, np.float32).tobytes())
    return str(path / "big.npz")


def write_h5(path: Path, rows: int) -> str:
    import h5py

    with h5py.File(path / "big.h5", "w") as file:
        data = file.create_dataset("x", (rows, ROW), "f4", chunks=(1, ROW), compression="lzf")
        for row in range(rows):
            data[row] = row
    return str(path / "big.h5")


def write_files(path: Path, rows: int) -> str:
    for row in range(rows):
        np.save(path / f"{row}.npy", np.full(ROW, row, np.float32))
    return str(path)


def write_json(path: Path, rows: int) -> str:
    with (path / "big.json").open("w") as file:
        for row in range(rows):
            stream = io.BytesIO()
            np.save(stream, np.full((1, ROW), row, np.float32))
            text = base64.b64encode(stream.getvalue()).decode()
            file.write("[,"[row > 0] + f'{{"x":{{"array":"{text}","polygraphy_class":"ndarray"}}}}')
        file.write("]")
    return str(path / "big.json")


def write_script(path: Path, rows: int) -> str:
    (path / "big.py").write_text(
        "import numpy as np\n"
        f"def load_data():\n    for i in range({rows}):\n"
        f"        yield {{'x': np.full((1, {ROW}), i, np.float32)}}\n"
    )
    return str(path / "big.py")


@pytest.mark.parametrize(
    "write",
    [
        lambda path, rows: write_npz(path, rows, compressed=True),
        lambda path, rows: write_npz(path, rows, compressed=False),
        write_h5,
        write_files,
        write_json,
        write_script,
    ],
    ids=["npz-compressed", "npz-stored", "h5", "npy-files", "json", "script"],
)
def test_memory_does_not_grow_with_the_samples(tmp_path, write) -> None:
    spec = write(tmp_path, 256)  # 64 MB
    inputs = [TensorSpec("x", (None, ROW), np.dtype(np.float32))]
    open_samples(spec, inputs, limit=1)  # imports are not the point
    tracemalloc.start()
    try:
        samples = open_samples(spec, inputs, batch_size=4)
        assert samples.count == 256
        for _ in range(2):
            for batch in samples.batches():
                assert samples.feeds(batch.start, batch.count)["x"][1, 5] == batch.start + 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MB


def test_reading_in_order_never_restarts(tmp_path, monkeypatch) -> None:
    samples = open_samples(
        write_npz(tmp_path, 40, compressed=True),
        [TensorSpec("x", (1, ROW), np.dtype(np.float32))],
    )
    opened = []
    monkeypatch.setattr(
        zipfile.ZipFile,
        "open",
        lambda *args, real=zipfile.ZipFile.open: opened.append(1) or real(*args),
    )
    for start in range(40):
        samples.feeds(start, 1)
    assert len(opened) == 1
    for start in range(0, 40, 2):  # two threads, out of step
        samples.feeds(start + 1, 1)
        samples.feeds(start, 1)
    assert len(opened) == 3


DATA = np.random.default_rng(3).standard_normal((37, 2, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> list[Samples]:
    import h5py

    folder = tmp_path_factory.mktemp("slices")
    np.savez(folder / "stored.npz", x=DATA)
    np.savez_compressed(folder / "packed.npz", x=DATA)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=DATA, chunks=(4, 2, 5), compression="gzip")
    inputs = [TensorSpec("x", (None, 2, 5), np.dtype(np.float32))]
    return [open_samples(str(file), inputs) for file in sorted(folder.iterdir())]


@settings(max_examples=60, deadline=None)
@given(
    slices=st.lists(
        st.tuples(st.integers(0, 36), st.integers(1, 37)).map(
            lambda s: (s[0], min(s[1], 37 - s[0]))
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_slices_in_any_order(opened, slices) -> None:
    for start, count in slices:
        for samples in opened:
            np.testing.assert_array_equal(
                samples.feeds(start, count)["x"], DATA[start : start + count]
            )


def test_several_threads_read_one_array(tmp_path) -> None:
    """As candidates of a search do that run at once, each with its batch's labels."""
    rows = np.arange(400 * 512).reshape(400, 512)
    np.savez_compressed(tmp_path / "x.npz", x=rows)
    array = open_npz(tmp_path / "x.npz")["x"]
    starts = [*range(0, 400, 8)] * 4
    with ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda start: array.read(start, start + 8), starts)
        for start, found in zip(starts, read, strict=True):
            np.testing.assert_array_equal(found, rows[start : start + 8])


@pytest.mark.parametrize("compressed", [False, True])
def test_rows_of_labels_are_read_alone(tmp_path: Path, compressed: bool) -> None:
    """A metric takes those of a batch at a time: all of them anew would be the square of them."""
    given = {"labels": np.arange(40), "names": np.array([f"n{k}" * k for k in range(40)])}
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "s.npz", x=np.zeros((40, 4), np.float32), scale=np.float32(3), **given)
    spec = TensorSpec("x", ("N", 4), np.dtype(np.float32))
    samples = open_samples(str(tmp_path / "s.npz"), [spec])
    for start, count in ((0, 3), (3, 10), (38, 2), (1, 1)):
        found = samples.extras.rows(start, count)
        assert set(found) == set(samples.extras)
        for name, array in given.items():
            assert found[name].tolist() == array[start : start + count].tolist()
    read: list[int] = []
    original = open_npz(tmp_path / "s.npz")["labels"]

    class Watched:
        shape, dtype = original.shape, original.dtype

        def read(self, start: int, stop: int) -> np.ndarray:
            read.append(stop - start)
            return original.read(start, stop)

    extras = Extras({"labels": Watched()}, 40)
    for start in range(0, 40, 8):
        extras.rows(start, 8)
    assert read == [8] * 5
