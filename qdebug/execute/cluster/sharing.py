"""What a command was given, as files that workers can read: models and samples of any kind, and
functions of the user's."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from qdebug.execute.cluster.files import SharedFile, shared_file
from qdebug.execute.cluster.unit import Place
from qdebug.inmemory import InMemory
from qdebug.metrics.task import TaskMetric, load_metric
from qdebug.network.load import external_files
from qdebug.network.samples import Samples
from qdebug.network.samples.readers.python import split_spec
from qdebug.outputfiles import kept_in
from qdebug.types import Array


@dataclass(frozen=True)
class SharedMetric:
    """An end-to-end metric, as workers load it.

    Attributes:
        name: what `load_metric` takes; of a function in a file, the function's name.
        file: that file.
        itself: the metric, where its function was given in memory.
    """

    name: str
    file: SharedFile | None = None
    itself: TaskMetric | None = None

    @classmethod
    def of(cls, metric: TaskMetric) -> SharedMetric:
        """That of the client."""
        if metric.function is not None:
            return cls(metric.name, itself=metric)
        if metric.file is not None:
            return cls(metric.name.rpartition(":")[2], shared_file(metric.file))
        return cls(metric.name)

    def loaded(self, place: Place) -> TaskMetric:
        """The metric. Raises as `load_metric` does, and NotHere."""
        if self.itself is not None:
            return self.itself
        if self.file is not None:
            return load_metric(f"{place.path(self.file)}:{self.name}")
        return load_metric(self.name)


def model_file(spec: str, folder: Path) -> SharedFile:
    """A model with its external data. One in memory is written to `folder`.

    Raises:
        StoreError: it cannot be written.
    """
    if isinstance(spec, InMemory):
        data = spec.value.SerializeToString(deterministic=True)
        path = folder / f"model-{hashlib.sha256(data).hexdigest()}.onnx"
        with kept_in(folder.parent, "the model for workers"):
            path.write_bytes(data)
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
    `target`, an .npz, or a folder of them where their feeds are executed as they were given.

    Raises:
        StoreError: they cannot be written.
    """
    where = samples.where
    if not isinstance(where, InMemory) and split_spec(where) is None and Path(where).exists():
        return shared_file(where)
    with kept_in(target.parent.parent, "the samples for workers"):
        if samples.is_stacked:
            target = target.with_suffix(".npz")
            _write_stacked(samples, target)
        else:
            target.mkdir()
            _write_each(samples, target)
    return shared_file(target)


def _write_each(samples: Samples, folder: Path) -> None:
    extras = {name: samples.extras[name] for name in samples.extras}
    for batch in samples.batches():
        feeds = dict(samples.feeds(batch.start, batch.count))
        rows = slice(batch.start, batch.start + batch.count)
        labels = {name: array[rows] if array.ndim else array for name, array in extras.items()}
        _write(folder / f"{batch.index:08d}.npz", {**feeds, **labels})


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
