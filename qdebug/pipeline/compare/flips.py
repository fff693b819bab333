"""Decisions that the candidate makes otherwise: counted as batches come by, told of the layers
around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qdebug.measure.causes.decisions import Decision, Flips, decisions_of, flip_cause
from qdebug.measure.compare import CANDIDATE, ErrorTotals, ExecutedBatch
from qdebug.measure.result import CompareResult, LayerResult
from qdebug.plan.pair import ModelPair


class FlipSink:
    """Counts the decisions that reference and candidate make, and those in which they differ."""

    def __init__(self, pair: ModelPair) -> None:
        """`pair`: what is compared."""
        self._flips = [Flips(d) for d in decisions_of(pair.reference) if d.scores in pair.tensors]

    @property
    def found(self) -> list[Flips]:
        """The decisions that flip."""
        return [flips for flips in self._flips if flips.flipped]

    def __call__(self, executed: ExecutedBatch, errors: Mapping[str, ErrorTotals]) -> None:
        """Count those of one batch. See evaluator.Sink."""
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        for flips in self._flips:
            scores = flips.decision.scores
            if scores in reference and scores in candidate:
                flips.add(reference[scores], candidate[scores], executed.batch.start)


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
