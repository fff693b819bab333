"""What a command was given, as files that workers can read: models and samples of any kind."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from qdebug.inmemory import InMemory
from qdebug.model.load import external_files
from qdebug.model.samples import Samples
from qdebug.model.samples.iterables import split_spec
from qdebug.pipeline.cluster.files import SharedFile, shared_file
from qdebug.types import Array


def model_file(spec: str, folder: Path) -> SharedFile:
    """A model with its external data. One in memory is written to `folder`."""
    if isinstance(spec, InMemory):
        path = folder / "model.onnx"
        path.write_bytes(spec.value.SerializeToString(deterministic=True))
        return shared_file(path)
    return shared_file(spec, _external_data(Path(spec)))


def _external_data(path: Path) -> list[str]:
    """The files beside a model that hold its weights; it was read before, so it is valid."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except (DecodeError, UnicodeDecodeError):
        return []
    return external_files(proto)


def sample_file(samples: Samples, target: Path) -> SharedFile:
    """The file or folder that samples are in; those of a script or in memory are written to
    `target`, an .npz, or a folder of them where their feeds are executed as they were given."""
    where = samples.where
    if not isinstance(where, InMemory) and split_spec(where) is None and Path(where).exists():
        return shared_file(where)
    if samples.is_stacked:
        path = target.with_suffix(".npz")
        _write_stacked(samples, path)
        return shared_file(path)
    target.mkdir()
    extras = {name: samples.extras[name] for name in samples.extras}
    for batch in samples.batches():
        feeds = dict(samples.feeds(batch.start, batch.count))
        rows = slice(batch.start, batch.start + batch.count)
        labels = {name: array[rows] if array.ndim else array for name, array in extras.items()}
        _write(target / f"{batch.index:08d}.npz", {**feeds, **labels})
    return shared_file(target)


def _write(path: Path, arrays: dict[str, Array]) -> None:
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                np.lib.format.write_array(out, array, allow_pickle=False)


def _write_stacked(samples: Samples, path: Path) -> None:
    """All samples, input by input: memory holds one batch."""
    batches = list(samples.batches())
    first = samples.feeds(batches[0].start, batches[0].count)
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in first.items():
            rows = array.shape[0] // batches[0].count
            shape = (rows * samples.count, *array.shape[1:])
            header = {
                "descr": np.lib.format.dtype_to_descr(array.dtype),
                "fortran_order": False,
                "shape": shape,
            }
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                np.lib.format.write_array_header_2_0(out, header)
                for batch in batches:
                    feeds = samples.feeds(batch.start, batch.count)
                    out.write(np.ascontiguousarray(feeds[name]).tobytes())
        for name in samples.extras:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as out:
                np.lib.format.write_array(out, samples.extras[name], allow_pickle=False)
