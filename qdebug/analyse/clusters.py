"""Samples that lose most, grouped by the layer where their error starts.

Where nobody says which samples belong together, their errors do: a picture by night whose values
are clipped at the first convolution is noisy from there on, one by day is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.analyse.compared import Compared
from qdebug.analyse.sample_profiles import Float32
from qdebug.metrics.tasks.base import Float64
from qdebug.plan.pair import ModelPair
from qdebug.results.clusters import SampleCluster, SampleClusters

Rows = npt.NDArray[np.int64]
Inside = npt.NDArray[np.bool_]

_LEAST_SAMPLES = 16
"""Fewer samples fall into clusters by chance."""
_MOST_SAMPLES = 1000
"""Whose distances are looked at: all pairs of them take 8 MB."""
_MOST_CLUSTERS = 4
_CLEAR = 0.7
"""Silhouette from which on clusters are strong (Kaufman and Rousseeuw, Finding Groups in Data,
1990): whoever is noisier loses more, so that weak ones say nothing. Digits of one kind have 0.42,
24 of them with one scale per weight 0.51; half of them dark 0.58, and 0.83 to 0.92 where half are
clipped."""
_LEAST = 3
"""Samples of a cluster: one or two are outliers."""
_WORST_SHARE = 1 / 4
"""Of the samples, that count as the worst at most: where all of them do, none stands out."""
_MOST_WORST = 16
_CHANCE = 0.01
"""Of all rankings and clusters that are looked at together: each test has its part (Bonferroni)."""
_CLEARLY_DB = 3.0
"""By which a cluster is noisier after a layer than before it: twice the noise."""
_QUIETEST, _NOISIEST = 1e-12, 1e6
"""Noise that is told apart: 120 dB below the signal to 60 dB above it, where it is not finite."""


def clustered(compared: Compared) -> Compared:
    """With the samples that lose most grouped by the layer where their error starts: by the metric,
    or by noise where that tells nothing. As it is where they are not clearly divided, and where
    groups were asked for."""
    count, result = compared.samples.count, compared.result
    asked = compared.sinks.clipping is not None
    if asked or count < _LEAST_SAMPLES or result.is_as_good_as_fp32:
        return compared
    profile, noise = compared.sinks.profiles.noise(count), compared.sinks.noise.noise
    rankings = [[loss.sample for loss in result.metric.worst]] if result.metric else []
    rankings += [] if noise is None else [np.argsort(-noise, kind="stable").tolist()]
    if not profile or not rankings:
        return compared
    most = min(_MOST_WORST, int(count * _WORST_SHARE))
    rankings = [ranking[:most] for ranking in rankings]
    spread = np.linspace(0, count - 1, min(count, _MOST_SAMPLES)).astype(np.int64)
    divided = Divided.of(profile, np.union1d(spread, np.concatenate(rankings).astype(np.int64)))
    if divided.silhouette < _CLEAR:
        return compared
    for number, worst in enumerate(rankings):
        is_noise = noise is not None and number == len(rankings) - 1
        found = divided.failing(compared.pair, worst, len(rankings))
        if found:
            clusters = SampleClusters(
                len(divided.samples), len(worst), is_noise, divided.silhouette, found
            )
            return compared.found(clusters=clusters)
    return compared


@dataclass(frozen=True)
class Divided:
    """Samples, divided by their errors.

    Attributes:
        samples: their numbers.
        decibels: the noise of the layers' outputs, by tensor, float [samples].
        labels: the cluster of each.
        silhouette: how well they are divided.
    """

    samples: Rows
    decibels: Mapping[str, Float64]
    labels: Rows
    silhouette: float

    @classmethod
    def of(cls, profile: Mapping[str, Float32], samples: Rows) -> Divided:
        """Some of the samples whose noise is known by tensor."""
        decibels = {
            tensor: 10 * np.log10(np.clip(noise[samples].astype(np.float64), _QUIETEST, _NOISIEST))
            for tensor, noise in profile.items()
        }
        return cls(samples, decibels, *clusters_of(np.stack([*decibels.values()], axis=1)))

    def failing(
        self, pair: ModelPair, worst: Sequence[int], rankings: int
    ) -> tuple[SampleCluster, ...]:
        """The clusters that hold more of the worst samples than chance does and in which a layer
        stands out, the one with most of them first; `worst` is one of so many rankings."""
        from scipy.stats import hypergeom

        is_worst, found = np.isin(self.samples, worst), []
        labels = np.unique(self.labels)
        limit = _CHANCE / (rankings * len(labels))
        for label in labels:
            inside = self.labels == label
            size, both = int(inside.sum()), int((inside & is_worst).sum())
            if min(size, both) < _LEAST:
                continue
            chance = float(hypergeom.sf(both - 1, len(inside), int(is_worst.sum()), size))
            first = self._first_unlike(pair, inside) if chance < limit else None
            if first is not None:
                numbers = tuple(self.samples[inside].tolist())
                found.append(SampleCluster(numbers, both, chance, *first))
        return tuple(sorted(found, key=lambda cluster: (-cluster.of_worst, cluster.p_value)))

    def _first_unlike(self, pair: ModelPair, inside: Inside) -> tuple[str, float, float] | None:
        """The layer at which the noise of some samples grows most beyond that of the others, and
        the SQNR of both after it; None where it grows clearly nowhere."""
        medians = {
            tensor: (float(np.median(noise[inside])), float(np.median(noise[~inside])))
            for tensor, noise in self.decibels.items()
        }
        excess = {tensor: own - others for tensor, (own, others) in medians.items()}
        grown = {
            layer: excess[layer.output] - max(0.0, *(excess.get(t, 0.0) for t in reads))
            for layer in pair.layers
            if layer.output in excess and (reads := pair.reads(layer.name))
        }
        first = max(grown, key=lambda layer: grown[layer], default=None)
        if first is None or grown[first] < _CLEARLY_DB:
            return None
        own, others = medians[first.output]
        return first.name, -own, -others


def clusters_of(profiles: Float64) -> tuple[Rows, float]:
    """The clusters of profiles, float [samples, layers], numbered from 1, and their silhouette: as
    many as are divided best, by average linkage."""
    centred = profiles - profiles.mean(axis=0)
    products = centred @ centred.T
    squares = np.diag(products)
    distances = np.sqrt(np.maximum(0.0, squares[:, None] + squares - 2 * products))
    np.fill_diagonal(distances, 0.0)
    merges = _average_linkage(distances)
    ways = [_cut(merges, count) for count in range(2, _MOST_CLUSTERS + 1)]
    scores = [_silhouette(distances, labels) for labels in ways]
    best = int(np.argmax(scores))
    return ways[best], scores[best]


def _average_linkage(distances: Float64) -> list[tuple[int, int]]:
    """Which clusters are merged, the nearest first: each pair is a sample of either one. By chains
    of nearest neighbours, as scipy.cluster.hierarchy.linkage does; here, since importing that
    took 0.5 of the 2.2 s of CPU time in which 80 digits are compared.

    Source: Müllner, Modern hierarchical, agglomerative clustering algorithms (2011), section 3.2.
    """
    apart, sizes = distances.copy(), np.ones(len(distances))
    np.fill_diagonal(apart, np.inf)
    chain: list[int] = []
    merges: list[tuple[float, int, int]] = []
    while len(merges) < len(distances) - 1:
        if not chain:
            chain.append(int(np.argmax(sizes > 0)))
        last = chain[-1]
        nearest = int(np.argmin(apart[last]))
        if len(chain) < 2 or apart[last, nearest] < apart[last, chain[-2]]:
            chain.append(nearest)
            continue
        kept = chain[-2]
        merges.append((float(apart[last, kept]), last, kept))
        merged = (sizes[last] * apart[last] + sizes[kept] * apart[kept]) / (
            sizes[last] + sizes[kept]
        )
        apart[kept] = apart[:, kept] = merged
        apart[last] = apart[:, last] = np.inf
        sizes[kept], sizes[last] = sizes[kept] + sizes[last], 0
        chain = chain[:-2]
    return [(one, other) for _, one, other in sorted(merges, key=lambda merge: merge[0])]


def _cut(merges: Sequence[tuple[int, int]], count: int) -> Rows:
    """The cluster of each sample, numbered from 1, where merging stops at so many clusters."""
    samples = len(merges) + 1
    labels = np.arange(samples)
    for one, other in merges[: samples - count]:
        labels[labels == labels[one]] = labels[other]
    return np.unique(labels, return_inverse=True)[1].astype(np.int64) + 1


def _silhouette(distances: Float64, labels: Rows) -> float:
    """The mean over the samples of (b - a) / max(a, b), with a the mean distance to the others of
    the sample's cluster, b that to the nearest other cluster; 0 of a sample that is alone.

    Source: Rousseeuw, Journal of Computational and Applied Mathematics 20 (1987).
    """
    numbers, own = np.unique(labels, return_inverse=True)
    if len(numbers) < 2:
        return -1.0
    members = (labels[:, None] == numbers).astype(np.float64)
    sizes, sums = members.sum(axis=0), distances @ members
    rows = np.arange(len(labels))
    others = sizes[own] - 1
    inside = sums[rows, own] / np.maximum(1, others)
    means = sums / sizes
    means[rows, own] = np.inf
    outside = means.min(axis=1)
    widest = np.maximum(inside, outside)
    apart = np.divide(outside - inside, widest, out=np.zeros_like(widest), where=widest > 0)
    return float(np.where(others > 0, apart, 0.0).mean())
