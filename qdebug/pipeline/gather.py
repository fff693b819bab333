"""Gather the ranges of every tensor in one streaming pass of the FP32 model, or from the cache."""

from __future__ import annotations

import hashlib
import platform
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.calibrators.gather import Accumulator, Added
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch
from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.context import Context
from qdebug.run.base import Session
from qdebug.run.sizing import probe
from qdebug.run.stream import map_in_order
from qdebug.store.cache import load_calibration, save_calibration
from qdebug.store.schema import RangeRecord
from qdebug.types import Progress

Float32 = npt.NDArray[np.float32]

_SCALARS = (
    *("low", "high", "count", "zeros", "nan_count", "inf_count", "total_sq"),
    *("samples", "sample_amax_total", "top", "first"),
)
_GATHER_VERSION = "2"
"""Part of the cache's key: to be raised when what is gathered changes."""


@dataclass(frozen=True)
class Gathered:
    """What one pass found.

    Attributes:
        histograms: of every float tensor, inputs included.
        sample_amax: of the same tensors, the largest finite magnitude of each sample, [samples].
        samples: the numbers of those samples, int64 [samples].
        from_cache: the pass was not run: its result was kept from an earlier time.
    """

    histograms: Mapping[str, TensorHistogram]
    sample_amax: Mapping[str, Float32]
    samples: npt.NDArray[np.int64]
    from_cache: bool = False


def gather_ranges(
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    *,
    cached: bool,
    tensors: Sequence[str] | None = None,
) -> Gathered:
    """The ranges of `graph` over `subset`; memory does not grow with the number of samples but
    for one number per tensor and sample.

    Args:
        cached: take what an earlier call over the same model and samples kept, and keep this.
        tensors: which ones to gather; None gathers every float tensor.
    """
    if cached:
        for wanted in [None, tensors] if tensors is not None else [None]:
            records = load_calibration(_key(graph, subset, wanted))
            if records is not None:
                return from_records(records, subset.indices)
    capture = list(graph.activations()) if tensors is None else list(tensors)
    session = context.backend.open(graph.proto, [t for t in capture if t in graph.producers])
    try:
        gathered = _run(context, session, subset, None if tensors is None else set(tensors))
    finally:
        session.close()
    if cached:
        save_calibration(_key(graph, subset, tensors), to_records(gathered))
    return gathered


def calibrated(
    histograms: Mapping[str, TensorHistogram], tensors: list[str], calibrator: Calibrator
) -> dict[str, float]:
    """The amax of `tensors` by `calibrator`."""
    return {t: calibrator.amax(histograms[t]) for t in tensors if t in histograms}


def to_records(gathered: Gathered) -> dict[str, RangeRecord]:
    """What a file keeps of it."""
    return {
        name: RangeRecord(
            scalars={
                "amax": histogram.amax,
                **{key: getattr(histogram, key) for key in _SCALARS},
            },
            arrays={"table": histogram.table, "sample_amax": gathered.sample_amax[name]},
        )
        for name, histogram in gathered.histograms.items()
    }


def from_records(
    records: Mapping[str, RangeRecord], samples: Sequence[int] | None = None
) -> Gathered:
    """What a file kept of it; `samples` are the numbers of those samples, None counts from 0.

    Raises:
        KeyError: another version of qdebug wrote the records, or they are damaged.
    """
    histograms = {name: _histogram(record) for name, record in records.items()}
    sample_amax = {name: record.arrays["sample_amax"] for name, record in records.items()}
    odd = next((n for n, a in sample_amax.items() if a.ndim != 1 or a.dtype.kind != "f"), None)
    if odd is not None:
        raise KeyError("sample_amax")
    if samples is None:
        samples = range(max(map(len, sample_amax.values()), default=0))
    return Gathered(histograms, sample_amax, np.array(samples, np.int64), True)


def _histogram(record: RangeRecord) -> TensorHistogram:
    """The histogram that a record holds.

    Raises:
        KeyError: a part of it is not there, or is of another kind.
    """
    scalars: dict[str, Any] = {key: record.scalars[key] for key in _SCALARS}
    for key, value in scalars.items():
        whole = isinstance(getattr(_EMPTY, key), int)
        if not isinstance(value, int if whole else (int, float)) or (whole and value < 0):
            raise KeyError(key)
    table = record.arrays["table"]
    if table.dtype != np.int64 or table.ndim != 2 or len(table) != len(_EMPTY.table):
        raise KeyError("table")
    return TensorHistogram(**scalars, table=table)


_EMPTY = TensorHistogram()


def _run(
    context: Context, session: Session, subset: SampleSubset, wanted: set[str] | None
) -> Gathered:
    samples, batches = subset.samples, subset.batches
    if samples.batch_is_free and len(batches) == len(list(samples.batches())):
        samples = probe(session, samples, context.batch_size).samples
        batches = tuple(samples.batches())

    idle: list[defaultdict[str, Accumulator]] = []  # one set for each execution in flight

    def one(batch: Batch) -> dict[str, Added]:
        feeds = samples.feeds(batch.start, batch.count)
        tensors = {**feeds, **session.run(feeds)}
        try:
            own = idle.pop()
        except IndexError:
            own = defaultdict(Accumulator)
        added = {
            name: own[name].add(array, batch.count)
            for name, array in tensors.items()
            if array.dtype.kind == "f" and (wanted is None or name in wanted)
        }
        idle.append(own)
        return added

    parts: defaultdict[str, list[Added]] = defaultdict(list)
    done = 0
    results = map_in_order(one, batches, context.parallel.workers)
    for batch, found in zip(batches, results, strict=True):
        for name, added in found.items():
            parts[name].append(added)
        done += batch.count
        context.progress(Progress("calibrate", done, subset.count))
    histograms = {
        name: _total([own.pop(name, None) for own in idle], parts[name]) for name in parts
    }
    sample_amax = {name: np.concatenate([a.peaks for a in parts[name]]) for name in parts}
    return Gathered(histograms, sample_amax, np.array(subset.indices, np.int64))


def _total(shares: Iterable[Accumulator | None], added: Sequence[Added]) -> TensorHistogram:
    """The histogram that a tensor's accumulators hold shares of. Which values went into which
    depends on timing, and the last digits of their sums with it: those are added in order."""
    merged = reduce(TensorHistogram.merge, [s.histogram() for s in shares if s is not None])
    return replace(
        merged,
        total_sq=sum(a.total_sq for a in added),
        sample_amax_total=sum(a.peak_total for a in added),
    )


def _key(graph: Graph, subset: SampleSubset, tensors: Sequence[str] | None) -> str:
    model = hashlib.sha256(graph.proto.SerializeToString(deterministic=True)).hexdigest()
    parts = [model, subset.inputs_key, version("onnxruntime"), platform.machine(), _GATHER_VERSION]
    parts += ["every tensor"] if tensors is None else sorted(tensors)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
