"""How wrong each layer is by itself: where a search for culprits starts."""

from __future__ import annotations

from contextlib import ExitStack

from qdebug.measure.result import LayerResult
from qdebug.model.samples.subset import SampleSubset
from qdebug.pipeline.compare.lockstep import open_lockstep
from qdebug.pipeline.compare.results import layer_results
from qdebug.pipeline.context import Context
from qdebug.plan.pair import ModelPair

SAMPLES = 16
"""A ratio of energies over whole activations moves little with more."""


def rate_layers(context: Context, pair: ModelPair, subset: SampleSubset) -> dict[str, LayerResult]:
    """Local and cumulative errors of the layers, on some samples spread over the subset."""
    tensors = [t for t in pair.tensors if t in pair.reference.producers]
    wanted = min(len(subset.batches), max(1, SAMPLES // subset.samples.batch_size))
    step = len(subset.batches) / wanted
    batches = tuple(subset.batches[int(i * step)] for i in range(wanted))
    with ExitStack() as stack:
        one = open_lockstep(stack, context, pair, tensors, rated=False)
        errors = one.run(SampleSubset(subset.samples, batches), context, stage="rate layers")
    return {r.name: r for r in layer_results(pair, errors)}
