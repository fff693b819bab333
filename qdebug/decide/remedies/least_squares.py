"""least-squares: weights are refitted to the inputs that they get once these are quantized.

Layer by layer, behind the layers as quantized and refitted before it. With x the quantized input
and r what the FP32 output has beyond W x, both less their means, the refit is the ridge regression

    W* = W + E[r xᵀ] (H + λ I)⁻¹,   H = E[x xᵀ]

which equals W + W (G − H)(H + λ I)⁻¹ with G = E[x_fp xᵀ]. Of some λ, shares of the mean of H's
diagonal, the one is taken with the least error at samples held back, weights rounded; with none
better there than the weight as it is, the layer is left alone. What the refit lacks in the mean is
then taken off the bias. It is kept where it leaves less error behind the layer's activation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qdebug.decide.remedies.bias_correction import with_bias
from qdebug.decide.remedies.moments import Moments, SiteMoments, Sums, moments_of, positions_to_fit
from qdebug.decide.remedies.product import Product, product_of
from qdebug.decide.remedies.quantized import Quantized
from qdebug.decide.remedies.remedy import Proposal, Remedy, Study, apart_from_heads
from qdebug.decide.remedies.walk import Site, Walk
from qdebug.formats.base import FloatArray

_FEWEST = 8
_RIDGES = (0.001, 0.01, 0.1, 1.0)
_MANY = 512
"""Unknowns beyond which only the middle ridges are tried, and twice as many positions wanted."""
_GAIN = 0.99
"""What share of its error, at samples held back, a layer may keep at most for a refit."""


def _layers(network: Quantized) -> tuple[str, ...]:
    """Layers in INT8 whose own weight is a factor of products of matrices, in execution order."""
    weighted = network.weighted()
    return tuple(x.name for x in weighted if product_of(network.graph, x) is not None)


def _propose(study: Study, start: Quantized, layers: Sequence[str]) -> Iterator[Proposal]:
    walk = Walk(study, start, frozenset(layers), "least squares")
    changed = []
    for site in walk:
        product = product_of(start.graph, site.layer)
        if product is not None and _refit(site, product):
            changed.append(site.layer.name)
    if changed:
        yield Proposal(walk.network, tuple(changed))


def refitted(moments: Moments, ridge: float) -> Sums | None:
    """By how much the weight changes, [g, k, n]; `ridge` is λ over the mean of H's diagonal. None
    where H has no inverse that can be computed."""
    from scipy import linalg  # here, as it takes a fifth of a second at every start

    hessian, cross = moments.hessian, moments.cross
    unknowns = hessian.shape[1]
    level = np.trace(hessian, axis1=1, axis2=2) / unknowns
    level = np.where(level > 0, level, 1.0).astype(hessian.dtype)
    hessian[:, range(unknowns), range(unknowns)] += ridge * level[:, None]
    try:
        if len(hessian) > 1:
            found = np.linalg.solve(hessian, cross)
        else:
            factor = linalg.cho_factor(hessian[0], overwrite_a=True, check_finite=False)
            found = linalg.cho_solve(factor, cross[0], check_finite=False)[None]
    except np.linalg.LinAlgError:
        return None
    return found if np.all(np.isfinite(found)) else None


def _refit(site: Site, product: Product) -> bool:
    """Give a layer the weight that is best at samples held back, and a bias to go with it; False
    where that is the one it has."""
    many = product.unknowns > _MANY
    if many and positions_to_fit(site, product) < 2 * product.unknowns:
        return False
    moments = moments_of(site, product)
    if not moments.usable:
        return False
    before, error_before = site.network, site.error()
    least, best = _GAIN * _held_back_error(site, moments), 0.0
    for ridge in _RIDGES[1:3] if many else _RIDGES:
        change = refitted(moments.fit, ridge)
        if change is None:
            continue
        _set(site, product, change)
        error = _held_back_error(site, moments)
        if error < least:
            least, best = error, ridge
    change = refitted(moments.fit + moments.held, best) if best else None
    if change is None:
        site.network = before
        return False
    _set(site, product, change)
    return with_bias(site, before, error_before)


def _set(site: Site, product: Product, change: Sums) -> None:
    weight: FloatArray = site.weight + product.weight(change.astype(np.float32))
    site.correct(replace(site.correction, weight=weight))


def _held_back_error(site: Site, moments: SiteMoments) -> float:
    """The layer's squared error at the samples held back, with the shift of the others."""
    off = moments.product.matrix(site.rounded_weight() - site.weight)
    return float(moments.held.error(off, moments.fit.shift(off)).sum())


REMEDY = Remedy(
    name="least-squares",
    fewest_samples=_FEWEST,
    layers=_layers,
    propose=_propose,
    groups=apart_from_heads,
)
