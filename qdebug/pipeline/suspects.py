"""How wrong each layer is by itself: where a search for culprits starts."""

from __future__ import annotations

from contextlib import ExitStack

from qdebug.measure.compare import compare_execution, merge_errors
from qdebug.measure.result import LayerResult
from qdebug.pipeline.context import Context
from qdebug.pipeline.passes import open_pass
from qdebug.pipeline.portion import Portion
from qdebug.pipeline.results import layer_results
from qdebug.pipeline.subject import Subject
from qdebug.types import Progress

SAMPLES = 16
"""A ratio of energies over whole activations moves little with more."""


def rate_layers(context: Context, subject: Subject, portion: Portion) -> dict[str, LayerResult]:
    """Local and cumulative errors of the layers, on some samples spread over the portion."""
    tensors = [t for t in subject.tensors if t in subject.reference.producers]
    samples = portion.samples
    wanted = min(len(portion.batches), max(1, SAMPLES // samples.batch_size))
    step = len(portion.batches) / wanted
    batches = [portion.batches[int(i * step)] for i in range(wanted)]
    with ExitStack() as stack:
        one = open_pass(stack, context, subject, tensors, rated=False)
        parts = []
        for done, batch in enumerate(batches, start=1):
            feeds = samples.feeds(batch.start, batch.count)
            execution = one.execute(batch, feeds, None, True)
            parts.append(compare_execution(one.comparison, execution))
            context.progress(Progress("rate layers", done, wanted))
    return {r.name: r for r in layer_results(subject, merge_errors(parts))}
