"""What is kept of each batch, in memory and in a temporary file; what a metric is given of FP32."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.backends.options import DEFAULT_SESSIONS
from qdebug.backends.sizing import parallelism
from qdebug.execute import evaluator
from qdebug.execute.context import simulation_context
from qdebug.execute.evaluator import KeptReference
from qdebug.execute.kept_batches import KeptBatches
from qdebug.metrics.tasks.load import load_metric
from qdebug.network.graph import Graph
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import whole
from qdebug.network.samplespec import SampleSpec
from qdebug.run.outputs import joined
from qdebug.types import ignore_progress

CLASSES = 20


def of(index: int) -> dict[str, Any]:
    return {"y": np.full((2, 50), index, np.float32), "z": np.arange(4)[:, None] + index}


def test_what_has_no_room_is_read_from_a_file() -> None:
    kept = KeptBatches(1000.0)  # two of them
    batches = [Batch(k, 2 * k, 2) for k in range(6)]
    for batch in batches:
        kept[batch] = of(batch.index)
    assert [*kept] == batches and len(kept) == 6
    first, again = kept[batches[0]], kept[batches[0]]
    assert first["y"] is again["y"] and kept[batches[5]]["y"] is not kept[batches[5]]["y"]
    with ThreadPoolExecutor(4) as pool:
        for batch, found in zip(batches * 3, pool.map(kept.__getitem__, batches * 3), strict=True):
            for name, array in of(batch.index).items():
                assert np.array_equal(found[name], array) and found[name].dtype == array.dtype
    assert joined(kept)["y"].shape == (12, 50)
    kept.clear()
    assert not kept


def test_what_no_file_takes_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptBatches(0.0)
    kept[Batch(0, 0, 1)] = {"text": np.array(["a"], object)}
    assert kept[Batch(0, 0, 1)]["text"][0] == "a"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept._spill, "write", full)
    kept[Batch(1, 1, 1)] = of(1)
    assert kept[Batch(1, 1, 1)]["y"] is kept[Batch(1, 1, 1)]["y"]


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
def test_a_metric_keeps_of_fp32_what_it_needs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of all scores; where the outputs are kept changes nothing."""
    pictures = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "pictures.npz", x=pictures)
    graph, metric, reduces = segmenter(), load_metric(name), name == "miou-to-reference"
    samples = SampleSpec(str(tmp_path / "pictures.npz")).open(graph.inputs)
    context = simulation_context(parallelism(), ignore_progress, DEFAULT_SESSIONS)
    found = {}
    for room in (1 << 20, 0):
        monkeypatch.setattr(evaluator, "_OUTPUTS_BYTES", room)
        with closing(context.backend.open(graph.proto, ())) as session:
            kept = KeptReference(context, graph, session, whole(samples), metric)
        task = kept.task
        assert task is not None
        raw = replace(task, reference=joined(kept.outputs.by_batch))
        every = raw.reference["y"]
        assert every.shape == (12, CLASSES, 8, 8)
        changed = {"y": every + 0.3 * np.sin(np.arange(every.size).reshape(every.shape))}
        found[room] = task(changed), task.of_reference()
        assert found[room] == (raw(changed), 1.0) and found[room][0] < 1
        size = sum(array.nbytes for array in task.reference.values())
        assert size < every.nbytes / 20 if reduces else size == every.nbytes
    assert found[1 << 20] == found[0]
