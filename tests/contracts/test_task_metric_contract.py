"""What every built-in end-to-end metric must do, on data that suit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, TaskMetric
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.metrics.tasks.load import bound, load_metric
from qdebug.metrics.tasks.registry import BUILT_IN, NAMES, Takes, built_in

SAMPLES = 24


@dataclass(frozen=True)
class Case:
    """The reference's outputs and the labels, [samples, …] by name."""

    reference: Outputs
    labels: Outputs
    facts: ModelFacts | None = None


def classifier() -> Case:
    """Scores of twelve classes, right for most samples."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 12, SAMPLES)
    scores = random.standard_normal((SAMPLES, 12)).astype(np.float32)
    scores[np.arange(SAMPLES), truth] += 3
    return Case({"scores": scores}, {"labels": truth})


def embedding() -> Case:
    """Points around five centres, and the centre of each."""
    random = np.random.default_rng(0)
    near = random.integers(0, 5, SAMPLES)
    points = 3 * random.standard_normal((5, 8))[near] + random.standard_normal((SAMPLES, 8))
    return Case({"embedding": points.astype(np.float32)}, {"labels": near})


def regression() -> Case:
    """One value for each sample, close to its label."""
    random = np.random.default_rng(0)
    truth = random.standard_normal((SAMPLES, 1))
    values = truth + 0.1 * random.standard_normal(truth.shape)
    return Case({"value": values.astype(np.float32)}, {"labels": truth})


def pictures() -> Case:
    """Smooth pictures of 0 to 1, close to the true ones."""
    random = np.random.default_rng(0)
    truth = np.clip(gaussian_filter(random.random((SAMPLES, 3, 24, 24)), (0, 0, 3, 3)), 0, 1)
    made = truth + 0.01 * random.standard_normal(truth.shape)
    return Case({"picture": made.astype(np.float32)}, {"labels": truth})


def masks() -> Case:
    """Scores of three classes, mostly those of the mask; a row of it is not judged."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 3, (SAMPLES, 6, 6))
    scores = random.standard_normal((SAMPLES, 3, 6, 6))
    scores += 3 * (truth[:, np.newaxis] == np.arange(3).reshape(1, 3, 1, 1))
    truth[:, 0] = 255
    return Case({"scores": scores.astype(np.float32)}, {"masks": truth})


def boxes() -> Case:
    """An output as YOLOv8's, [samples, 4 + 3 classes, places], of a picture of 64 pixels: two
    objects in each sample, each seen by two places."""
    random = np.random.default_rng(0)
    rows = np.zeros((SAMPLES, 84, 7))
    rows[..., :4] = random.uniform(10, 50, (SAMPLES, 84, 4))
    rows[..., 4:] = 0.02 * random.random((SAMPLES, 84, 3))
    classes = random.integers(0, 3, (SAMPLES, 2))
    truth = np.zeros((SAMPLES, 2, 4))
    for sample in range(SAMPLES):
        for number, middle in enumerate(((16, 16), (48, 48))):
            size = random.uniform(12, 24, 2)
            truth[sample, number] = [*(middle - size / 2), *(middle + size / 2)]
            for place in (2 * number, 2 * number + 1):
                score = random.uniform(0.3, 0.9)
                rows[sample, place, :4] = np.add([*middle, *size], random.normal(0, 0.3, 4))
                rows[sample, place, 4 + classes[sample, number]] = score
    outputs = {"output0": np.moveaxis(rows, 1, 2).astype(np.float32)}
    return Case(outputs, {"boxes": truth, "classes": classes}, FACTS)


FACTS = ModelFacts({"images": (None, 3, 64, 64)}, {"output0": (None, 7, 84)})
ALPHABET = "abcdef"


def lines() -> Case:
    """Scores of blank, six letters and the space in eight frames, and what they spell."""
    random = np.random.default_rng(0)
    texts = ["ab cd", "fade", "bee", "a cab", "dead"] * 5
    frames = 0.5 * random.standard_normal((SAMPLES, 12, 8))
    for sample, text in enumerate(texts[:SAMPLES]):
        at = 0
        for letter in text:
            frames[sample, at, 1 + (ALPHABET + " ").index(letter)] += 4
            frames[sample, at + 1, 0] += 4
            at += 2
        frames[sample, at:, 0] += 4
    facts = ModelFacts({}, {"y": (None, 12, 8)}, {"character": "\n".join(ALPHABET)})
    return Case({"y": frames.astype(np.float32)}, {"text": np.array(texts[:SAMPLES])}, facts)


CASES: dict[Takes, Callable[[], Case]] = {
    "scores": classifier,
    "embeddings": embedding,
    "values": regression,
    "boxes": boxes,
    "text": lines,
    "mask": masks,
}
PICTURES = ("psnr", "ssim", "cosine")
metrics = pytest.mark.parametrize("name", NAMES)


def names_with(function: str) -> list[str]:
    """The metrics that have a function, whether what computes them is installed or not."""
    return [entry.usage for entry in BUILT_IN if getattr(entry, function)]


def prepared(name: str) -> tuple[TaskMetric, Case]:
    """A metric that knows the model of its case; skipped without the library that computes it."""
    entry = built_in(name)
    assert entry is not None
    if entry.package:
        pytest.importorskip(entry.package)
    metric = load_metric(name)
    case = pictures() if name in PICTURES else CASES[metric.takes]()
    return bound(metric, case.facts) if case.facts else metric, case


def noisy(outputs: Outputs, size: float, seed: int = 1) -> dict[str, Any]:
    """Outputs with noise of `size` standard deviations."""
    random = np.random.default_rng(seed)
    return {
        name: (a + size * a.std() * random.standard_normal(a.shape)).astype(a.dtype)
        for name, a in outputs.items()
    }


def better(metric: TaskMetric, one: float, other: float) -> bool:
    return one > other if metric.higher_is_better else one < other


@metrics
def test_strong_noise_is_worse_than_none(name: str) -> None:
    metric, case = prepared(name)
    clean = metric(case.reference, case.labels, case.reference)
    assert better(metric, clean, metric(noisy(case.reference, 3.0), case.labels, case.reference))


@metrics
def test_the_order_of_the_samples_does_not_matter(name: str) -> None:
    metric, case = prepared(name)
    order = np.random.default_rng(2).permutation(SAMPLES)
    parts = noisy(case.reference, 0.5), case.labels, case.reference
    turned = tuple({n: array[order] for n, array in part.items()} for part in parts)
    assert metric(*turned) == pytest.approx(metric(*parts))
    for values in (metric.loss, metric.per_sample):
        if values is not None:
            np.testing.assert_allclose(values(*turned), values(*parts)[order])


@pytest.mark.parametrize("name", names_with("per_sample"))
def test_the_score_is_the_mean_of_what_each_sample_has(name: str) -> None:
    metric, case = prepared(name)
    parts = noisy(case.reference, 0.5), case.labels, case.reference
    assert metric.per_sample is not None
    assert metric(*parts) == pytest.approx(metric.per_sample(*parts).mean())


@pytest.mark.parametrize("name", names_with("loss"))
def test_the_loss_grows_with_noise_and_moves_with_little_of_it(name: str) -> None:
    metric, case = prepared(name)

    def of(size: float) -> float:
        losses = [
            metric.loss(noisy(case.reference, size, seed), case.labels, case.reference)
            for seed in range(4)
            if metric.loss is not None
        ]
        assert all(one.shape == (SAMPLES,) and one.dtype == np.float64 for one in losses)
        return float(np.mean(losses))

    sizes = [of(size) for size in (0.0, 0.3, 1.0, 3.0)]
    assert sizes == sorted(sizes) and len(set(sizes)) == len(sizes)
    assert of(1e-3) != of(0.0)


@metrics
def test_labels_are_asked_for_where_they_are_needed(name: str) -> None:
    metric, case = prepared(name)
    if metric.needs_labels:
        with pytest.raises(MetricError):
            metric(case.reference, {}, case.reference)
    else:
        metric(case.reference, {}, case.reference)
