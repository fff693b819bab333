"""The same data in every format, and models' inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from qdebug.types import TensorSpec

Arrays = Mapping[str, npt.NDArray[np.generic]]
Writer = Callable[[Path, Arrays], str]
"""Writes arrays, stacked on axis 0, and gives the DATA argument that names them."""


def _npz(path: Path, arrays: Arrays) -> str:
    np.savez(path / "data.npz", **arrays)
    return str(path / "data.npz")


def _npz_compressed(path: Path, arrays: Arrays) -> str:
    np.savez_compressed(path / "packed.npz", **arrays)
    return str(path / "packed.npz")


def _npz_fortran(path: Path, arrays: Arrays) -> str:
    np.savez_compressed(path / "f.npz", **{k: np.asfortranarray(v) for k, v in arrays.items()})
    return str(path / "f.npz")


def _hdf5(path: Path, arrays: Arrays) -> str:
    import h5py

    with h5py.File(path / "data.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, chunks=True, compression="lzf")
    return str(path / "data.h5")


def _npy_by_name(path: Path, arrays: Arrays) -> str:
    (path / "named").mkdir()
    for name, array in arrays.items():
        np.save(path / "named" / f"{name}.npy", array)
    return str(path / "named")


def _npz_feeds(path: Path, arrays: Arrays) -> str:
    (path / "feeds").mkdir()
    for index, feed in enumerate(_feeds(arrays)):
        np.savez(path / "feeds" / f"s{index}.npz", **feed)
    return str(path / "feeds")


def _json(path: Path, arrays: Arrays) -> str:
    json = pytest.importorskip("polygraphy.json")
    json.save_json(list(_feeds(arrays)), str(path / "inputs.json"), "inputs")
    return str(path / "inputs.json")


def _json_directory(path: Path, arrays: Arrays) -> str:
    json = pytest.importorskip("polygraphy.json")
    (path / "json").mkdir()
    for index, feed in enumerate(_feeds(arrays)):
        json.save_json(feed, str(path / "json" / f"{index:010d}.json"))
    return str(path / "json")


def _script(path: Path, arrays: Arrays) -> str:
    np.savez(path / "behind.npz", **arrays)
    (path / "loader.py").write_text(
        "from pathlib import Path\nimport numpy as np\n"
        "def load_data():\n"
        "    data = dict(np.load(Path(__file__).parent / 'behind.npz'))\n"
        "    for i in range(len(next(iter(data.values())))):\n"
        "        yield {name: array[i : i + 1] for name, array in data.items()}\n"
    )
    return str(path / "loader.py")


def _feeds(arrays: Arrays) -> list[Arrays]:
    count = len(next(iter(arrays.values())))
    return [{name: a[i : i + 1] for name, a in arrays.items()} for i in range(count)]


WRITERS: dict[str, Writer] = {
    writer.__name__.strip("_"): writer
    for writer in (
        _npz,
        _npz_compressed,
        _npz_fortran,
        _hdf5,
        _npy_by_name,
        _npz_feeds,
        _json,
        _json_directory,
        _script,
    )
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Writer:
    """A writer of each format in turn."""
    return WRITERS[request.param]


@pytest.fixture
def write_hdf5() -> Writer:
    return _hdf5


@pytest.fixture
def arrays() -> Arrays:
    """Eleven samples of two inputs, and labels."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.standard_normal((11, 3, 4, 5)).astype(np.float32),
        "ids": rng.integers(0, 100, (11, 7)),
        "labels": np.arange(11),
    }


@pytest.fixture
def inputs() -> list[TensorSpec]:
    """Inputs of `arrays`, with a dynamic batch axis."""
    return [spec("image", "N", 3, 4, 5), spec("ids", "N", None, dtype=np.int64)]


def spec(name: str, *shape: int | str | None, dtype: npt.DTypeLike = np.float32) -> TensorSpec:
    return TensorSpec(name, shape, np.dtype(dtype))


@pytest.fixture
def make_spec() -> Callable[..., TensorSpec]:
    return spec
