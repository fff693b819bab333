"""Masks of single objects: what outputs say of them, and how far they are those of the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from refusals import refused
from scipy.special import expit

from qdebug.commands.check.judging import judged_by
from qdebug.metrics.tasks.boxes.decoders import candidates_in
from qdebug.metrics.tasks.boxes.detections import Candidates
from qdebug.metrics.tasks.boxes.instance_masks import InstanceMasks
from qdebug.metrics.tasks.boxes.scores import box_counts, soft_f1_losses
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import load_metric

library = pytest.importorskip("faster_coco_eval")
rle = pytest.importorskip("faster_coco_eval.core.mask")

SIDE = 32
FACTS = ModelFacts({"x": (None, 3, SIDE, SIDE)}, {"y": (None, 5, 10), "p": (None, 4, 8, 8)})
"""Boxes after suppression with four coefficients, and prototypes of a quarter of the input."""


def outputs(seed: int, samples: int = 6, boxes: int = 5, noise: float = 0.0) -> dict[str, Any]:
    """Those of an end-to-end network, the same but for `noise` for the same seed."""
    random, other = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    low = random.uniform(0, 16, (samples, boxes, 2))
    corners = np.concatenate([low, low + random.uniform(6, 16, (samples, boxes, 2))], 2)
    scores = random.uniform(0.3, 1, (samples, boxes, 1))
    classes = random.integers(0, 2, (samples, boxes, 1))
    coefficients = random.normal(size=(samples, boxes, 4))
    planes = random.normal(size=(samples, 4, 8, 8))
    parts = (corners + noise * other.normal(size=corners.shape), scores, classes, coefficients)
    planes = planes + noise * other.normal(size=planes.shape)
    return {"y": np.concatenate(parts, 2).astype(np.float32), "p": planes.astype(np.float32)}


def literal_logits(one: dict[str, Any], sample: int, box: int) -> Any:
    """The logits as large as the input, pixel by pixel."""
    planes, coefficients = one["p"][sample], one["y"][sample, box, 6:]
    small = sum(c * plane for c, plane in zip(coefficients, planes, strict=True))
    found = np.zeros((SIDE, SIDE))
    for row in range(SIDE):
        for column in range(SIDE):
            y, x = (max(0.0, (at + 0.5) * 8 / SIDE - 0.5) for at in (row, column))
            top, left = int(y), int(x)
            bottom, right = min(top + 1, 7), min(left + 1, 7)
            above = small[top, left] * (1 - x + left) + small[top, right] * (x - left)
            below = small[bottom, left] * (1 - x + left) + small[bottom, right] * (x - left)
            found[row, column] = above * (1 - y + top) + below * (y - top)
    return found


def literal_mask(one: dict[str, Any], sample: int, box: int) -> Any:
    x1, y1, x2, y2 = one["y"][sample, box, :4]
    rows, columns = np.mgrid[:SIDE, :SIDE]
    inside = (rows >= y1) & (rows < y2) & (columns >= x1) & (columns < x2)
    return (literal_logits(one, sample, box) > 0) & inside


def candidates(one: dict[str, Any]) -> Candidates:
    return candidates_in(one, "end-to-end-seg", FACTS)


def test_masks_are_enlarged_and_end_with_their_boxes() -> None:
    one = outputs(0, samples=2)
    found = candidates(one).found
    for sample in range(2):
        order = np.argsort(-one["y"][sample, :, 4], kind="stable")
        for mask, box in zip(found.masks_of(sample), order, strict=True):
            np.testing.assert_array_equal(rle.decode(mask), literal_mask(one, sample, box))
    assert found.take(np.array([1])).masks_of(0) == found.masks_of(1)


def labels(one: dict[str, Any], planes: bool) -> dict[str, Any]:
    """What a network finds, as labels."""
    rows = one["y"]
    masks: Any = np.array(
        [[literal_mask(one, n, k) for k in range(rows.shape[1])] for n in range(len(rows))]
    )
    if not planes:
        counts = [
            [rle.encode(np.asfortranarray(mask, np.uint8))["counts"] for mask in each]
            for each in masks
        ]
        masks = np.array([[b"32x32:" + one for one in each] for each in counts])
    return {"boxes": rows[..., :4], "classes": rows[..., 5], "instance_masks": masks}


@pytest.mark.parametrize("planes", [True, False])
def test_average_precision_of_masks_is_what_the_library_gives(planes: bool) -> None:
    truth, found = outputs(3), outputs(3, noise=0.5)

    def listed(one: dict[str, Any]) -> list[dict[str, Any]]:
        rows = one["y"]
        places = [(n, k) for n in range(len(rows)) for k in range(rows.shape[1])]
        masks = [np.asfortranarray(literal_mask(one, n, k), np.uint8) for n, k in places]
        return [
            {
                "id": number,
                "image_id": n,
                "category_id": int(rows[n, k, 5]),
                "segmentation": rle.encode(mask),
                "area": int(mask.sum()),
                "iscrowd": 0,
                "score": float(rows[n, k, 4]),
            }
            for number, ((n, k), mask) in enumerate(zip(places, masks, strict=True), start=1)
            if mask.any() or one is found
        ]

    dataset = {
        "images": [{"id": n, "height": SIDE, "width": SIDE} for n in range(6)],
        "categories": [{"id": c, "name": str(c)} for c in range(2)],
        "annotations": listed(truth),
    }
    coco = library.COCO(dataset)
    evaluation = library.COCOeval_faster(coco, coco.loadRes(listed(found)), "segm")
    evaluation.run()
    for name, value in zip(("map", "map50"), evaluation.stats, strict=False):
        metric = load_metric(name, None, FACTS)
        assert 0.1 < value < 1 and "masks as end-to-end-seg" in metric.described
        assert metric(found, labels(truth, planes), {}) == pytest.approx(value)
    # The same boxes with other masks: of boxes the score would be 1.
    same_boxes = {"y": truth["y"], "p": found["p"]}
    assert load_metric("map-to-reference", None, FACTS)(same_boxes, {}, truth) < 0.9
    assert load_metric("map-to-reference", "end-to-end", FACTS)(same_boxes, {}, truth) == 1
    # By the boxes check judges how samples are prepared: masks of all ways take long.
    judged = judged_by(load_metric("map", None, FACTS))
    assert judged.name == "map of boxes" and judged.metric is not None
    assert judged.metric(same_boxes, labels(truth, planes), {}) == pytest.approx(1)
    counts = box_counts(candidates(same_boxes).sure, candidates(truth).sure)
    assert 0 < counts.kept < counts.kept + counts.lost == 30


def test_a_loss_weighs_how_far_masks_agree() -> None:
    """Place by place where places have a meaning: Σ min / Σ max of the probabilities."""
    random = np.random.default_rng(0)
    boxes = np.tile(np.array([0.0, 0, 24, SIDE]), (1, 3, 1))
    scores = np.array([[[0.8], [0.05], [0.4]]])
    planes, moved = random.normal(size=(2, 1, 3, 8, 8))

    def with_planes(logits: Any) -> Candidates:
        own = InstanceMasks(logits, None, (SIDE, SIDE), in_boxes=True)
        return Candidates(boxes, scores, masks=own)

    shared = total = 0.0
    for place in (0, 2):  # the other is below what is looked at
        one, other = (expit(logits[0, place, :, :6]) for logits in (planes, moved))
        near = np.minimum(one, other).sum() / np.maximum(one, other).sum()
        d = expit(20 * (scores[0, place, 0] - 0.25))
        shared, total = shared + 2 * d * expit(20 * (near - 0.5)), total + 2 * d
    loss = soft_f1_losses(with_planes(moved), with_planes(planes))
    assert loss == pytest.approx(1 - (shared + 1e-3) / (total + 1e-3))
    # exp(-10) of a decision is open where all overlaps are 1.
    assert soft_f1_losses(with_planes(planes), with_planes(planes))[0] < 1e-4
    one, other = (candidates(outputs(3, noise=noise)) for noise in (0.0, 0.5))
    assert soft_f1_losses(one, one).max() < 1e-4 < soft_f1_losses(other, one).min()


def test_masks_of_the_users(tmp_path: Any) -> None:
    file = tmp_path / "read.py"
    file.write_text(
        "def masks(outputs):\n    return outputs['b'], outputs['s'], outputs['m']\n"
        "def wrong(outputs):\n    return outputs['b'], outputs['s'], outputs['m'][:, 0]\n"
    )
    metric = load_metric("map50-to-reference", f"{file}:masks")
    boxes = np.tile(np.array([0.0, 0, 8, 8]), (2, 1, 1))
    masks = np.zeros((2, 1, 8, 8))
    masks[:, :, :4] = 0.9
    before = {"b": boxes, "s": np.full((2, 1, 1), 0.9), "m": masks}
    assert metric(before, {}, before) == 1
    assert metric(before | {"m": masks[:, :, ::-1]}, {}, before) == 0
    with refused("QD-METRIC-DECODE", "masks [samples, places, height, width]"):
        load_metric("map50-to-reference", f"{file}:wrong")(before, {}, before)


@pytest.mark.parametrize(
    ("masks", "says"),
    [
        (None, "boxes alone"),
        (np.array([[b"64x32:00"] * 5] * 6), "64x32"),
        (np.zeros((6, 5, 16, 16)), "16, 16"),
        (np.zeros((6, 5)), "float64"),
        (np.zeros((6, 4, SIDE, SIDE)), "[6, 4]"),
    ],
)
def test_labels_that_are_no_masks(masks: Any, says: str) -> None:
    one = outputs(3)
    given = labels(one, planes=True) | {"instance_masks": masks}
    if masks is None:
        del given["instance_masks"]
    with refused("QD-METRIC-LABELS", says):
        load_metric("map", None, FACTS)(one, given, {})
