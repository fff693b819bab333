"""What most commands compute of the batches: errors between two variants, and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qdebug.errors import MetricError
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import (
    CANDIDATE,
    FEEDS,
    LOCAL,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.network.samples import Batch
from qdebug.run.variant import Reducer
from qdebug.types import Tensors


@dataclass(frozen=True)
class Errors:
    """The errors of one variant against another. See Reducer."""

    comparison: Comparison = field(default_factory=Comparison)

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        one = self.comparison
        local = (LOCAL,) if one.local else ()
        return tuple(name for name in (one.reference, one.candidate, *local) if name != FEEDS)

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("errors", self.comparison)

    def reduce(self, executed: ExecutedBatch) -> ErrorTotals:
        """See Reducer."""
        return compare_batch(self.comparison, executed)

    def merge(self, before: ErrorTotals, after: ErrorTotals) -> ErrorTotals:
        """See Reducer."""
        before.add(after)
        return before


@dataclass(frozen=True)
class Attempted:
    """Another reducer, the result of which is its first MetricError where it raises one: what else
    a pass computes is not lost. See Reducer."""

    inner: Reducer[Any]

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return self.inner.reads

    @property
    def key(self) -> str | None:
        """See Reducer."""
        return self.inner.key

    def reduce(self, executed: ExecutedBatch) -> Any:
        """See Reducer."""
        try:
            return self.inner.reduce(executed)
        except MetricError as error:
            return error

    def merge(self, before: Any, after: Any) -> Any:
        """See Reducer."""
        for one in (before, after):
            if isinstance(one, MetricError):
                return one
        return self.inner.merge(before, after)


@dataclass(frozen=True)
class Outputs:
    """Some tensors of a variant, batch by batch. See Reducer.

    Attributes:
        tensors: their names, those that the variant does not give are left out.
    """

    variant: str = CANDIDATE
    tensors: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return (self.variant,)

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("outputs", self.variant, self.tensors)

    def reduce(self, executed: ExecutedBatch) -> dict[Batch, Tensors]:
        """See Reducer."""
        tensors = executed.of(self.variant)
        # The runtime's own arrays would keep more of its memory than they are large.
        return {executed.batch: {t: tensors[t].copy() for t in self.tensors if t in tensors}}

    def merge(
        self, before: dict[Batch, Tensors], after: dict[Batch, Tensors]
    ) -> dict[Batch, Tensors]:
        """See Reducer."""
        return before | after
