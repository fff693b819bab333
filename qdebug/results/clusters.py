"""Samples that fail in the same way; a part of the JSON of `compare`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SampleCluster:
    """Samples whose errors grow alike from layer to layer, and unlike those of the others.

    Attributes:
        samples: their numbers, counted from 0.
        of_worst: how many of the samples that lose most are among them.
        p_value: how often chance would put so many there (hypergeometric).
        layer: the first one after which they are clearly noisier than the others: where the
            difference grows most.
        sqnr_db: of that layer's output, the median of these samples.
        others_sqnr_db: the same of all others.
    """

    samples: tuple[int, ...]
    of_worst: int
    p_value: float
    layer: str
    sqnr_db: float
    others_sqnr_db: float


@dataclass(frozen=True)
class SampleClusters:
    """What the samples that lose most have in common, found without groups.

    Attributes:
        samples: how many were divided.
        worst: how many of them count as those that lose most.
        by_noise: those are the noisiest at the outputs, without a metric and where it tells
            nothing; else those that the metric loses most on.
        silhouette: how well they are divided, from -1 to 1 (Rousseeuw 1987).
        each: those that hold more of the worst samples than chance does, the one with most first.
    """

    samples: int
    worst: int
    by_noise: bool
    silhouette: float
    each: tuple[SampleCluster, ...]
