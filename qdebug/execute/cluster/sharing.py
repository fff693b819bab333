"""How work travels: samples and metrics go by what they were read from, and are read once more
where they are needed; models without their large weights, which lie in files."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import onnx

from qdebug.backends.budget import Budget
from qdebug.backends.options import SessionSettings
from qdebug.backends.sizing import Parallelism
from qdebug.execute.cluster.files import SharedFile, fail_not_seen, shared_file
from qdebug.execute.context import Context, simulation_context
from qdebug.inmemory import InMemory, path_in
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.graph import Graph
from qdebug.network.samples import Samples
from qdebug.network.samples.readers.python import split_spec
from qdebug.network.samplespec import SampleSpec
from qdebug.network.weights import place_of
from qdebug.outputfiles import kept_in
from qdebug.run.runner import Job
from qdebug.types import Array, Fp16Kernels, TensorSpec, ignore_progress


class Sharing:
    """What a command gives to workers, as bytes, and the files that they read for it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for files that the command makes for workers."""
        self._folder = folder
        self._job: tuple[str, bytes] = "", b""
        self._samples: dict[tuple[object, int], tuple[object, SharedFile]] = {}

    def dumps(self, what: object) -> bytes:
        """What `pickle.loads` makes `what` of, on a worker.

        Raises:
            StoreError: a file that workers need cannot be written.
        """
        return _pickled(what, self._reduced)

    def _reduced(self, what: Any) -> tuple[Any, ...] | None:
        """What is called to make it, and with what; None for what pickle knows itself."""
        kind = type(what)
        if kind is Job:
            return _made_job, (self._dumped_job(what),)
        if kind is Context:
            operators = tuple(map(shared_file, what.sessions.operators))
            return _context, (what.batch_size, what.fp16_kernels, operators, what.budget.bytes)
        if kind is Samples:
            # Objects in memory stay here: what they say was found when the samples were opened.
            spec = replace(
                what.spec,
                data="",
                limit=what.count,
                batch_size=what.batch_size,
                model=path_in(what.spec.model),
                preprocess=None,
            )
            return _opened_samples, (self._sample_file(what), spec, what.inputs)
        if kind is TaskMetric and what.function is None:
            file = shared_file(what.file) if what.file else None
            name = what.name.rpartition(":")[2] if file else what.name
            source, _, function = (what.decode or "").rpartition(":")
            decoder = (shared_file(source), function) if source else what.decode
            return _loaded_metric, (name, file, decoder, what.facts)
        if kind is Graph:
            return Graph, (what.proto,)
        if kind is onnx.ModelProto:
            return _seen_model, (what.SerializeToString(), gettempdir())
        return None

    def _dumped_job(self, job: Job) -> bytes:
        """A job, which is pickled once for all of its parts: they follow each other."""
        if self._job[0] != job.key:
            self._job = job.key, _pickled(job, lambda x: None if x is job else self._reduced(x))
        return self._job[1]

    def _sample_file(self, samples: Samples) -> SharedFile:
        """The file or folder that samples are in. Those of a script or in memory are written to
        one: an .npz, or a folder of them where feeds are executed as they were given.

        Raises:
            StoreError: they cannot be written.
        """
        where = samples.where
        key = (id(where) if isinstance(where, InMemory) else str(where), samples.count)
        if key not in self._samples:
            if isinstance(where, InMemory) or split_spec(where) or not Path(where).exists():
                file = self._written(samples, self._folder / f"samples-{len(self._samples)}")
            else:
                file = shared_file(where)
            self._samples[key] = where, file
        return self._samples[key][1]

    def _written(self, samples: Samples, target: Path) -> SharedFile:
        with kept_in(self._folder.parent, "the samples for workers"):
            if samples.is_stacked:
                target = target.with_suffix(".npz")
                _write_stacked(samples, target)
            else:
                target.mkdir()
                _write_each(samples, target)
        return shared_file(target, made=True)


def _pickled(what: object, reduced: Callable[[Any], tuple[Any, ...] | None]) -> bytes:
    """`what` as bytes; `reduced` is asked first how each object in it is made."""
    import cloudpickle  # which comes with dask, and commands without workers have no need of

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            found = reduced(obj)
            return super().reducer_override(obj) if found is None else found

    file = io.BytesIO()
    Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(what)
    return file.getvalue()


@lru_cache(maxsize=2)
def _made_job(data: bytes) -> object:
    return pickle.loads(data)


def _seen_model(data: bytes, temporary: str) -> onnx.ModelProto:
    """A model, the large weights of which are in files.

    Raises:
        ClusterError: this process does not see them.
    """
    proto = onnx.ModelProto.FromString(data)
    places = (place_of(tensor) for tensor in proto.graph.initializer)
    for path in {place.path for place in places if place}:
        try:
            path.stat()
        except OSError as error:
            fail_not_seen(str(path), error, made=path.is_relative_to(temporary))
    return proto


def _context(
    batch_size: int | None,
    fp16_kernels: Fp16Kernels,
    operators: tuple[SharedFile, ...],
    budget_bytes: int,
) -> Context:
    """That of a worker: one runtime thread for each execution in flight."""
    from distributed import get_worker

    parallel = Parallelism(max(1, get_worker().state.nthreads), 1)
    sessions = SessionSettings(tuple(Path(file.checked()) for file in operators))
    sessions.check()
    context = simulation_context(parallel, ignore_progress, sessions, batch_size, fp16_kernels)
    return replace(context, budget=Budget(budget_bytes))


def _opened_samples(file: SharedFile, spec: SampleSpec, inputs: Sequence[TensorSpec]) -> Samples:
    return replace(spec, data=file.checked()).open(inputs)


def _loaded_metric(
    name: str,
    file: SharedFile | None,
    decoder: tuple[SharedFile, str] | str | None,
    facts: ModelFacts | None,
) -> TaskMetric:
    if isinstance(decoder, tuple):
        decoder = f"{decoder[0].checked()}:{decoder[1]}"
    return load_metric(f"{file.checked()}:{name}" if file else name, decoder, facts)


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
