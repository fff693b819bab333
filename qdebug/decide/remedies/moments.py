"""Second moments of what a layer multiplies by its weight: what fits and rounding need of the
samples.

With x the rows of a layer's product (see product.py) as quantized now, and r what its exact output
has beyond its own weight times x, all less their means,

    H = Σ x xᵀ,   C = Σ x rᵀ

and a weight that is off by D makes the squared error Σ|r − D x|² = Σ|r|² − 2 ⟨D, C⟩ + ⟨D, H D⟩.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qdebug.decide.remedies.product import Positions, Product
from qdebug.decide.remedies.walk import Site
from qdebug.formats.base import FloatArray

Sums = npt.NDArray[np.floating]

MOST_ROWS = 1 << 13
ROWS_PER_UNKNOWN = 6
_HELD_BACK = 4  # one in so many samples
_CHUNK_BYTES = 64 << 20
_TOGETHER = 512
"""Rows: of as many a sum in float32 is still exact enough, and adding it up costs little."""
_BLOCK = 512
_LARGE = 512
"""Unknowns beyond which sums are float32: products of such matrices take most of the time."""


@dataclass
class Moments:
    """Sums over `count` positions, by group: of x [g, k], r [g, n], x xᵀ [g, k, k],
    x rᵀ [g, k, n] and r² [g, n]; float64, or float32 where there are many unknowns."""

    count: int
    x: Sums
    r: Sums
    xx: Sums
    xr: Sums
    rr: Sums

    @classmethod
    def none(cls, groups: int, unknowns: int, channels: int) -> Moments:
        """Of no position."""
        kind = np.float32 if unknowns > _LARGE else np.float64
        shapes = ((unknowns,), (channels,), (unknowns, unknowns), (unknowns, channels), (channels,))
        return cls(0, *(np.zeros((groups, *shape), kind) for shape in shapes))

    def add(self, x: FloatArray, r: FloatArray) -> None:
        """Rows [g, positions, k] and what is missing there, [g, positions, n]."""
        across = x.transpose(0, 2, 1)
        self.count += x.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):  # values of 1e30: sums are not finite
            self.x += x.sum(axis=1, dtype=np.float64)
            self.r += r.sum(axis=1, dtype=np.float64)
            self.xx += across @ x
            self.xr += across @ r
            self.rr += np.square(r).sum(axis=1, dtype=np.float64)

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.count + other.count,
            self.x + other.x,
            self.r + other.r,
            self.xx + other.xx,
            self.xr + other.xr,
            self.rr + other.rr,
        )

    @property
    def hessian(self) -> Sums:
        """H / count, [g, k, k]."""
        mean = self.x / self.count
        found: Sums = self.xx / self.count - mean[:, :, None] * mean[:, None, :]
        return found

    @property
    def cross(self) -> Sums:
        """C / count, [g, k, n]."""
        mean_x, mean_r = self.x / self.count, self.r / self.count
        found: Sums = self.xr / self.count - mean_x[:, :, None] * mean_r[:, None, :]
        return found

    def error(self, off: Sums, shift: Sums) -> Sums:
        """Σ|r − D x − shift|² of each channel, [g, n], where the weight is off by D [g, k, n]."""
        off = off.astype(self.xx.dtype, copy=False)
        missing = self.rr - 2 * (off * self.xr).sum(axis=1) + quadratic(self.xx, off)
        left = self.r - (off * self.x[:, :, None]).sum(axis=1)
        found: Sums = missing - 2 * shift * left + self.count * shift**2
        return np.maximum(found, 0.0)

    def shift(self, off: Sums) -> Sums:
        """The mean of r − D x, [g, n]."""
        found: Sums = (self.r - (off * self.x[:, :, None]).sum(axis=1)) / self.count
        return found


def quadratic(hessian: Sums, off: Sums) -> Sums:
    """dᵀ H d of each column d of `off` [g, k, n], for symmetric H [g, k, k]: [g, n]. Of the blocks
    beside the diagonal, those above it are enough."""
    total: Sums = np.zeros((off.shape[0], off.shape[2]), hessian.dtype)
    for start in range(0, off.shape[1], _BLOCK):
        end = start + _BLOCK
        own = off[:, start:end]
        product = hessian[:, start:end, start:end] @ own
        if end < off.shape[1]:
            product += 2 * (hessian[:, start:end, end:] @ off[:, end:])
        total += (own * product).sum(axis=1)
    return total


@dataclass(frozen=True)
class SiteMoments:
    """Those of a layer: of the positions to fit to, and of those held back. They are of different
    samples where there is more than one."""

    product: Product
    fit: Moments
    held: Moments

    @property
    def usable(self) -> bool:
        """There are positions of both kinds, and all is finite."""
        counted = self.fit.count > 0 and self.held.count > 0
        return counted and bool(np.isfinite((self.fit.xx.sum(), self.fit.xr.sum())).all())


def moments_of(site: Site, product: Product) -> SiteMoments:
    """The moments of a layer with its input as quantized now, at up to MOST_ROWS positions, or
    ROWS_PER_UNKNOWN for each unknown where that is more."""
    shape = product.matrix_shape
    fit, held = _Adding(Moments.none(*shape)), _Adding(Moments.none(*shape))
    matrix = product.matrix(site.weight)
    about: FloatArray | None = None  # nearly the mean of r, with which sums would lose digits
    total = sum(_positions(product, t) for t in site.targets)
    share = min(1.0, max(MOST_ROWS, ROWS_PER_UNKNOWN * product.unknowns) / max(1, total))
    rng = np.random.default_rng(0)
    for number, (x, target) in enumerate(zip(site.rounded(), site.targets, strict=True)):
        for at, kept in _parts(product, target, share, number, len(site.targets), rng):
            rows = np.ascontiguousarray(product.rows(x, at))
            missing = product.columns(target, at) - rows @ matrix
            about = missing.mean(axis=1, keepdims=True) if about is None else about
            (fit if kept else held).add(rows, missing - about)
    return SiteMoments(product, fit.all(), held.all())


@dataclass
class _Adding:
    """Moments to which rows are added, few of them together: where there are many unknowns, a few
    take as long as many."""

    moments: Moments
    _waiting: list[tuple[FloatArray, FloatArray]] = field(default_factory=list)

    def add(self, x: FloatArray, r: FloatArray) -> None:
        """See Moments.add."""
        self._waiting.append((x, r))
        if sum(rows.shape[1] for rows, _ in self._waiting) >= _TOGETHER:
            self.all()

    def all(self) -> Moments:
        """With all rows."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            self.moments.add(*waiting[0])
        elif waiting:
            parts = zip(*waiting, strict=True)
            self.moments.add(*(np.concatenate(part, axis=1) for part in parts))
        return self.moments


def positions_to_fit(site: Site, product: Product) -> int:
    """About how many positions there are to fit to."""
    total = sum(_positions(product, target) for target in site.targets)
    wanted = max(MOST_ROWS, ROWS_PER_UNKNOWN * product.unknowns)
    return min(total, wanted) * (_HELD_BACK - 1) // _HELD_BACK


def _positions(product: Product, target: FloatArray) -> int:
    groups, _, channels = product.matrix_shape
    return target.size // (groups * channels)


def _parts(
    product: Product,
    target: FloatArray,
    share: float,
    number: int,
    batches: int,
    rng: np.random.Generator,
) -> Iterator[tuple[Positions, bool]]:
    """Positions of one execution in parts that fit the memory, and whether they are to fit to."""
    count = _positions(product, target)
    wanted = max(1, round(share * count))
    at = np.arange(count)
    if wanted < count:
        at = np.sort(rng.choice(count, wanted, replace=False))
    if batches >= _HELD_BACK:
        cut = len(at) if number % _HELD_BACK else 0
    else:
        cut = int(np.searchsorted(at, count - count // _HELD_BACK))
    row_bytes = 4 * product.groups * (product.unknowns + 1)
    step = max(1, _CHUNK_BYTES // row_bytes)
    for part, kept in ((at[:cut], True), (at[cut:], False)):
        for i in range(0, len(part), step):
            yield part[i : i + step], kept
