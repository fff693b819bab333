"""Decisions that the candidate makes otherwise: counted as batches come by, told of the layers
around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from qdebug.analyse.causes.decisions import Decision, Flips, decisions_of, flip_cause
from qdebug.analyse.causes.suppression import (
    BOXES,
    KEPT,
    SCORES,
    SuppressionFlips,
    suppressions_of,
)
from qdebug.analyse.causes.thresholds import MOST, ComparisonFlips, comparisons_of
from qdebug.execute.context import Context
from qdebug.metrics.accumulate import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import Cause, CompareResult, LayerResult
from qdebug.types import Array, Tensors

Counted = tuple[tuple[Flips, ...], tuple[ComparisonFlips, ...]]
"""What a FlipSink has counted."""


class FlipSink:
    """Counts the decisions that reference and candidate make, and those in which they differ."""

    def __init__(self, context: Context, pair: ModelPair) -> None:
        """`pair`: what is compared."""
        self._context = context
        self._graph = pair.reference
        self._flips = [Flips(d) for d in decisions_of(pair.reference) if d.scores in pair.tensors]
        self._suppressions = [
            SuppressionFlips(s.decision, suppression=s) for s in suppressions_of(pair.reference)
        ]
        self._comparisons = [ComparisonFlips(c) for c in comparisons_of(pair.reference)]

    @property
    def found(self) -> list[Flips]:
        """The decisions that flip."""
        each = (*self._flips, *self._suppressions)
        return [flips for flips in each if flips.flipped or flips.reordered]

    @property
    def comparisons(self) -> list[ComparisonFlips]:
        """The comparisons that flip."""
        return [flips for flips in self._comparisons if flips.flipped]

    @property
    def counted(self) -> Counted:
        """All that was counted, for `merge`."""
        return (*self._flips, *self._suppressions), tuple(self._comparisons)

    def merge(self, other: Counted) -> None:
        """Add what another sink counted for the same pair over other batches, all of them later. A
        pass over some tensors does not see every decision: each batch counts once for each."""
        for mine, found in zip((*self._flips, *self._suppressions), other[0], strict=True):
            mine.merge(found)
        for compared, found_too in zip(self._comparisons, other[1], strict=True):
            compared.merge(found_too)

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Count those of one batch. See evaluator.Sink."""
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        for flips in self._flips:
            scores = flips.decision.scores
            if scores in reference and scores in candidate:
                flips.add(reference[scores], candidate[scores], executed.batch.start)
        for suppressed in self._suppressions:
            self._suppress(suppressed, executed)
        for compared in self._comparisons:
            self._compare(compared, executed)

    def _suppress(self, flips: SuppressionFlips, executed: ExecutedBatch) -> None:
        suppression = flips.suppression
        assert suppression is not None
        runs = []
        with closing(self._context.backend.open(suppression.model, ())) as session:
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
        return self._graph.constant(tensor) if found is None else found


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
