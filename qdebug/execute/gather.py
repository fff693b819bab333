"""Gather the ranges of every tensor in one streaming pass of the FP32 model, or from the cache."""

from __future__ import annotations

import hashlib
import math
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial, reduce
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qdebug.backends.base import Session
from qdebug.backends.sizing import probe
from qdebug.backends.stream import map_in_order
from qdebug.calibrators.gather import Accumulator, Added
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator
from qdebug.execute.context import Context, one_at_a_time
from qdebug.execute.over_shards import over_shards
from qdebug.memo import Memo
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.network.weights import model_digest
from qdebug.run.executor import Shard, part_of
from qdebug.run.timelimit import check_time
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

    Raises:
        OutOfTimeError: see Context.
    """
    operators = context.sessions.operators_digest if cached else ""
    if cached:
        for wanted in [None, tensors] if tensors is not None else [None]:
            records = Memo().get(_key(graph, subset, wanted, operators))
            if records is not None:
                return from_records(records, subset.indices)
    with ExitStack() as stack:
        session = stack.enter_context(closing(_session(context, graph, tensors)))
        subset, held = _sized(context, graph, session, subset)
        own = None if context.executor.workers else session
        work = partial(
            open_gathering,
            context=context,
            graph=graph,
            subset=subset,
            tensors=tensors,
            held=held,
            opened=own,
        )
        shares = over_shards(context, work, subset, "calibrate", few=True)
        gathered = _gathered(shares, subset)
    if cached:
        Memo().put(_key(graph, subset, tensors, operators), to_records(gathered))
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
    if scalars["zeros"] + int(table[:2].sum()) != scalars["count"]:
        raise KeyError("count")
    return TensorHistogram(**scalars, table=table)


_EMPTY = TensorHistogram()


def _session(context: Context, graph: Graph, tensors: Sequence[str] | None) -> Session:
    capture = graph.activations() if tensors is None else tensors
    return context.backend.open(graph.proto, [t for t in capture if t in graph.producers])


def _sized(
    context: Context, graph: Graph, session: Session, subset: SampleSubset
) -> tuple[SampleSubset, int]:
    """`subset` in batches of a size that suits the machine, where that is free; and how many bytes
    one execution gives, as far as that is known."""
    samples = subset.samples
    if samples.batch_is_free and len(subset.batches) == len(list(samples.batches())):
        sizing = probe(session, samples, context.batch_size)
        samples = sizing.samples
        held = sum(sizing.bytes_per_batch.values())
        return SampleSubset(samples, tuple(samples.batches())), held
    shapes = [graph.shapes.get(tensor, (0,)) for tensor in session.dtypes]
    known = (math.prod(axis if isinstance(axis, int) else 1 for axis in s) for s in shapes)
    return subset, 4 * sum(known)


class _Share(NamedTuple):
    """What some executions give of one tensor: the histogram, and what each of them added."""

    histogram: TensorHistogram
    added: list[Added]

    def packed(self) -> _Share:
        """The same with a table of half the bytes, where its numbers are small: to travel."""
        table = self.histogram.table
        if table.size and table.max() > np.iinfo(np.uint32).max:
            return self
        narrow: Any = table.astype(np.uint32)
        return self._replace(histogram=replace(self.histogram, table=narrow))

    def unpacked(self) -> TensorHistogram:
        """The histogram as it was."""
        return replace(self.histogram, table=self.histogram.table.astype(np.int64, copy=False))


def open_gathering(
    stack: ExitStack,
    *,
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    tensors: Sequence[str] | None,
    held: int,
    opened: Session | None = None,
) -> Callable[[Shard], Mapping[str, _Share]]:
    """The pass over the samples, for an executor.

    Args:
        tensors: which ones to gather; None gathers every float tensor.
        held: bytes that one execution gives, as far as that is known.
        opened: the session, where there is one already, which somebody else closes.
    """
    session = opened
    if held * (context.parallel.workers + 1) > context.sessions.memory_budget:
        if session is not None:
            session.close()
        session, context = None, one_at_a_time(context)
    if session is None:
        session = stack.enter_context(closing(_session(context, graph, tensors)))
    ready = session

    def run(shard: Shard) -> Mapping[str, _Share]:
        found = _run(context, ready, part_of(subset, shard), tensors)
        return {name: share.packed() for name, share in found.items()}

    return run


def _run(
    context: Context, session: Session, subset: SampleSubset, tensors: Sequence[str] | None
) -> dict[str, _Share]:
    wanted = None if tensors is None else set(tensors)
    samples = subset.samples
    idle: list[defaultdict[str, Accumulator]] = []  # one set for each execution in flight

    def one(batch: Batch) -> dict[str, Added]:
        check_time(context.ends_at, "calibrate")
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
    results = map_in_order(one, subset.batches, context.parallel.workers)
    for batch, found in zip(subset.batches, results, strict=True):
        for name, added in found.items():
            parts[name].append(added)
        done += batch.count
        context.progress(Progress("calibrate", done, subset.count))
    histograms = {
        name: [own.pop(name).histogram() for own in idle if name in own] for name in parts
    }
    return {n: _Share(reduce(TensorHistogram.merge, histograms[n]), parts[n]) for n in parts}


def _gathered(shares: Iterable[Mapping[str, _Share]], subset: SampleSubset) -> Gathered:
    histograms: dict[str, TensorHistogram] = {}
    added: defaultdict[str, list[Added]] = defaultdict(list)
    for share in shares:
        for name, found in share.items():
            known, new = histograms.get(name), found.unpacked()
            histograms[name] = new if known is None else known.merge(new)
            added[name] += found.added
    sample_amax = {name: np.concatenate([a.peaks for a in added[name]]) for name in histograms}
    totals = {name: _total(found, added[name]) for name, found in histograms.items()}
    return Gathered(totals, sample_amax, np.array(subset.indices, np.int64))


def _total(merged: TensorHistogram, added: Sequence[Added]) -> TensorHistogram:
    """A tensor's histogram from several accumulators. Which values went into which depends on
    timing, and the last digits of their sums with it: those are added in order."""
    return replace(
        merged,
        total_sq=sum(a.total_sq for a in added),
        sample_amax_total=sum(a.peak_total for a in added),
    )


def _key(
    graph: Graph, subset: SampleSubset, tensors: Sequence[str] | None, operators_digest: str
) -> str:
    model = model_digest(graph.proto)
    parts = [
        model,
        subset.inputs_key,
        version("onnxruntime") + operators_digest,
        platform.machine(),
        _GATHER_VERSION,
    ]
    parts += ["every tensor"] if tensors is None else sorted(tensors)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
