"""What each layer adds to the noise at the outputs, learned from what a search evaluates.

The quantization errors of different layers are nearly uncorrelated, so their energies add up at the
outputs: noise(S) = base + Σ x_i over the layers i that S does not raise. What is predicted says
which set to ask for next; no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ESTIMATED_STD, UNKNOWN_STD = 1.4, 2.5
"""Standard deviations of ln x_i around its estimate and without one. On the planted problems
(tests/search_quality) sets are cheapest so."""
_DEVIATIONS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Of ln noise from that of the sum, which of them is learned."""
_STEPS, _LONGEST_STEP = 8, 2.0
_TINY = 1e-9
"""Of the noise with nothing raised: below that, noise is as good as none."""


class NoiseModel:
    """Contributions x_i, from estimates and measurements.

    They are the maximum a posteriori of ln x, with a normal prior around the (scaled) estimates and
    normal errors of ln noise, by Gauss-Newton (Nocedal & Wright, Numerical Optimization, 2006,
    §10.3). With ln x every x_i stays positive, and an error of the estimates is a factor. How large
    the errors of ln noise are is learned, too, by the evidence (MacKay, Bayesian Interpolation,
    1992), with a prior of 1/σ.

    Attributes:
        contributions: x_i, of shape (layers,).
        base: the noise with all layers raised.
    """

    def __init__(self, estimates: Sequence[float], nothing: float, everything: float) -> None:
        """`nothing` and `everything` are the noise with no layer raised, and with all."""
        prior = np.minimum(np.asarray(estimates, np.float64), 1e6)
        known = prior > 0
        prior = np.where(known, prior, np.median(prior[known]) if known.any() else 1.0)
        self._floor = _TINY * nothing
        self.base = min(everything, nothing) + self._floor
        total = max(nothing - everything, self._floor)
        self._prior = np.log(prior * (total / prior.sum()))
        self._variance = np.where(known, ESTIMATED_STD, UNKNOWN_STD) ** 2
        self._log, self._deviation = self._prior, _DEVIATIONS[0]

    @property
    def contributions(self) -> Floats:
        """x_i, of shape (layers,)."""
        return np.asarray(np.exp(self._log))

    def fit(self, left_out: Mask, noise: Sequence[float]) -> None:
        """Learn from the `noise` of sets without the layers `left_out`, of shape (sets, layers)."""
        measured = np.log(np.maximum(noise, self._floor))
        for _ in range(_STEPS):
            modelled = self.base + left_out @ self.contributions
            self._slope = left_out * self.contributions / modelled[:, None]
            wide = self._slope * self._variance
            spread, own = wide @ self._slope.T, np.eye(len(measured))
            self._inner = spread + self._deviation**2 * own
            residual = measured - np.log(modelled) + self._slope @ (self._log - self._prior)
            step = self._prior + np.linalg.solve(self._inner, residual) @ wide - self._log
            self._log = self._log + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            if np.max(np.abs(step)) < 1e-2:
                break

        def evidence(deviation: float) -> float:
            lower = np.linalg.cholesky(spread + deviation**2 * own)
            explained = np.linalg.solve(lower, residual)
            return (
                -float(explained @ explained) / 2
                - float(np.log(np.diag(lower)).sum())
                - math.log(deviation)
            )

        self._deviation = max(_DEVIATIONS, key=evidence)
        self._inner = spread + self._deviation**2 * own

    def chances(self, left_out: Mask, most: float) -> Floats:
        """How likely sets without the layers `left_out`, of shape (sets, layers), are to leave a
        noise of at most `most`."""
        predicted = self.base + left_out @ self.contributions
        slope = left_out * self.contributions / predicted[:, None]
        shared = (slope * self._variance) @ self._slope.T
        known = np.sum(shared * np.linalg.solve(self._inner, shared.T).T, axis=1)
        variance = np.maximum(np.sum(slope**2 * self._variance, axis=1) - known, 0.0)
        above = np.log(predicted / most) / np.sqrt(2 * (variance + self._deviation**2))
        return np.array([0.5 * math.erfc(x) for x in above.tolist()])
