"""What every built-in end-to-end metric must do, on data that suit it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Outputs, TaskMetric
from qdebug.metrics.tasks.load import load_metric
from qdebug.metrics.tasks.registry import NAMES

SAMPLES = 24


@dataclass(frozen=True)
class Case:
    """The reference's outputs and the labels, [samples, …] by name."""

    reference: Outputs
    labels: Outputs


def classifier() -> Case:
    """Scores of five classes, right for most samples."""
    random = np.random.default_rng(0)
    truth = random.integers(0, 5, SAMPLES)
    scores = random.standard_normal((SAMPLES, 5)).astype(np.float32)
    scores[np.arange(SAMPLES), truth] += 2
    return Case({"scores": scores}, {"labels": truth})


CASES: dict[str, Callable[[], Case]] = {"top1": classifier, "agreement": classifier}
metrics = pytest.mark.parametrize("name", NAMES)


def noisy(outputs: Outputs, size: float, seed: int = 1) -> dict[str, Any]:
    """Outputs with noise of `size` standard deviations."""
    random = np.random.default_rng(seed)
    return {
        name: (a + size * a.std() * random.standard_normal(a.shape)).astype(a.dtype)
        for name, a in outputs.items()
    }


def better(metric: TaskMetric, one: float, other: float) -> bool:
    return one > other if metric.higher_is_better else one < other


def test_every_metric_has_a_case() -> None:
    assert set(CASES) == set(NAMES)


@metrics
def test_strong_noise_is_worse_than_none(name: str) -> None:
    metric, case = load_metric(name), CASES[name]()
    clean = metric(case.reference, case.labels, case.reference)
    assert better(metric, clean, metric(noisy(case.reference, 3.0), case.labels, case.reference))


@metrics
def test_the_order_of_the_samples_does_not_matter(name: str) -> None:
    metric, case = load_metric(name), CASES[name]()
    order = np.random.default_rng(2).permutation(SAMPLES)
    parts = noisy(case.reference, 0.5), case.labels, case.reference
    turned = tuple({n: array[order] for n, array in part.items()} for part in parts)
    assert metric(*turned) == pytest.approx(metric(*parts))
    for values in (metric.loss, metric.per_sample):
        if values is not None:
            np.testing.assert_allclose(values(*turned), values(*parts)[order])


@metrics
def test_the_score_is_the_mean_of_what_each_sample_has(name: str) -> None:
    metric, case = load_metric(name), CASES[name]()
    parts = noisy(case.reference, 0.5), case.labels, case.reference
    if metric.per_sample is None:
        pytest.skip("it is no mean over samples")
    assert metric(*parts) == pytest.approx(metric.per_sample(*parts).mean())


@metrics
def test_the_loss_grows_with_noise_and_moves_with_little_of_it(name: str) -> None:
    metric, case = load_metric(name), CASES[name]()
    if metric.loss is None:
        pytest.skip("it has none")

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
    metric, case = load_metric(name), CASES[name]()
    if metric.needs_labels:
        with pytest.raises(MetricError):
            metric(case.reference, {}, case.reference)
    else:
        metric(case.reference, {}, case.reference)
