"""Decisions by thresholds and by suppression that INT8 makes otherwise, on small networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from half_networks import Builder

import qdebug
from qdebug.analyse.causes.decisions import Decision
from qdebug.analyse.causes.suppression import SuppressionFlips, overlaps
from qdebug.analyse.causes.thresholds import Comparing, ComparisonFlips
from qdebug.plan.plan import PrecisionPlan
from qdebug.types import Precision

SAMPLES = {"x": np.random.default_rng(0).normal(size=(128, 16)).astype(np.float32)}


def compared(model: onnx.ModelProto, **more: Any) -> qdebug.CompareResult:
    how = {"inputs": SAMPLES, "calib_data": SAMPLES, "effect": "none", "cache": False}
    return qdebug.compare(model, **{**how, **more})


def network(kind: str) -> onnx.ModelProto:
    b = Builder(7)
    h = b.linear("x", 16, 32)
    scores = b.add("Sigmoid", b.linear(h, 32, 8))
    boxes = b.add("Add", b.linear(h, 32, 8), b.constant(50.0))
    if kind == "leaky":
        y = b.linear(h, 32, 8)
        low = b.add("Mul", y, b.constant(0.1))
        return b.model(
            {"x": ["n", 16]}, [b.add("Where", b.add("Less", b.constant(0.0), y), y, low)]
        )
    if kind == "masked":
        below = b.add("Less", scores, b.constant(0.5))
        return b.model(
            {"x": ["n", 16]}, [b.add("Mul", boxes, b.add("Cast", b.add("Not", below), to=1))]
        )
    mask = b.add(kind, scores, b.constant(0.5))
    return b.model({"x": ["n", 16]}, [b.add("Where", mask, boxes, b.constant(0.0))])


def values(model: onnx.ModelProto, tensor: str) -> np.ndarray:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.output.append(onnx.helper.make_tensor_value_info(tensor, 1, None))
    session = ort.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run([tensor], SAMPLES)[0]
    return found


@pytest.mark.parametrize("kind", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "masked"])
def test_a_threshold_between_close_scores(kind: str) -> None:
    """The layer that selects by it has the cause first, the one that scores has it too; the sample
    and the margin are those of the first element that flips."""
    model = network(kind)
    result = compared(model)
    reader = next(x for x in result.layers if x.op_type in ("Where", "Mul"))
    assert reader.causes[0].label == "index-flip" and reader.causes[0].share == pytest.approx(
        1, abs=0.01
    )
    scoring = [
        x for x in result.layers if x is not reader and "index-flip" in [c.label for c in x.causes]
    ]
    assert len(scoring) == 1
    assert result.layers[0].causes and any("Greater" in n or "Less" in n for n in result.notes)
    sigmoid = next(n.output[0] for n in model.graph.node if n.op_type == "Sigmoid")
    margins = np.abs(values(model, sigmoid) - 0.5)
    (note,) = [n for n in result.notes if " apart" in n]
    sample, margin = (
        int(note.split("sample ")[1].split(":")[0]),
        float(note.split(" apart")[0].split()[-1]),
    )
    assert np.abs(margins[sample] - margin).min() < 0.05 * margin


def test_branches_that_meet_at_the_threshold_are_no_cause() -> None:
    result = compared(network("leaky"))
    assert not any("apart" in note for note in result.notes)
    assert not any(c.label == "index-flip" for x in result.layers for c in x.causes)


def test_nothing_flips_where_nothing_is_rounded() -> None:
    for kind in ("Greater", "leaky"):
        result = compared(network(kind), plan=PrecisionPlan(Precision.FP32), allow_unquantized=True)
        assert not any(x.causes for x in result.layers)


def test_equal_operands_that_part() -> None:
    flips = ComparisonFlips(Comparing("e", "Equal", "a", "b", ("y",)))
    one, two = np.array([[1.0, 2.0], [3.0, np.nan]]), np.array([[1.0, 5.0], [3.0, 1.0]])
    other = np.array([[1.0, 2.0], [3.5, 1.0]])
    readers = {"y": (np.zeros((2, 2)), np.array([[3.0, 0.0], [4.0, 0.0]]))}
    flips.add((one, two), (other, two), readers, 10, 2)
    flips.add((one, two), (other, two), readers, 10, 2)  # a batch counts once
    assert (flips.total, flips.flipped, flips.sample) == (3, 1, 11)
    assert (flips.margin, flips.moved) == (0.0, 0.5)
    assert flips.energies == {"y": (16.0, 25.0)}
    cause = flips.cause("y")
    assert cause is not None and cause.share == 16 / 25
    assert flips.cause("z") is None


def detector(score: float = 0.5) -> onnx.ModelProto:
    """Anchors on a line that overlap, two classes, NonMaxSuppression; what is kept is gathered."""
    b = Builder(9)
    h = b.linear("x", 16, 32)
    count = 12
    anchors = np.stack([[k * 4.0, 0.0, k * 4.0 + 10, 10.0] for k in range(count)])
    shifts = b.shaped(b.linear(h, 32, count * 4), -1, count, 4)
    boxes = b.add("Add", shifts, b.constant(anchors))
    scores = b.add("Sigmoid", b.shaped(b.linear(h, 32, 2 * count), -1, 2, count))
    kept = b.add(
        "NonMaxSuppression", boxes, scores, b.constant([10], np.int64), b.constant([0.3]),
        b.constant([score]),
    )  # fmt: skip
    place = b.add("Gather", kept, b.constant(2, np.int64), axis=1)
    return b.model({"x": [1, 16]}, [boxes, scores, b.add("Gather", b.constant(anchors), place)])


def test_the_first_box_that_only_one_of_them_keeps() -> None:
    result = compared(detector())
    (note,) = [n for n in result.notes if "NonMaxSuppression" in n]
    assert "keeps other boxes" in note
    scoring = [x for x in result.layers if "index-flip" in [c.label for c in x.causes]]
    assert scoring and scoring[-1].causes[-1].share < 0.2
    margin = float(note.split(" from its threshold")[0].split()[-1])
    assert 0 <= margin < 0.05


def test_boxes_far_from_every_threshold_do_not_flip() -> None:
    """FP16 rounds too little for it."""
    result = compared(detector(), precision="fp16", samples=4)
    assert not any("NonMaxSuppression" in n for n in result.notes)


def test_boxes_are_counted_once_and_overlaps_are_those_of_their_areas() -> None:
    flips = SuppressionFlips(Decision("n", "NonMaxSuppression", "s", 0))
    boxes, scores = np.zeros((1, 3, 4)), np.array([[[0.6, 0.7, 0.8]]])
    kept = np.array([[0, 0, 0], [0, 0, 1]]), np.array([[0, 0, 1], [0, 0, 0]])
    flips.add_kept((boxes, scores, kept[0]), (boxes, scores, kept[1]), 0)  # another order
    assert (flips.total, flips.flipped) == (2, 0)
    one = np.array([0.0, 0.0, 2.0, 2.0])
    others = np.array([[1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 0.0, 0.0], [5.0, 5.0, 6.0, 6.0]])
    assert overlaps(one, others, False) == pytest.approx([1 / 7, 1.0, 0.0])
    centers = np.array([[2.0, 2.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]])
    assert overlaps(np.array([1.0, 1.0, 2.0, 2.0]), centers, True) == pytest.approx([1 / 7, 1.0])
