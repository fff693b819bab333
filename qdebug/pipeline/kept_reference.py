"""The reference run once over some samples, its outputs kept to judge any number of candidates.

So are the samples themselves, up to a limit: read and checked once, not for every candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from qdebug.measure.task import TaskMetric, join_outputs
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch
from qdebug.model.samples.subset import SampleSubset, whole
from qdebug.pipeline.context import Context
from qdebug.pipeline.scoring import MetricEvaluator, labels_for
from qdebug.run.base import Session
from qdebug.run.sizing import probe
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Feeds, Progress, Tensors

_FEEDS_BYTES = 256 << 20
"""Samples beyond this are read again for every candidate."""


class KeptReference:
    """Final outputs of all samples, and what of the samples fits a limit.

    Attributes:
        session: the reference, with the tensors to capture.
        subset: the samples, in the batches to use: where they are all samples, their size may
            have been chosen.
        outputs: by number of the batch.
    """

    def __init__(
        self,
        context: Context,
        graph: Graph,
        session: Session,
        subset: SampleSubset,
        metric: TaskMetric | None,
    ) -> None:
        """Runs `session`, which is `graph`.

        Raises:
            QdebugError: the samples cannot be read, or the model does not run.
        """
        if len(subset.batches) == len(list(subset.samples.batches())):
            subset = whole(probe(session, subset.samples, context.batch_size).samples)
        self.session = session
        self.subset = subset
        self.outputs: dict[int, Tensors] = {}
        self._metric = metric
        self._feeds: dict[int, Feeds] = {}
        finals = [t for t in graph.outputs if t in session.dtypes]

        def one(batch: Batch) -> tuple[Feeds, Tensors]:
            feeds = self.feeds(batch)
            found = session.run(feeds)
            return feeds, {t: found[t] for t in finals}

        done, room = 0, _FEEDS_BYTES
        results = map_in_order(one, subset.batches, context.parallel.workers)
        for batch, (feeds, outputs) in zip(subset.batches, results, strict=True):
            self.outputs[batch.index] = outputs
            room -= sum(array.nbytes for array in feeds.values())
            if room >= 0:
                self._feeds[batch.index] = feeds
            done += batch.count
            context.progress(Progress("reference", done, subset.count))

    def feeds(self, batch: Batch) -> Feeds:
        """The inputs of a batch."""
        kept = self._feeds.get(batch.index)
        return self.subset.samples.feeds(batch.start, batch.count) if kept is None else kept

    @cached_property
    def judge(self) -> MetricEvaluator:
        """The metric over all samples.

        Raises:
            MetricError: an output has another shape for some samples.
        """
        return self.judge_of(self.subset.batches)

    def judge_of(self, batches: Sequence[Batch]) -> MetricEvaluator:
        """The metric over some of the samples."""
        if self._metric is None:
            return MetricEvaluator(None, {}, {})
        parts: dict[str, list[Array]] = {}
        for batch in batches:
            for name, array in self.outputs[batch.index].items():
                parts.setdefault(name, []).append(array)
        return MetricEvaluator(
            self._metric, labels_for(self.subset.samples, batches), join_outputs(parts)
        )

    def some(self, samples: int) -> list[Batch]:
        """Batches of about so many samples, spread evenly over all."""
        batches = self.subset.batches
        wanted = max(1, min(len(batches), samples * len(batches) // self.subset.count))
        return [batches[k * len(batches) // wanted] for k in range(wanted)]
