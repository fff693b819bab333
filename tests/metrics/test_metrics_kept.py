"""What a metric is given of FP32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.simulation import SimulationBackend
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec
from qdebug.run.outputs import OutputEvaluator, joined
from qdebug.run.reducers import Outputs
from qdebug.run.runner import Runner
from qdebug.run.variant import as_it_is

CLASSES = 20


def segmenter() -> Graph:
    weights = np.random.default_rng(1).standard_normal((CLASSES, 3, 1, 1)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", CLASSES, 8, 8])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return Graph.inferred(helper.make_model(graph, opset_imports=opset, ir_version=9))


@pytest.mark.parametrize("name", ["miou-to-reference", "agreement"])
def test_a_metric_keeps_of_fp32_what_it_needs(name: str, tmp_path: Path) -> None:
    """In place of all scores."""
    pictures = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "pictures.npz", x=pictures)
    graph, metric, reduces = segmenter(), load_metric(name), name == "miou-to-reference"
    samples = SampleSpec(str(tmp_path / "pictures.npz")).open(graph.inputs)
    reference = as_it_is(graph.proto, SimulationBackend())
    runner = Runner(whole(samples))
    task = OutputEvaluator(runner, graph, reference, metric).task
    kept = runner.run({REFERENCE: reference}, {"": Outputs(REFERENCE, ("y",))})[""]
    assert task is not None
    raw = replace(task, reference=joined(kept))
    every = raw.reference["y"]
    assert every.shape == (12, CLASSES, 8, 8)
    changed = {"y": every + 0.3 * np.sin(np.arange(every.size).reshape(every.shape))}
    found = task(changed), task.of_reference()
    assert found == (raw(changed), 1.0) and found[0] < 1
    size = sum(array.nbytes for array in task.reference.values())
    assert size < every.nbytes / 20 if reduces else size == every.nbytes
