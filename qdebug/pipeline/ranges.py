"""Gather the ranges of every tensor in one streaming pass of the FP32 model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qdebug.calibrate.histogram import TensorHistogram, histogram_of
from qdebug.calibrate.methods import Calibrator
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch, Samples
from qdebug.pipeline.context import Context
from qdebug.pipeline.sizing import probe
from qdebug.run.stream import map_in_order
from qdebug.types import Progress


def gather_ranges(context: Context, graph: Graph, samples: Samples) -> dict[str, TensorHistogram]:
    """The histogram of every float tensor of `graph`, its inputs included, over all samples."""
    session = context.backend.open(graph.proto, list(graph.activations()))
    try:
        chosen = context.settings.batch_size
        samples = probe(session, samples, chosen).samples
        totals: dict[str, TensorHistogram] = {}

        def one(batch: Batch) -> tuple[Batch, dict[str, TensorHistogram]]:
            feeds = samples.feeds(batch.start, batch.count)
            tensors = {**feeds, **session.run(feeds)}
            return batch, {
                name: histogram_of(array)
                for name, array in tensors.items()
                if np.issubdtype(array.dtype, np.floating)
            }

        for batch, histograms in map_in_order(one, samples.batches(), context.parallel.workers):
            for name, histogram in histograms.items():
                known = totals.get(name)
                totals[name] = histogram if known is None else known.merge(histogram)
            context.progress(Progress("calibrate", batch.start + batch.count, samples.count))
        return totals
    finally:
        session.close()


def calibrated(
    histograms: Mapping[str, TensorHistogram], tensors: list[str], calibrator: Calibrator
) -> dict[str, float]:
    """The amax of `tensors` by `calibrator`."""
    return {t: calibrator.amax(histograms[t]) for t in tensors if t in histograms}
