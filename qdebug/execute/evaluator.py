"""The one loop over batches: models run side by side, their errors added up batch by batch.

Every command that compares runs does it here. The reference comes first: executed, read from an
earlier run, or kept in memory. Any number of candidates follow. What is to be kept besides the
totals (outputs for a metric, activations for a run file) is taken by sinks.
"""

from __future__ import annotations

import math
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx

from qdebug.backends.base import Backend, Session
from qdebug.backends.sizing import probe
from qdebug.backends.stream import Threads, map_in_order
from qdebug.errors import MetricError
from qdebug.execute.context import Context
from qdebug.execute.kept_batches import KeptBatches
from qdebug.metrics.accumulate import (
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.metrics.tasks.base import TaskMetric, by_sample
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch, Samples
from qdebug.network.samples.subset import SampleSubset, is_whole, whole
from qdebug.run.executor import shards_of
from qdebug.run.outputs import MetricEvaluator, joined
from qdebug.run.timelimit import check_time
from qdebug.types import Array, Feeds, Progress, Tensors

Run = Callable[[ExecutedBatch], Tensors]
"""Executes one model on a batch; it may read what the runs before it gave."""

Sink = Callable[[ExecutedBatch, Mapping[str, ErrorTotals]], None]
"""Takes each batch, in order, with the errors of each comparison on it."""

_FEEDS_BYTES = 256 << 20
"""Samples beyond this are read again for every candidate."""
_OUTPUTS_BYTES = 256 << 20
"""Outputs of the reference beyond this are kept in a temporary file."""


def run_of(session: Session) -> Run:
    """A run of `session`."""
    return lambda executed: session.run(executed.feeds)


def reusing(known: Mapping[Batch, Tensors], names: Collection[str], run: Run) -> Run:
    """A run that gives what is `known` of these tensors for the samples of a batch, in whatever
    batches they were; `run` gives the rest. Tensors of which the first axis is not the samples are
    known for equal batches alone."""
    equal = {
        (b.start, b.count): tensors for b, tensors in known.items() if tensors.keys() >= {*names}
    }
    rows = {
        batch.start + row: (tensors, row)
        for batch, tensors in known.items()
        for row in range(batch.count)
        if all(t in tensors and tensors[t].shape[:1] == (batch.count,) for t in names)
    }

    def known_or_run(executed: ExecutedBatch) -> Tensors:
        batch = executed.batch
        if (batch.start, batch.count) in equal:
            return equal[batch.start, batch.count]
        each = [rows.get(row) for row in range(batch.start, batch.start + batch.count)]
        of_rows = [one for one in each if one is not None]
        if len(of_rows) < len(each):
            return run(executed)
        return {t: np.stack([tensors[t][row] for tensors, row in of_rows]) for t in names}

    return known_or_run


def open_all(
    stack: ExitStack, models: Sequence[tuple[Backend, onnx.ModelProto, Sequence[str]]]
) -> list[Session]:
    """A session for each model with the tensors to capture, which `stack` closes. They are opened
    side by side: optimizing a graph and packing its weights take a good part of a short run.

    Raises:
        ModelError, BackendError: one of them cannot be opened.
    """
    with Threads(max(1, len(models))) as pool:
        futures = [pool.submit(backend.open, proto, capture) for backend, proto, capture in models]
        wait(futures)
    for future in futures:
        if future.exception() is None:
            stack.callback(future.result().close)
    return [future.result() for future in futures]


def evaluate(
    subset: SampleSubset,
    runs: Mapping[str, Run],
    comparisons: Mapping[str, Comparison],
    context: Context,
    *,
    workers: int | None = None,
    feeds: Callable[[Batch], Feeds] | None = None,
    sinks: Sequence[Sink] = (),
    stage: str = "",
) -> dict[str, ErrorTotals]:
    """Run every model over all batches and add up the errors of each comparison, by its name.

    Sums are added in the batches' order, whatever the number of workers (see SumsByShard); of as
    many batches as the context has time for.

    Args:
        runs: by name, in the order in which they are executed.
        workers: batches in flight; None takes those of `context`.
        feeds: gives the inputs of a batch; None reads them from the samples.
        stage: what progress is reported as; "" reports none.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
        OutOfTimeError: see Context.
    """
    sums = SumsByShard(comparisons, len(subset.batches))
    workers = context.parallel.workers if workers is None else workers
    done = 0
    batches = _in_time(subset.batches, context.ends_at, stage)
    for executed, errors in _executed(subset, runs, comparisons, workers, feeds, batches):
        for sink in sinks:
            sink(executed, errors)
        sums.add(errors)
        done += executed.batch.count
        del executed, errors  # before the next ones exist
        if stage:
            context.progress(Progress(stage, done, subset.count))
    return sums.totals()


class SumsByShard:
    """Adds up the errors of a pass shard by shard, as if each had been executed by itself: whoever
    executes them, sums are the same bit for bit."""

    def __init__(self, names: Iterable[str], executions: int) -> None:
        """`names` are those of the comparisons."""
        self._totals = {name: ErrorTotals() for name in names}
        self._shard: dict[str, ErrorTotals] = {}
        self._ends = {shard.stop for shard in shards_of(executions)}
        self._count = 0

    def add(self, errors: Mapping[str, ErrorTotals]) -> None:
        """Add those of the next batch."""
        for name, one in errors.items():
            self._shard.setdefault(name, ErrorTotals()).add(one)
        self._count += 1
        if self._count in self._ends:
            self.totals()

    def totals(self) -> dict[str, ErrorTotals]:
        """Those of all batches so far."""
        for name, one in self._shard.items():
            self._totals.setdefault(name, ErrorTotals()).add(one)
        self._shard = {}
        return self._totals


def _executed(
    subset: SampleSubset,
    runs: Mapping[str, Run],
    comparisons: Mapping[str, Comparison],
    workers: int,
    feeds: Callable[[Batch], Feeds] | None,
    batches: Iterator[Batch],
) -> Iterator[tuple[ExecutedBatch, dict[str, ErrorTotals]]]:
    samples = subset.samples

    def one(batch: Batch) -> tuple[ExecutedBatch, dict[str, ErrorTotals]]:
        given = feeds(batch) if feeds else samples.feeds(batch.start, batch.count)
        found: dict[str, Tensors] = {}
        executed = ExecutedBatch(batch, given, found)
        for name, run in runs.items():
            found[name] = run(executed)
        return executed, {name: compare_batch(c, executed) for name, c in comparisons.items()}

    if workers > 1:
        return map_in_order(one, batches, workers)
    return map(one, batches)


def _in_time(batches: Sequence[Batch], ends_at: float, stage: str = "") -> Iterator[Batch]:
    """Those that there is time for. See Context."""
    for batch in batches:
        check_time(ends_at, stage)
        yield batch


@dataclass(frozen=True)
class Reducer:
    """Takes what a metric needs of the outputs of a batch: see TaskMetric.reduced; `losses`: what
    each sample loses too."""

    metric: TaskMetric
    samples: Samples
    losses: bool = True

    def __call__(self, executed: ExecutedBatch, run: str, outputs: Sequence[str]) -> Tensors | None:
        """What it needs of some `outputs` of a run; None where that is hardly less.

        Raises:
            MetricError: it does not take them.
        """
        batch, before = executed.batch, executed.reference if self.losses else {}
        reference = _of_batch(batch, before, outputs)
        is_reference = run == REFERENCE and self.losses
        own = reference if is_reference else _of_batch(batch, executed.of(run), outputs)
        labels = self.samples.extras.rows(batch.start, batch.count)
        reduced = self.metric.reduced(own, labels, reference)
        return None if reduced is None else {**reduced}


def _of_batch(batch: Batch, tensors: Tensors, names: Sequence[str]) -> dict[str, Array]:
    return joined({batch: {t: tensors[t] for t in names if t in tensors}})


@dataclass
class OutputKeeper:
    """A sink that keeps some tensors of one run, the final outputs mostly, for a metric.

    Attributes:
        room: for so many bytes; where that is exceeded, nothing is kept.
        for_metric: what is kept will be joined, so that what cannot be is refused at once.
        reduce: takes what the metric needs of them, in their place.
        raw_room: for so many bytes of what is reduced, as it was.
        by_batch: what was kept of each batch, in order.
        failure: why the metric does not take them; nothing is kept then.
    """

    run: str
    outputs: Sequence[str]
    room: float = math.inf
    for_metric: bool = False
    reduce: Reducer | None = None
    raw_room: float = 0.0
    by_batch: MutableMapping[Batch, Tensors] = field(default_factory=dict)
    failure: MetricError | None = None
    _raw: dict[Batch, Tensors] | None = None

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """See Sink."""
        if self.failure is not None:
            return
        tensors = executed.of(self.run)
        found = {t: tensors[t] for t in self.outputs if t in tensors}
        reduced = None
        if self.reduce is not None and found:
            try:
                reduced = self.reduce(executed, self.run, self.outputs)
            except MetricError as error:  # the pass goes on, of which more is shown
                self.failure = error
                self.by_batch.clear()
                return
        if reduced is not None:
            self.by_batch[executed.batch] = reduced
            self._keep_raw(executed.batch, found)
            return
        # The runtime's own arrays would keep more of its memory than they are large.
        self.keep(executed.batch, {t: array.copy() for t, array in found.items()})

    def _keep_raw(self, batch: Batch, found: Tensors) -> None:
        self._raw = {} if self._raw is None else self._raw
        self.raw_room -= sum(array.nbytes for array in found.values())
        if self.raw_room >= 0:
            self._raw[batch] = {t: array.copy() for t, array in found.items()}
        else:
            self._raw.clear()

    @property
    def raw(self) -> Mapping[Batch, Tensors]:
        """The outputs as they are, of all batches or, where there is no room, of none."""
        return self.by_batch if self._raw is None else self._raw

    def keep(self, batch: Batch, kept: Tensors) -> None:
        """Keep what `run` gave for a batch, if there is room.

        Raises:
            MetricError: it is for a metric, and cannot be joined with the first batch.
        """
        if self.for_metric and self.by_batch:
            before, first = next(iter(self.by_batch.items()))
            for name, array in kept.items():
                if name in first:
                    _ = by_sample(name, [first[name], array], (before.count, batch.count))
        if batch not in self.by_batch:
            self.room -= sum(array.nbytes for array in kept.values())
        if self.room >= 0:
            self.by_batch[batch] = kept
        else:
            self.by_batch.clear()

    def joined(self) -> dict[str, Array]:
        """The tensors of all batches, [samples, …].

        Raises:
            MetricError: one has another shape for some samples, or the metric does not take them.
        """
        return joined(self.checked())

    def checked(self) -> Mapping[Batch, Tensors]:
        """What was kept of each batch.

        Raises:
            MetricError: the metric does not take the outputs.
        """
        if self.failure is not None:
            raise self.failure
        return self.by_batch


class _Reduced:
    """A sink that keeps what a metric needs of the reference's outputs, where that is less than
    they are."""

    def __init__(self, metric: TaskMetric, samples: Samples, outputs: Sequence[str]) -> None:
        self._reduce = Reducer(metric, samples)
        self._is_less = True
        self._keeper = OutputKeeper(REFERENCE, outputs)

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """See Sink.

        Raises:
            MetricError: the metric does not take the outputs.
        """
        if not self._is_less:
            return
        found = self._reduce(executed, REFERENCE, self._keeper.outputs)
        if found is None:
            self._is_less = False
            self._keeper.by_batch.clear()
        else:
            self._keeper.keep(executed.batch, found)

    @property
    def kept(self) -> OutputKeeper | None:
        """None where it is no less."""
        return self._keeper if self._is_less and self._keeper.by_batch else None


class KeptReference:
    """The reference, run once over some samples: any number of candidates are compared with it.

    Its outputs are kept, beyond a limit in a temporary file, and of the samples what fits another
    one.

    Attributes:
        subset: the samples, in the batches to use: where they are all samples, their size may
            have been chosen.
        outputs: what it gave.
        task: the metric, with what it needs of the outputs; None without one.
    """

    def __init__(
        self,
        context: Context,
        graph: Graph,
        session: Session,
        subset: SampleSubset,
        metric: TaskMetric | None,
        stage: str = "reference",
        *,
        resize: bool = True,
        known: Mapping[Batch, Tensors] = MappingProxyType({}),
    ) -> None:
        """Runs `session`, which is `graph`; `stage` is what progress is reported as, "" for none.
        Without `resize` the batches are taken as they are. What is `known` it does not run again.

        Raises:
            QdebugError: the samples cannot be read, the model does not run, or (with a metric) an
                output has another shape for some samples.
        """
        if resize and is_whole(subset):
            subset = whole(probe(session, subset.samples, context.batch_size).samples)
        self.subset = subset
        outputs = [t for t in graph.outputs if t in session.dtypes]
        self.outputs = OutputKeeper(
            REFERENCE,
            outputs,
            for_metric=metric is not None,
            by_batch=KeptBatches(_OUTPUTS_BYTES),
        )
        self._feeds: dict[int, Feeds] = {}
        self._room = _FEEDS_BYTES
        sinks: list[Sink] = [self.outputs, self._keep_feeds]
        reduced = _Reduced(metric, subset.samples, outputs) if metric else None
        sinks += [reduced] if reduced else []
        runs = {REFERENCE: reusing(known, outputs, run_of(session))}
        evaluate(subset, runs, {}, context, sinks=sinks, stage=stage)
        self.task: MetricEvaluator | None = None
        if metric is not None:
            needed = (reduced.kept if reduced else None) or self.outputs
            self.task = MetricEvaluator.of(metric, subset.samples, needed.by_batch)

    def _keep_feeds(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        self._room -= sum(array.nbytes for array in executed.feeds.values())
        if self._room >= 0:
            self._feeds[executed.batch.index] = executed.feeds

    def run(self, executed: ExecutedBatch) -> Tensors:
        """What it gave for a batch. See Run."""
        return self.outputs.by_batch[executed.batch]

    def feeds(self, batch: Batch) -> Feeds:
        """The inputs of a batch."""
        kept = self._feeds.get(batch.index)
        return self.subset.samples.feeds(batch.start, batch.count) if kept is None else kept
