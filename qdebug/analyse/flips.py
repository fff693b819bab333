"""Decisions that the candidate makes otherwise: counted as batches come by, told of the layers
around them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Self

from qdebug.analyse.causes.decisions import Decision, Flips, decisions_of, flip_cause
from qdebug.analyse.causes.suppression import (
    BOXES,
    KEPT,
    SCORES,
    Suppression,
    SuppressionFlips,
    suppressions_of,
)
from qdebug.analyse.causes.thresholds import MOST, Comparing, ComparisonFlips, comparisons_of
from qdebug.backends.base import Backend
from qdebug.execute.context import Context
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, ExecutedBatch
from qdebug.network.graph import Graph
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import Cause, CompareResult, LayerResult
from qdebug.types import Array, Tensors

Counted = tuple[tuple[Flips, ...], tuple[ComparisonFlips, ...]]
"""What was counted of decisions, and of comparisons."""


@dataclass(frozen=True)
class FlipCounts:
    """Counts the decisions that reference and candidate make, and those in which they differ. See
    Reducer.

    Attributes:
        backend: executes suppressions of boxes by themselves.
        graph: of the reference.
    """

    backend: Backend
    graph: Graph
    decisions: tuple[Decision, ...]
    suppressions: tuple[Suppression, ...]
    comparisons: tuple[Comparing, ...]

    @classmethod
    def of(cls, context: Context, pair: ModelPair) -> Self:
        """Those that a pair makes."""
        graph = pair.reference
        decisions = tuple(d for d in decisions_of(graph) if d.scores in pair.tensors)
        suppressions = tuple(suppressions_of(graph))
        return cls(context.backend, graph, decisions, suppressions, tuple(comparisons_of(graph)))

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, CANDIDATE

    @property
    def key(self) -> str:
        """See Reducer. What decides is in the graphs, which the key of a result holds, too."""
        return digest_of("flips", self.decisions)

    def reduce(self, executed: ExecutedBatch) -> Counted:
        """See Reducer."""
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        flips = [Flips(d) for d in self.decisions]
        for one in flips:
            scores = one.decision.scores
            if scores in reference and scores in candidate:
                one.add(reference[scores], candidate[scores], executed.batch.start)
        suppressed = [SuppressionFlips(s.decision, suppression=s) for s in self.suppressions]
        for boxes in suppressed:
            self._suppress(boxes, executed)
        comparisons = tuple(ComparisonFlips(c) for c in self.comparisons)
        for compared in comparisons:
            self._compare(compared, executed)
        return (*flips, *suppressed), comparisons

    def merge(self, before: Counted, after: Counted) -> Counted:
        """See Reducer. Of a pass over some tensors, which does not see every decision, and one over
        others, each batch counts once for each."""
        for mine, other in zip(before[0], after[0], strict=True):
            mine.merge(other)
        for compared, others in zip(before[1], after[1], strict=True):
            compared.merge(others)
        return before

    def _suppress(self, flips: SuppressionFlips, executed: ExecutedBatch) -> None:
        suppression = flips.suppression
        assert suppression is not None
        runs = []
        with closing(self.backend.open(suppression.model, ())) as session:
            for run in (executed.reference, executed.of(CANDIDATE)):
                boxes = self._value(suppression.boxes, run, executed)
                scores = self._value(suppression.decision.scores, run, executed)
                if boxes is None or scores is None:
                    return  # not captured in this pass
                kept = session.run({BOXES: boxes, SCORES: scores})[KEPT]
                runs.append((boxes, scores, kept))
        if runs[0][1].shape == runs[1][1].shape:
            flips.add_kept(runs[0], runs[1], executed.batch.start)

    def _compare(self, flips: ComparisonFlips, executed: ExecutedBatch) -> None:
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        names = flips.comparing.left, flips.comparing.right
        operands = []
        for run in (reference, candidate):
            left, right = (self._value(name, run, executed) for name in names)
            if left is None or right is None:
                return  # not captured in this pass
            operands.append((left, right))
        known = {
            t: (reference[t], candidate[t])
            for t in flips.comparing.readers
            if t in reference and t in candidate
        }
        flips.add(operands[0], operands[1], known, executed.batch.start, executed.batch.count)

    def _value(self, tensor: str, run: Tensors, executed: ExecutedBatch) -> Array | None:
        found = run.get(tensor, executed.feeds.get(tensor))
        return self.graph.constant(tensor) if found is None else found


def with_comparisons(
    result: CompareResult, pair: ModelPair, found: Sequence[ComparisonFlips]
) -> CompareResult:
    """`result` with the comparisons that flip: a cause of the layers that select by them, where the
    error lies in what flipped, a further one of the layer that makes the scores, and a note."""
    before: dict[str, list[Cause]] = {}
    after: dict[str, list[Cause]] = {}
    notes = []
    for flips in found:
        causes = [(t, c) for t in flips.comparing.readers if (c := flips.cause(t)) is not None]
        for tensor, cause in causes:
            main = (cause.share or 0.0) >= MOST
            for layer in _makers(pair, tensor):
                (before if main else after).setdefault(layer, []).append(cause)
        if causes:
            notes.append(f"{causes[0][1].evidence}.")
            for tensor in (flips.comparing.left, flips.comparing.right):
                for layer in _makers(pair, tensor):
                    after.setdefault(layer, []).append(causes[0][1])
    layers = tuple(
        replace(x, causes=(*before.get(x.name, ()), *x.causes, *after.get(x.name, ())))
        for x in result.layers
    )
    return replace(result, layers=layers, notes=(*result.notes, *notes))


def _makers(pair: ModelPair, tensor: str) -> list[str]:
    producer = pair.reference.producers.get(tensor)
    layer = pair.layers.of_node.get(producer.name) if producer else None
    return [layer.name] if layer else []


def with_flips(result: CompareResult, pair: ModelPair, found: Sequence[Flips]) -> CompareResult:
    """`result` with the decisions that flip: the main cause of the layers that read the indices, a
    further one of the layer that makes the scores, and a note."""
    first: dict[str, Flips] = {}
    last: dict[str, Flips] = {}
    for flips in found:
        for name in _readers(pair, flips.decision):
            first.setdefault(name, flips)
        producer = pair.reference.producers[flips.decision.scores]
        maker = pair.layers.of_node.get(producer.name)
        if maker is not None:
            last.setdefault(maker.name, flips)
    notes = tuple(f"{flip_cause(flips).evidence}." for flips in found)
    layers = tuple(_told(x, first.get(x.name), last.get(x.name)) for x in result.layers)
    return replace(result, layers=layers, notes=(*result.notes, *notes))


def _told(layer: LayerResult, first: Flips | None, last: Flips | None) -> LayerResult:
    before = (flip_cause(first),) if first else ()
    after = (flip_cause(last),) if last and last is not first else ()
    return replace(layer, causes=(*before, *layer.causes, *after))


def _readers(pair: ModelPair, decision: Decision) -> list[str]:
    """The layers that read the indices, behind whatever reshapes or casts them."""
    graph = pair.reference
    waiting = list(graph.by_name[decision.node].outputs)
    found: dict[str, None] = {}
    seen = set(waiting)
    while waiting:
        for node in graph.consumers.get(waiting.pop(), ()):
            layer = pair.layers.of_node.get(node.name)
            if layer is not None:
                found[layer.name] = None
                continue
            new = [t for t in node.outputs if t and t not in seen]
            seen.update(new)
            waiting += new
    return list(found)


def flipping(counted: Counted) -> tuple[list[Flips], list[ComparisonFlips]]:
    """The decisions and the comparisons that flip."""
    decisions = [one for one in counted[0] if one.flipped or one.reordered]
    return decisions, [one for one in counted[1] if one.flipped]
