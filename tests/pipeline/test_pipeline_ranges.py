"""One pass over the samples: whichever worker takes which batch, the result is the same."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from qdebug.model.load import read_model
from qdebug.model.prepare import prepare_model
from qdebug.model.samples import open_samples
from qdebug.pipeline.context import Context
from qdebug.pipeline.portion import whole
from qdebug.pipeline.ranges import Gathered, gather_ranges
from qdebug.pipeline.sizing import Parallelism
from qdebug.run.ort import OrtBackend
from qdebug.types import ignore_progress


def _gathered(workers: int) -> Gathered:
    graph = prepare_model(read_model("calib_data/digits_cnn.onnx")).graph
    samples = open_samples("calib_data/digits_calib.npz", graph.inputs, limit=24, batch_size=2)
    context = Context(OrtBackend(1), Parallelism(workers, 1), ignore_progress, 2)
    return gather_ranges(context, graph, whole(samples), cached=False)


@pytest.mark.parametrize("workers", [2, 5])
def test_the_number_of_workers_does_not_change_a_digit(workers: int) -> None:
    one, several = _gathered(1), _gathered(workers)
    assert list(one.histograms) == list(several.histograms)
    for name, histogram in one.histograms.items():
        expected, found = asdict(histogram), asdict(several.histograms[name])
        np.testing.assert_array_equal(found.pop("table"), expected.pop("table"))
        assert found == expected
        np.testing.assert_array_equal(several.sample_amax[name], one.sample_amax[name])
