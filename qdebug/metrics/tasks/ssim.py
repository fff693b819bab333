"""The mean structural similarity of pictures (Wang, Bovik, Sheikh and Simoncelli 2004)."""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Float64
from qdebug.metrics.tasks.psnr import peak_of
from qdebug.types import Array

_SIGMA, _TRUNCATE = 1.5, 3.5
"""The paper's window: a Gaussian of 1.5 pixels, cut off at 11 × 11."""
_K1, _K2 = 0.01, 0.03


def per_sample(found: Array, truth: Array) -> Float64:
    """The mean over the pixels and channels of each sample whose window lies inside the picture;
    height and width are the last two axes, or those before the channels of [N, H, W, 1 or 3]."""
    peak = peak_of(truth)
    pairs = zip(_planes(found), _planes(truth), strict=True)
    return np.array([_similarity(one, other, peak) for one, other in pairs], np.float64)


def loss(found: Array, truth: Array, _: Array) -> Float64:
    """1 − similarity."""
    return 1.0 - per_sample(found, truth)


def _planes(pictures: Array) -> Float64:
    """[samples, planes, height, width]."""
    wide = pictures.astype(np.float64)
    if wide.ndim == 4 and wide.shape[3] in (1, 3) and wide.shape[1] not in (1, 3):
        wide = np.moveaxis(wide, 3, 1)
    return wide.reshape(len(wide), -1, *wide.shape[-2:])


def _similarity(one: Float64, other: Float64, peak: float) -> float:
    def smooth(values: Float64) -> Float64:
        sigma = (0, _SIGMA, _SIGMA)
        from scipy.ndimage import gaussian_filter

        return np.asarray(gaussian_filter(values, sigma, truncate=_TRUNCATE), np.float64)

    mean, mean_other = smooth(one), smooth(other)
    variance = smooth(one * one) - mean**2
    variance_other = smooth(other * other) - mean_other**2
    shared = smooth(one * other) - mean * mean_other
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    values = (2 * mean * mean_other + c1) * (2 * shared + c2)
    values /= (mean**2 + mean_other**2 + c1) * (variance + variance_other + c2)
    pad = int(_TRUNCATE * _SIGMA + 0.5)
    height, width = values.shape[1:]
    inside = values[:, pad : height - pad, pad : width - pad]
    return float((inside if inside.size else values).mean())
