"""weight-ranges: each output channel's weights get the range of least error of the layer's output.

Rounding the weights of channel c by a scale s changes them by d, which adds dᵀ H d to the squared
error of its output, H being the second moments of the layer's quantized input, its mean included:
what rounding adds to the mean is no less an error here. Ranges from the largest magnitude down to a
part of it are tried.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdebug.calibrators.histogram import Float64
from qdebug.calibrators.weights import weight_amax
from qdebug.decide.remedies.moments import Sums, moments_of, quadratic
from qdebug.decide.remedies.product import Product
from qdebug.decide.remedies.remedy import Remedy
from qdebug.decide.remedies.walk import Site, one_by_one, product_layers
from qdebug.formats.base import FloatArray, Format
from qdebug.formats.registry import INT8
from qdebug.plan.plan import Granularity, TensorRange
from qdebug.plan.quantize import scale_of

_FEWEST = 4
_CUTS = (
    *(0.0, 0.004, 0.008, 0.012, 0.016, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6),
)
"""What is cut off the range, as a share: of few weights little more than a step, 0.8 %, pays."""


def best_amax(
    product: Product, values: FloatArray, axis: int | None, hessian: Sums, form: Format = INT8
) -> tuple[Float64, Float64]:
    """The amax of least error along `axis` ([] where that is None), and that error."""
    largest = weight_amax(values, axis)
    matrix = product.matrix(values)
    best = np.full(largest.shape, np.inf)
    found = largest.copy()
    for cut in _CUTS:
        amax = (1 - cut) * largest
        off = product.matrix(form.quantize(values, scale_of(amax, form=form), axis)) - matrix
        error = _by_channel(product, axis, _error(off, hessian))
        found = np.where(error < best, amax, found)
        best = np.minimum(best, error)
    return found, best


def _error(off: FloatArray, hessian: Sums) -> Sums:
    """The squared error of each channel of a product, [g, n], whose weights are off by these."""
    return quadratic(hessian, off.astype(hessian.dtype))


def _by_channel(product: Product, axis: int | None, error: Sums) -> Float64:
    """Errors by group and channel, [g, n], as the scales have them."""
    if axis is None:
        return np.asarray(error.sum(), np.float64)
    by_channel = error.sum(axis=0) if product.op_type == "ConvTranspose" else error.reshape(-1)
    return by_channel.astype(np.float64)


def set_ranges(site: Site, product: Product) -> bool:
    """Give a layer's weight the ranges of least error; False where the largest magnitudes are."""
    moments = moments_of(site, product)
    total = moments.fit + moments.held
    if not total.count or not np.isfinite(total.xx.sum()):
        return False
    per_channel = site.network.bound.plan.weights is Granularity.PER_CHANNEL
    axis = site.axis if per_channel else None
    hessian = total.xx / total.count
    amax, least = best_amax(product, site.weight, axis, hessian, site.format)
    now = product.matrix(site.rounded_weight() - site.weight)
    if not least.sum() < _error(now, hessian).sum():
        return False
    entry = tuple(amax.tolist()) if amax.ndim else float(amax)
    site.set_range(site.layer.weight or "", TensorRange(entry, "weight-ranges"))
    if site.correction.weight is not None:  # codes of another range, that a quantizer had chosen
        site.correct(replace(site.correction, weight=None))
    return True


REMEDY = Remedy(
    name="weight-ranges",
    fewest_samples=_FEWEST,
    layers=product_layers,
    propose=one_by_one(set_ranges, "weight ranges"),
)
