"""Whether single values are shares or logits: decided once for a network, by its graph or FP32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdebug.metrics.tasks.base import TaskMetric
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric, metric_in_memory
from qdebug.metrics.tasks.worst_group import of_worst_group
from qdebug.network.graph import Graph
from qdebug.network.outputshares import share_outputs
from qdebug.network.samples import Batch
from qdebug.run.outputs import MetricEvaluator

SCORES = np.array([[0.0], [0.2], [0.6], [1.0]], np.float32)
STEP = np.float32(0.3)
"""Far more than any tolerance: ranges that clip badly do that."""
TRUTH = np.array([0, 0, 1, 1])


@pytest.mark.parametrize("name", ["top1", "f1", "agreement"])
def test_a_candidate_beyond_0_to_1_is_read_as_fp32_is(name: str) -> None:
    """By its own values 0.3 would be a logit, and of the second class."""
    candidate = {"y": SCORES + STEP * np.array([[1], [0], [1], [1]], np.float32)}
    metric = load_metric(name)
    assert metric(candidate, {"labels": TRUTH}, {"y": SCORES}) == 1
    assert metric.judged(candidate, {"labels": TRUTH}, {"y": SCORES}, [np.array([0, 3])]).score == 1
    logits = {"y": np.array([[-3.0], [0.2], [0.3], [0.4]])}
    own = {"y": np.clip(logits["y"], 0.01, 1)}  # in 0 to 1 where FP32 is not
    assert metric(own, {"labels": np.array([1, 1, 1, 1])}, logits) == pytest.approx(
        {"top1": 1.0, "f1": 1.0, "agreement": 0.75}[name]
    )


def test_a_plane_beyond_0_to_1_is_read_as_fp32_is() -> None:
    plane = np.array([[[[0.0, 0.1], [0.9, 1.0]]]], np.float32)
    wider = plane + np.float32(0.004) * np.array([[-1, 1], [1, 1]], np.float32)
    assert load_metric("miou-to-reference")({"y": wider}, {}, {"y": plane}) == 1


def test_a_function_of_y_true_and_y_pred_gets_the_classes_by_what_fp32_gives() -> None:
    metric = load_metric(metric_in_memory(lambda y_true, y_pred: np.mean(y_true == y_pred)))
    candidate = {"y": SCORES + STEP}
    assert metric(candidate, {"labels": TRUTH}, {"y": SCORES}) == 1
    assert metric(candidate, {"labels": TRUTH}, {"y": SCORES * 9 - 4}) == 0.5


def test_the_graph_decides_before_any_value() -> None:
    metric = load_metric("top1", None, ModelFacts({}, {"y": (None, 1)}, {}, {"y": True}))
    low = {"y": np.array([[0.2], [0.3]])}
    wide = {"y": np.array([[0.2], [1.4]])}
    assert metric(low, {"labels": np.array([0, 0])}, wide) == 1


@pytest.mark.parametrize("by_group", [False, True])
def test_all_samples_decide_and_not_those_of_a_part(by_group: bool) -> None:
    """The logits of the second group lie in 0 to 1 by chance."""
    logits = np.array([[-4.0], [5.0], [0.2], [0.3]])
    labels = {"labels": np.array([0, 1, 1, 1]), "group": np.array([0, 0, 1, 1])}
    samples: Any = type("Samples", (), {"extras": labels})
    metric: TaskMetric = load_metric("top1")
    if by_group:
        metric = of_worst_group(metric, "group")
    task = MetricEvaluator.of(metric, samples, {Batch(0, 0, len(logits)): {"y": logits}})
    assert task({"y": logits}) == 1
    if not by_group:  # whose groups are parts already
        judged = task.metric.judged(task.reference, labels, task.reference, [np.array([2, 3])])
        assert judged.left_out.tolist() == [1]


NODE = helper.make_node
SHARES = {
    "sigmoid": [NODE("Sigmoid", ["x"], ["y"])],
    "moved": [NODE("Sigmoid", ["x"], ["s"]), NODE("Transpose", ["s"], ["y"])],
    "clip": [NODE("Clip", ["x", "zero", "one"], ["y"])],
    "joined": [
        *(NODE("Sigmoid", ["x"], ["s"]), NODE("Softmax", ["x"], ["t"])),
        NODE("Concat", ["s", "t"], ["y"], axis=0),
    ],
    "resized": [
        NODE("Sigmoid", ["x"], ["s"]),
        NODE("Resize", ["s", "", "scales"], ["y"], mode="linear"),
    ],
}
OTHERS = {
    "bare": [NODE("Relu", ["x"], ["y"])],
    "open": [NODE("Clip", ["x", "zero"], ["y"])],
    "scaled": [NODE("Sigmoid", ["x"], ["s"]), NODE("Mul", ["s", "scales"], ["y"])],
    "half": [NODE("Sigmoid", ["x"], ["s"]), NODE("Concat", ["s", "x"], ["y"], axis=0)],
    "cubic": [
        NODE("Sigmoid", ["x"], ["s"]),
        NODE("Resize", ["s", "", "scales"], ["y"], mode="cubic"),
    ],
}


@pytest.mark.parametrize("name", [*SHARES, *OTHERS])
def test_what_a_graph_says_of_its_output(name: str) -> None:
    values = {"zero": 0.0, "one": 1.0, "scales": [2.0, 2.0]}
    constants = [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in values.items()]
    info = helper.make_tensor_value_info
    ends = info("x", TensorProto.FLOAT, [2, 2]), info("y", TensorProto.FLOAT, [None, None])
    nodes = SHARES.get(name) or OTHERS[name]
    graph = helper.make_graph(nodes, "g", [ends[0]], [ends[1]], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    assert share_outputs(Graph(model)) == ({"y"} if name in SHARES else frozenset())


def _graph(nodes: list[onnx.NodeProto], output: str) -> Graph:
    ends = [helper.make_tensor_value_info(t, TensorProto.FLOAT, [1, 4]) for t in ("x", output)]
    scale = numpy_helper.from_array(np.array(1 / 255, np.float32), "s")
    zero = numpy_helper.from_array(np.array(0, np.uint8), "z")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [scale, zero])
    return Graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_each_tensor_is_looked_at_once() -> None:
    """Sixty products of a tensor with itself: it took time that doubled with each."""
    nodes = [helper.make_node("Sigmoid", ["x"], ["t0"])]
    nodes += [helper.make_node("Mul", [f"t{k}", f"t{k}"], [f"t{k + 1}"]) for k in range(60)]
    assert share_outputs(_graph(nodes, "t60")) == {"t60"}


@pytest.mark.parametrize(("output", "is_share"), [("q", False), ("moved", False), ("d", True)])
def test_codes_are_no_shares(output: str, is_share: bool) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["t"]),
        helper.make_node("QuantizeLinear", ["t", "s", "z"], ["q"]),
        helper.make_node("Identity", ["q"], ["moved"]),
        helper.make_node("DequantizeLinear", ["moved", "s", "z"], ["d"]),
    ]
    assert (output in share_outputs(_graph(nodes, output))) is is_share
