"""How many of the values of each group of samples the Q/DQ pairs clip, counted along the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.metrics.accumulate import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.network.samples.groups import Grouping
from qdebug.plan.pair import ModelPair

Counts = npt.NDArray[np.int64]
"""Of each group: how many values there are, and how many of them are clipped; [2, groups]. Only
their ratio counts: an output that is captured in several passes is counted in each."""


@dataclass
class ClippingSink:
    """A sink that counts by group what is clipped. See `execute.evaluator.Sink`.

    Attributes:
        limits: the least and the largest value that each tensor's pair can give.
        counts: so far, by tensor.
    """

    grouping: Grouping
    limits: Mapping[str, tuple[float, float]]
    counts: dict[str, Counts] = field(default_factory=dict)

    @classmethod
    def of(cls, pair: ModelPair, grouping: Grouping) -> ClippingSink:
        """For what the candidate of a pair rounds."""
        return cls(grouping, {tensor: grid.limits for tensor, grid in pair.grids.items()})

    def __call__(self, executed: ExecutedBatch, _: Mapping[str, ErrorTotals]) -> None:
        """Take a batch. A tensor whose first axis is not that of the samples says nothing."""
        batch, given = executed.batch, executed.of(CANDIDATE)
        numbers = self.grouping.numbers[batch.start : batch.start + batch.count]
        for tensor, (low, high) in self.limits.items():
            values = executed.feeds.get(tensor, given.get(tensor))
            if values is None or not values.size or len(values) % batch.count:
                continue
            rows = values.reshape(batch.count, -1)
            beyond = (rows < np.float32(low)) | (rows > np.float32(high))
            by_sample = np.full(batch.count, rows.shape[1]), np.count_nonzero(beyond, axis=1)
            found = [np.bincount(numbers, x, len(self.grouping.groups)) for x in by_sample]
            self.merge({tensor: np.stack(found).astype(np.int64)})

    def merge(self, other: Mapping[str, Counts]) -> None:
        """Add what another sink counted over other samples."""
        for tensor, counts in other.items():
            self.counts[tensor] = self.counts.get(tensor, 0) + counts
