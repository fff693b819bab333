"""Profiles that are divided into clusters."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from qdebug.analyse.clusters import clusters_of
from qdebug.metrics.tasks.base import Float64

RANDOM = np.random.default_rng(5)
LAYERS = 30


def profiles(*begins: int | None, each: int = 20) -> Float64:
    """Samples of several kinds: noise of -30 dB that varies by 3 dB, 15 dB more from a layer on."""
    kinds = []
    for begin in begins:
        found = RANDOM.normal(-30, 3, (each, LAYERS))
        if begin is not None:
            found[:, begin:] += 15
        kinds.append(found)
    return np.concatenate(kinds)


def literal_silhouette(points: Float64, labels: Float64) -> float:
    values = []
    for k, point in enumerate(points):
        distances = np.sqrt(np.square(points - point).sum(axis=1))
        own = labels == labels[k]
        if own.sum() == 1:
            values.append(0.0)
            continue
        a = distances[own].sum() / (own.sum() - 1)
        b = min(distances[labels == other].mean() for other in set(labels) - {labels[k]})
        values.append((b - a) / max(a, b))
    return float(np.mean(values))


@pytest.mark.parametrize("begins", [(None, 0), (None, 5, 20), (2, 10, None, 18)])
def test_planted_kinds_are_found(begins: tuple[int | None, ...]) -> None:
    points = profiles(*begins)
    labels, silhouette = clusters_of(points)
    kinds = labels.reshape(len(begins), -1)
    assert (kinds == kinds[:, :1]).all() and len(np.unique(labels)) == len(begins)
    assert silhouette == pytest.approx(literal_silhouette(points, labels)) and silhouette > 0.5


def test_samples_of_one_kind_are_not_divided() -> None:
    points = profiles(None, None)
    labels, silhouette = clusters_of(points)
    assert silhouette == pytest.approx(literal_silhouette(points, labels)) and silhouette < 0.2
    count = len(np.unique(labels))
    same = fcluster(linkage(points, "average"), count, "maxclust")
    assert len(np.unique(np.stack([labels, same]), axis=1).T) == count
    assert clusters_of(np.zeros((20, LAYERS)))[1] < 0.5
