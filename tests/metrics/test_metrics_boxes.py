"""Boxes: what outputs of detectors mean, which boxes they give, how these agree with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from scipy.special import expit

from qdebug.metrics.tasks.boxes.decoders import candidates_in, fitting_decoder
from qdebug.metrics.tasks.boxes.detections import (
    Candidates,
    Detections,
    ious,
    suppressed,
)
from qdebug.metrics.tasks.boxes.reading import labelled
from qdebug.metrics.tasks.boxes.scores import box_counts, soft_f1_losses
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tasks.registry import DECODERS

SIZE = {"images": (None, 3, 64, 64)}  # 84 places: 64 + 16 + 4
DECODER_NAMES = [decoder.name for decoder in DECODERS if decoder.takes == "boxes"]
NAMES = {"names": "{0: 'a', 1: 'b', 2: 'c'}"}


def random_boxes(random: np.random.Generator, *shape: int) -> Any:
    low = random.uniform(0, 40, (*shape, 2))
    return np.concatenate([low, low + random.uniform(4, 24, (*shape, 2))], axis=-1)


def centred(boxes: Any) -> Any:
    return np.concatenate(
        [(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1
    )


def literal_suppression(boxes: Any, classes: Any, overlap: float) -> list[int]:
    kept: list[int] = []
    for i in range(len(boxes)):
        same = [k for k in kept if classes[k] == classes[i]]
        if all(literal_iou(boxes[k], boxes[i]) <= overlap for k in same):
            kept.append(i)
    return kept


def literal_iou(one: Any, other: Any) -> float:
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = ((b[2] - b[0]) * (b[3] - b[1]) for b in (one, other))
    return float(width * height / (sum(areas) - width * height))


@given(st.integers(0, 200), st.floats(0.1, 0.9))
def test_suppression_is_the_greedy_one_class_by_class(seed: int, overlap: float) -> None:
    random = np.random.default_rng(seed)
    boxes, classes = random_boxes(random, 20), random.integers(0, 3, 20)
    expected = literal_suppression(boxes, classes, overlap)
    assert suppressed(boxes, classes, overlap).tolist() == expected
    table = [[literal_iou(a, b) for b in boxes] for a in boxes]
    np.testing.assert_allclose(ious(boxes, boxes), table)


def test_found_are_the_highest_scores_of_every_class_of_a_place() -> None:
    boxes = np.array([[[0, 0, 10, 10], [0, 0, 10, 9], [30, 30, 40, 40], [0, 0, 0, 0]]], float)
    scores = np.array([[[0.5, 0.3], [0.9, 0.0], [0.0, np.nan], [0.0, 0.0]]])
    own, values, classes = Candidates(boxes, scores).found.of(0)
    assert values.tolist() == [0.9, 0.3] and classes.tolist() == [0, 1]
    assert own.tolist() == [[0, 0, 10, 9], [0, 0, 10, 10]]
    _, values, _ = Candidates(boxes, scores, distinct=True).found.of(0)
    assert values.tolist() == [0.9, 0.5, 0.3]
    assert Candidates(boxes, 0 * scores).found.classes.shape == (1, 0)


def outputs_of(name: str, boxes: Any, scores: Any) -> dict[str, Any]:
    """What a detector of this kind gives where it sees these boxes with these scores."""
    middle = centred(boxes)
    unit = middle / 64
    one, score = np.ones((*scores.shape[:2], 1)), scores.max(axis=2)
    number = scores.argmax(axis=2).astype(float)
    if name == "yolov8":
        return {"y": np.moveaxis(np.concatenate([middle, scores], 2), 1, 2)}
    if name == "yolov5":
        return {"y": np.concatenate([middle, 0.5 * one, 2 * scores], 2)}
    if name == "yolox":
        y, x, stride = cells()
        centres = middle[..., :2] / stride - np.stack([x, y], 1)
        return {"y": np.concatenate([centres, np.log(middle[..., 2:] / stride), one, scores], 2)}
    if name == "end-to-end":
        return {"y": np.concatenate([boxes, score[..., None], number[..., None]], 2)}
    if name == "detections":
        return {"boxes": boxes, "scores": score, "labels": number.astype(np.int64)}
    if name == "ssd":
        return {"scores": np.concatenate([1 - score[..., None], scores], 2), "boxes": boxes / 64}
    if name == "detr":
        rest = np.log(1 - scores.sum(axis=2, keepdims=True))
        return {"logits": np.concatenate([np.log(scores), rest], 2), "pred_boxes": unit}
    return {"logits": np.log(scores) - np.log1p(-scores), "pred_boxes": unit}


def with_prototypes(name: str, outputs: dict[str, Any], shape: Any) -> dict[str, Any]:
    """The outputs of a detector of boxes with those that one of masks has besides."""
    if not name.endswith("-seg"):
        return outputs
    axis = 1 if name == "yolov8-seg" else 2
    coefficients = np.moveaxis(mask_coefficients(*shape[:2]), 2, axis)
    return {"p": PROTOTYPES, "y": np.concatenate([outputs["y"], coefficients], axis)}


PROTOTYPES = np.random.default_rng(5).normal(size=(2, 6, 16, 16))


def mask_coefficients(samples: int, places: int) -> Any:
    return np.random.default_rng(6).normal(size=(samples, places, 6))


def cells() -> tuple[Any, Any, Any]:
    places = [
        (y, x, stride)
        for stride in (8, 16, 32)
        for y in range(64 // stride)
        for x in range(64 // stride)
    ]
    y, x, stride = np.array(places, float).T
    return y, x, stride[:, None]


@pytest.mark.parametrize("name", DECODER_NAMES)
def test_a_decoder_reads_what_its_detector_writes(name: str) -> None:
    random = np.random.default_rng(0)
    boxes, scores = random_boxes(random, 2, 84), 0.3 * random.random((2, 84, 3)) + 0.01
    outputs = outputs_of(name.removesuffix("-seg"), boxes, scores)
    outputs = with_prototypes(name, outputs, scores.shape)
    found = candidates_in(outputs, name, ModelFacts(SIZE, {}))
    np.testing.assert_allclose(found.boxes, boxes, atol=1e-5)
    of_one_class = ("end-to-end", "end-to-end-seg", "detections")
    if name in of_one_class:
        np.testing.assert_allclose(found.scores.max(axis=2), scores.max(axis=2))
        np.testing.assert_array_equal(found.scores.argmax(axis=2), scores.argmax(axis=2))
    else:
        np.testing.assert_allclose(found.scores, scores, atol=1e-6)
    assert found.distinct == (name in (*of_one_class, "detr", "rt-detr"))
    assert (found.masks is not None) == name.endswith("-seg")
    if found.masks is not None:
        assert found.masks.size == (64, 64) and found.masks.in_boxes
        np.testing.assert_array_equal(found.masks.coefficients, mask_coefficients(2, 84))
        boxes_alone = candidates_in(outputs, name.removesuffix("-seg"), ModelFacts(SIZE, {}))
        assert boxes_alone.masks is None
        np.testing.assert_array_equal(boxes_alone.scores, found.scores)


@pytest.mark.parametrize(
    ("shape", "metadata", "name"),
    [
        ((None, 7, 84), {}, "yolov8"),
        ((None, 7, None), NAMES, "yolov8"),
        ((None, 7 + 32, None), NAMES, "yolov8"),  # with the coefficients of masks
        ((None, 84, 8), {}, "yolox"),
        ((None, 252, 8), {}, "yolov5"),
        ((None, None, 8), NAMES, "yolov5"),
        ((None, 300, 6), {}, "end-to-end"),
        ((None, None, 6), {"end2end": "True"}, "end-to-end"),
        ((None, None, 7), NAMES, "rt-detr"),  # as Ultralytics exports it
        ((None, 300, 7), NAMES, "rt-detr"),
        ((None, 300, 80), {}, None),
        ((None, 10), {}, None),
    ],
)
def test_shapes_and_metadata_tell_the_decoder(
    shape: Any, metadata: dict[str, str], name: str | None
) -> None:
    fitting = fitting_decoder(ModelFacts(SIZE, {"y": shape}, metadata))
    assert fitting == name


@pytest.mark.parametrize(
    ("shape", "metadata", "name"),
    [
        ((None, 7 + 32, 84), {}, "yolov8-seg"),
        ((None, 7 + 32, None), NAMES | {"task": "segment"}, "yolov8-seg"),
        ((None, 7 + 32, None), NAMES | {"task": "something"}, "yolov8"),
        ((None, 252, 8 + 32), {}, "yolov5-seg"),
        ((None, None, 8 + 32), NAMES, "yolov5-seg"),
        ((None, 300, 6 + 32), {}, "end-to-end-seg"),
        ((None, 84, 8), {}, "yolox"),
        ((None, 10, 20), {}, None),
    ],
)
def test_prototypes_beside_the_boxes_are_of_masks(
    shape: Any, metadata: dict[str, str], name: str | None
) -> None:
    outputs = {"y": shape, "p": (None, 32, 16, 16)}
    assert fitting_decoder(ModelFacts(SIZE, outputs, metadata)) == name


@pytest.mark.parametrize("columns", [4, 91])
def test_rf_detr_names_its_outputs(columns: int) -> None:
    """Boxes are found by name where there are four logits too, whatever the order."""
    facts = ModelFacts(SIZE, {"labels": (None, 9, columns), "dets": (None, 9, 4)})
    assert fitting_decoder(facts) == "rt-detr"
    random = np.random.default_rng(0)
    boxes, logits = random_boxes(random, 2, 9), random.normal(size=(2, 9, columns))
    found = candidates_in({"labels": logits, "dets": centred(boxes) / 64}, "rt-detr", facts)
    np.testing.assert_allclose(found.boxes, boxes)
    np.testing.assert_allclose(found.scores, expit(logits))


def test_rt_detr_with_its_own_postprocessor() -> None:
    rows = {"labels": (None, 300), "boxes": (None, 300, 4), "scores": (None, 300)}
    inputs = SIZE | {"orig_target_sizes": (None, 2)}
    assert fitting_decoder(ModelFacts(inputs, rows)) == "detections"


def test_what_nothing_tells_is_asked_for() -> None:
    outputs = {"logits": (None, 300, 80), "pred_boxes": (None, 300, 4)}
    facts = ModelFacts(SIZE, outputs)
    with refused("QD-METRIC-DECODE", "pred_boxes [?, 300, 4]", "rt-detr", "decode"):
        load_metric("box-f1-to-reference", None, facts)
    assert "rt-detr" in load_metric("box-f1-to-reference", "RT_DETR", facts).described
    with refused("QD-METRIC-DECODE", "'yolo99'", "yolov8"):
        load_metric("box-f1-to-reference", "yolo99", facts)
    with refused("QD-METRIC-DECODE", "top1"):
        load_metric("top1", "yolov8")


@pytest.mark.parametrize("name", DECODER_NAMES)
def test_a_decoder_refuses_outputs_that_it_does_not_read(name: str) -> None:
    outputs = {"y": np.zeros((2, 10)), "z": np.zeros((2, 3))}
    metric = load_metric("box-f1-to-reference", name)
    with refused("QD-METRIC-DECODE", name, "y [2, 10], z [2, 3]"):
        metric(outputs, {}, outputs)


def test_a_function_of_the_users_reads_outputs(tmp_path: Any) -> None:
    file = tmp_path / "read.py"
    file.write_text(
        "import numpy as np\n"
        "def boxes(outputs):\n    return outputs['b'], outputs['s']\n"
        "def wrong(outputs):\n    return outputs['b']\n"
        "def fewer(outputs):\n    return outputs['b'], outputs['s'][:, :5]\n"
        "def raising(outputs):\n    return outputs['boxes']\n"
    )
    random = np.random.default_rng(0)
    boxes, scores = random_boxes(random, 3, 9), random.random((3, 9, 2))
    metric = load_metric("box-f1-to-reference", f"{file}:boxes")
    outputs = {"b": boxes, "s": scores}
    assert metric(outputs, {}, outputs) == 1
    assert metric({"b": boxes, "s": 0 * scores}, {}, outputs) == 0
    assert metric.key is not None and metric.key != load_metric("box-f1-to-reference").key
    for function in ("wrong", "fewer"):
        with refused("QD-METRIC-DECODE", "[samples, places, 4]"):
            load_metric("box-f1-to-reference", f"{file}:{function}")(outputs, {}, outputs)
    with refused("QD-METRIC-RAISED", "read.py:raising", "line 9: return outputs['boxes']", "'b': "):
        load_metric("box-f1-to-reference", f"{file}:raising")(outputs, {}, outputs)


def test_boxes_are_kept_lost_or_new() -> None:
    box, far = [0.0, 0, 10, 10], [50.0, 50, 60, 60]
    truth = Detections(np.array([[box, far]]), np.ones((1, 2)), np.array([[0, 1]]))
    found = Detections(
        np.array([[box, box, far]]), np.array([[0.9, 0.8, 0.7]]), np.array([[0, 1, -1]])
    )
    counts = box_counts(found, truth)
    assert (counts.kept, counts.lost, counts.new) == (1, 1, 1) and counts.f1 == 0.5
    unsure = Detections(found.boxes, found.scores * 0.1, found.classes)
    assert box_counts(unsure, truth).kept == 0


def test_average_precision_is_what_the_library_gives() -> None:
    library = pytest.importorskip("faster_coco_eval")
    random = np.random.default_rng(0)
    boxes, classes = random_boxes(random, 20, 4), random.integers(0, 3, (20, 4))
    found = boxes + random.normal(0, 1.5, boxes.shape)
    scores = random.uniform(0.3, 1, (20, 4))

    def listed(all_boxes: Any, **more: Any) -> list[dict[str, Any]]:
        return [
            {
                "id": 4 * n + k + 1,
                "image_id": n,
                "category_id": int(classes[n, k]),
                "bbox": [*box[:2], *(box[2:] - box[:2])],
                "area": float(np.prod(box[2:] - box[:2])),
                "iscrowd": 0,
                **{name: float(values[n, k]) for name, values in more.items()},
            }
            for n in range(20)
            for k, box in enumerate(all_boxes[n])
        ]

    dataset = {
        "images": [{"id": n} for n in range(20)],
        "categories": [{"id": c, "name": str(c)} for c in range(3)],
        "annotations": listed(boxes),
    }
    coco = library.COCO(dataset)
    evaluation = library.COCOeval_faster(coco, coco.loadRes(listed(found, score=scores)), "bbox")
    evaluation.run()
    spread = (classes[..., None] == np.arange(3)) * scores[..., None]
    outputs = outputs_of("end-to-end", found, spread)
    labels = {"boxes": boxes, "classes": classes}
    for name, value in zip(("map", "map50"), evaluation.stats, strict=False):
        assert 0.1 < value < 1
        assert load_metric(name, "end-to-end")(outputs, labels, {}) == pytest.approx(value)


def literal_loss(after: Candidates, before: Candidates, sample: int) -> float:
    shared = total = 0.0
    for place in range(after.boxes.shape[1]):
        overlap = literal_iou(after.boxes[sample, place], before.boxes[sample, place])
        for s, r in zip(after.scores[sample, place], before.scores[sample, place], strict=True):
            if max(s, r) > 0.1:
                d, d_ref = expit(20 * (s - 0.25)), expit(20 * (r - 0.25))
                shared += 2 * min(d, d_ref) * expit(20 * (overlap - 0.5))
                total += d + d_ref
    return 1 - (shared + 1e-3) / (total + 1e-3)


def test_the_loss_is_a_soft_form_of_f1() -> None:
    random = np.random.default_rng(0)
    before, after = (
        Candidates(random_boxes(random, 3, 30), random.random((3, 30, 3)) ** 4) for _ in range(2)
    )
    expected = [literal_loss(after, before, n) for n in range(3)]
    np.testing.assert_allclose(soft_f1_losses(after, before), expected)
    assert soft_f1_losses(before, before) == pytest.approx(0, abs=1e-4)
    nothing = Candidates(before.boxes, 0 * before.scores)
    assert soft_f1_losses(nothing, before) == pytest.approx(1, abs=0.05)
    assert soft_f1_losses(nothing, nothing) == pytest.approx(0)
    # What is found where nothing is, is as wrong as what is lost: neither grows without bound.
    assert soft_f1_losses(before, nothing) == pytest.approx(soft_f1_losses(nothing, before))


def test_boxes_in_another_order_lose_nothing() -> None:
    random = np.random.default_rng(0)
    boxes = np.arange(30).reshape(1, 30, 1) * 100.0 + random_boxes(random, 1, 30)
    scores = random.uniform(0.3, 1, (1, 30, 1))
    reference = Candidates(boxes, scores, distinct=True)
    turned = Candidates(boxes[:, ::-1], scores[:, ::-1], distinct=True)
    assert soft_f1_losses(turned, reference) == pytest.approx(0, abs=1e-4)
    half = Candidates(boxes[:, 15:], scores[:, 15:], distinct=True)
    assert soft_f1_losses(half, reference) == pytest.approx(1 - 30 / 45, abs=0.05)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"boxes": np.zeros((2, 1, 4))},
        {"boxes": np.zeros((2, 1, 5)), "classes": np.zeros((2, 1))},
        {"boxes": np.zeros((2, 1, 4)), "classes": np.zeros((2, 2))},
    ],
)
def test_labels_that_are_no_boxes(labels: dict[str, Any]) -> None:
    with refused("QD-METRIC-LABELS", "boxes"):
        labelled(labels)
