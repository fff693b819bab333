"""Metrics of values as they are: errors, correlation, and the likeness of pictures.

They get the first output and a truth of the same shape, [samples, …].
"""

from __future__ import annotations

import numpy as np

from qdebug.errors import MetricError
from qdebug.metrics.tasks.base import Float64, Outputs, Reading, labels_of
from qdebug.types import Array
from qdebug.wording import option

_MOST_DB = 100.0
"""Of equal pictures: the mean over samples must stay finite."""
_SIGMA, _TRUNCATE = 1.5, 3.5
"""The window of SSIM's paper: a Gaussian of 1.5 pixels, cut off at 11 × 11."""
_K1, _K2 = 0.01, 0.03


class Values(Reading):
    """The first output as it is, and labels of its shape."""

    def labelled(self, labels: Outputs, found: Array) -> Float64:
        """See Reading."""
        truth = labels_of(labels)
        if truth.size != found.size:
            raise MetricError(
                f"{option('metric', self.name)} compares the first output {list(found.shape)} with "
                f"labels value by value, and they are {list(truth.shape)}",
                "Give labels of the output's shape.",
                code="QD-METRIC-LABELS",
            )
        return np.asarray(truth, np.float64).reshape(found.shape)


def mae(found: Array, truth: Array, _: Array) -> Float64:
    """The mean absolute error of each sample."""
    errors = np.abs(found.astype(np.float64) - truth)
    return np.asarray(errors.reshape(len(errors), -1).mean(axis=1), np.float64)


def square_error(found: Array, truth: Array, _: Array) -> Float64:
    """The mean square of each sample's errors."""
    squares = np.square(found.astype(np.float64) - truth)
    return np.asarray(squares.reshape(len(squares), -1).mean(axis=1), np.float64)


def rmse(found: Array, truth: Array, _: Array) -> float:
    """The root mean square error over all values of all samples."""
    return float(np.sqrt(np.mean(np.square(found.astype(np.float64) - truth))))


def spearman(found: Array, truth: Array, _: Array) -> float:
    """The rank correlation over all values by scipy; NaN, and so refused, where all are equal."""
    from scipy.stats import spearmanr  # here, as scipy takes its time at every start

    return float(spearmanr(np.ravel(found), np.ravel(truth)).statistic)


def cosine(found: Array, truth: Array, _: Array) -> Float64:
    """Of each sample; 0 where one of the two is 0 or not finite, 1 where both are 0."""
    one, other = (a.reshape(len(a), -1).astype(np.float64) for a in (found, truth))
    dots = np.einsum("ij,ij->i", one, other)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        values = np.where(norms > 0, dots / norms, (one == other).all(axis=1))
    return np.where(np.isfinite(values), values, 0.0)


def cosine_loss(found: Array, truth: Array, reference: Array) -> Float64:
    """1 − cosine."""
    return 1.0 - cosine(found, truth, reference)


def psnr(found: Array, truth: Array, _: Array) -> Float64:
    """10·log₁₀(peak² / mean square error) of each sample; see _peak."""
    peak, errors = _peak(truth) ** 2, square_error(found, truth, truth)
    least = peak * 10 ** (-_MOST_DB / 10)
    return np.asarray(10 * np.log10(peak / np.maximum(errors, least)), np.float64)


def ssim(found: Array, truth: Array, _: Array) -> Float64:
    """The structural similarity (Wang, Bovik, Sheikh and Simoncelli 2004) of each sample: the mean
    over the pixels and channels whose window lies inside the picture; height and width are the last
    two axes, or those before the channels of [N, H, W, 1 or 3]."""
    from scipy.ndimage import gaussian_filter

    def smooth(values: Float64) -> Float64:
        sigma = (0, _SIGMA, _SIGMA)
        return np.asarray(gaussian_filter(values, sigma, truncate=_TRUNCATE), np.float64)

    peak, pad, similarities = _peak(truth), int(_TRUNCATE * _SIGMA + 0.5), []
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    for one, other in zip(_planes(found), _planes(truth), strict=True):
        mean, mean_other = smooth(one), smooth(other)
        variance = smooth(one * one) - mean**2
        variance_other = smooth(other * other) - mean_other**2
        shared = smooth(one * other) - mean * mean_other
        values = (2 * mean * mean_other + c1) * (2 * shared + c2)
        values /= (mean**2 + mean_other**2 + c1) * (variance + variance_other + c2)
        height, width = values.shape[1:]
        inside = values[:, pad : height - pad, pad : width - pad]
        similarities.append((inside if inside.size else values).mean())
    return np.array(similarities, np.float64)


def ssim_loss(found: Array, truth: Array, reference: Array) -> Float64:
    """1 − similarity."""
    return 1.0 - ssim(found, truth, reference)


def _planes(pictures: Array) -> Float64:
    """[samples, planes, height, width]."""
    wide = pictures.astype(np.float64)
    if wide.ndim == 4 and wide.shape[3] in (1, 3) and wide.shape[1] not in (1, 3):
        wide = np.moveaxis(wide, 3, 1)
    return wide.reshape(len(wide), -1, *wide.shape[-2:])


def _peak(truth: Array) -> float:
    """The range of pictures: 255 where a value is above 2, else 1, or 2 where values are negative
    (-1 to 1)."""
    high, low = float(np.max(truth, initial=0)), float(np.min(truth, initial=0))
    return 255.0 if high > 2 else 2.0 if low < 0 else 1.0
