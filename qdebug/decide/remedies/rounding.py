"""rounding: weights are rounded to the codes that give the least error together.

Optimal brain quantization in its closed form (Frantar et al., "GPTQ", 2022, arXiv:2210.17323, and
"Optimal brain compression", 2022, arXiv:2208.11580). With H the second moments of the layer's
quantized input and H = RᵀR, R upper triangular, codes that are off by e make the squared error

    |R e|² = Σᵢ (Rᵢᵢ eᵢ + Σⱼ﹥ᵢ Rᵢⱼ eⱼ)²

so that, from the last weight to the first, each is rounded with what those after it left over. The
inputs of most energy come last: their errors are made up for by all others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdebug.decide.remedies.bias_correction import with_bias
from qdebug.decide.remedies.least_squares import held_back_error, refitted
from qdebug.decide.remedies.moments import Sums, moments_of
from qdebug.decide.remedies.product import Product
from qdebug.decide.remedies.remedy import Remedy
from qdebug.decide.remedies.walk import Site, one_by_one, product_layers
from qdebug.formats.base import FloatArray, Format, along
from qdebug.formats.registry import INT8
from qdebug.plan.plan import TensorRange

_FEWEST = 8
_DAMPING = 0.01
_RIDGE = 0.01
_BLOCK = 128
_GAIN = 0.99
"""What share of its error, at samples held back, a layer may keep at most for other codes."""


def rounded_together(
    matrix: FloatArray,
    scale: FloatArray,
    hessian: Sums,
    damping: float = _DAMPING,
    form: Format = INT8,
) -> FloatArray | None:
    """A matrix on the grid of its scale, with little error for inputs of these second moments.

    Args:
        matrix: float32 [groups, unknowns, channels].
        scale: of its shape.
        hessian: [groups, unknowns, unknowns].
        damping: added to the diagonal, as a share of its mean.
        form: of the codes.

    Returns:
        Of the matrix's shape, codes times scale; None where the moments are not positive.
    """
    unknowns = matrix.shape[1]
    diagonal = np.diagonal(hessian, axis1=1, axis2=2)
    level = diagonal.mean(axis=1)
    level = np.where(level > 0, level, 1.0)
    order = np.argsort(diagonal, axis=1, kind="stable")
    sorted_h = np.stack([h[at].take(at, 1) for h, at in zip(hessian, order, strict=True)])
    sorted_h[:, range(unknowns), range(unknowns)] += damping * level[:, None]
    try:
        upper = _roots(sorted_h)
    except np.linalg.LinAlgError:
        return None
    upper = upper / np.diagonal(upper, axis1=1, axis2=2)[:, :, None]
    values = np.take_along_axis(matrix, order[:, :, None], 1)
    steps = np.take_along_axis(scale, order[:, :, None], 1)
    found = _nearest_plane(upper.astype(np.float32), values, steps, form)
    result = np.empty_like(found)
    np.put_along_axis(result, order[:, :, None], found, 1)
    return result


def _roots(hessian: Sums) -> Sums:
    """R of each group."""
    from scipy import linalg

    if len(hessian) > 1:
        return np.ascontiguousarray(np.linalg.cholesky(hessian).transpose(0, 2, 1))
    # Of one that is as LAPACK has it, column by column, scipy makes no copies.
    lower = linalg.cholesky(hessian[0].T, lower=True, overwrite_a=True, check_finite=False)
    return lower.T[None]


def _nearest_plane(
    upper: FloatArray, values: FloatArray, steps: FloatArray, form: Format
) -> FloatArray:
    """The rounded values; the diagonal of `upper` is 1."""
    unknowns = values.shape[1]
    error = np.zeros_like(values)
    found = np.empty_like(values)
    for end in range(unknowns, 0, -_BLOCK):
        start = max(0, end - _BLOCK)
        wanted = values[:, start:end] + upper[:, start:end, end:] @ error[:, end:]
        for i in range(end - 1, start - 1, -1):
            later = upper[:, i, None, i + 1 : end] @ error[:, i + 1 : end]
            codes = form.nearest((wanted[:, i - start] + later[:, 0]) / steps[:, i])
            found[:, i] = codes * steps[:, i]
            error[:, i] = values[:, i] - found[:, i]
    return found


def round_together(site: Site, product: Product) -> bool:
    """Give a layer the codes of least error; False where they give no less at samples held back.

    A weight that was refitted made up for the errors of layers that may have other codes by now:
    it is refitted before it is rounded, where that is better.
    """
    how = site.quantized.weight
    moments = moments_of(site, product)
    if how is None or not moments.usable:
        return False
    refit = site.correction.weight is not None
    values = site.weight if how.values is None else how.values
    steps = product.matrix(np.broadcast_to(along(how.scale, how.axis, values.ndim), values.shape))
    # A weight that is codes already, as a quantizer chose them, is rounded from FP32 again.
    codes = np.array_equal(how.format.quantize(values, how.scale, how.axis), values)
    wanted = [product.matrix(site.weight if codes else values)]
    change = refitted(moments.fit, _RIDGE) if refit else None
    if change is not None:
        wanted.append(product.matrix(site.weight) + change.astype(np.float32))
    before, error_before = site.network, site.error()
    least, best = _GAIN * held_back_error(site, moments), None
    amax = how.scale.astype(np.float64) * how.format.largest
    entry = TensorRange(tuple(amax.tolist()) if amax.ndim else float(amax), "rounding")
    site.set_range(site.layer.weight or "", entry)
    for matrix in wanted:
        found = rounded_together(matrix, steps, moments.fit.hessian, form=how.format)
        if found is None:
            continue
        site.correct(replace(site.correction, weight=product.weight(found)))
        error = held_back_error(site, moments)
        if error < least:
            least, best = error, site.network
    site.network = best or before
    return with_bias(site, before, error_before) if best else False


REMEDY = Remedy(
    name="rounding",
    fewest_samples=_FEWEST,
    layers=product_layers,
    propose=one_by_one(round_together, "rounding"),
)
