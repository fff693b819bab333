"""The calibration: histograms of the tensors of the FP32 model over samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qdebug.backends.sizing import capture_groups
from qdebug.calibrators.gather import NO_BINS, Layout, histogram_and_peaks
from qdebug.calibrators.histogram import TensorHistogram
from qdebug.calibrators.registry import Calibrator
from qdebug.execute.context import Context, held_at_once, one_at_a_time, runner_of, sized
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import REFERENCE, ExecutedBatch
from qdebug.network.graph import Graph
from qdebug.network.macs import tensor_bytes
from qdebug.network.samples.subset import SampleSubset
from qdebug.run.variant import as_it_is
from qdebug.store.schema import RangeRecord

Float32 = npt.NDArray[np.float32]

_SCALARS = (
    *("low", "high", "count", "zeros", "nan_count", "inf_count", "total_sq"),
    *("samples", "sample_amax_total", "top", "first"),
)


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


@dataclass(frozen=True)
class Seen:
    """What some batches gave of a tensor.

    Attributes:
        peaks: of each batch in order, the largest finite magnitude of each sample.
    """

    histogram: TensorHistogram
    peaks: list[Float32]


@dataclass(frozen=True)
class Histograms:
    """The histograms of those of some tensors that are floats. See Reducer.

    Attributes:
        tensors: names of inputs, and of tensors of the reference.
        layouts: the bins that batches before had, by tensor: they save time and decide nothing.
    """

    tensors: tuple[str, ...]
    layouts: dict[str, Layout] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return (REFERENCE,)

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("histograms", self.tensors)

    def reduce(self, executed: ExecutedBatch) -> dict[str, Seen]:
        """See Reducer."""
        arrays = {**executed.feeds, **executed.reference}
        found = {}
        for name in self.tensors:
            if name in arrays and arrays[name].dtype.kind == "f":
                layout = self.layouts.get(name, NO_BINS)
                one, peaks = histogram_and_peaks(arrays[name], executed.batch.count, layout)
                self.layouts[name] = layout.widened(one)
                found[name] = Seen(one, [peaks])
        return found

    def merge(self, before: dict[str, Seen], after: dict[str, Seen]) -> dict[str, Seen]:
        """See Reducer."""
        for name, later in after.items():
            one = before[name]
            one.peaks.extend(later.peaks)
            merged = one.histogram.merge(later.histogram, in_place=True)
            before[name] = Seen(merged, one.peaks)
        return before


def gather_ranges(
    context: Context,
    graph: Graph,
    subset: SampleSubset,
    tensors: Sequence[str] | None = None,
) -> Gathered:
    """The ranges of `graph` over `subset`, in one pass or, where the tensors of the batches in
    flight exceed the budget, in several, over groups of tensors; memory does not grow with the
    number of samples but for one number per tensor and sample.

    Args:
        tensors: which ones to gather; None gathers every float tensor.

    Raises:
        OutOfTimeError: see Context.
    """
    inputs = [spec.name for spec in graph.inputs]
    wanted = list(dict.fromkeys((*inputs, *graph.activations()) if tensors is None else tensors))
    computed = [tensor for tensor in wanted if tensor in graph.producers]
    subset = sized(context, graph, subset, computed)
    budget, sizes = context.budget.bytes, tensor_bytes(graph, subset)
    if sum(sizes.get(t, 0) for t in computed) * held_at_once(context) > budget:
        context = one_at_a_time(context)
    runner = runner_of(context, subset)
    room = budget // held_at_once(context)
    seen: dict[str, Seen] = {}
    for group in capture_groups(computed, sizes, room) or [[]]:
        own = tuple(group) if seen else (*(t for t in wanted if t in inputs), *group)
        variant = as_it_is(graph.proto, context.backend, {t: t for t in group})
        seen |= runner.run({REFERENCE: variant}, {"": Histograms(own)}, "calibrate")[""]
    return Gathered(
        {name: one.histogram for name, one in seen.items()},
        {name: np.concatenate(one.peaks) for name, one in seen.items()},
        np.array(subset.indices, np.int64),
        from_cache=not runner.has_run,
    )


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
