"""A model of the noise at the outputs, fitted as evaluations come in, and its link to the verdict.

The quantization errors of different layers are nearly uncorrelated, so their energies add up at the
outputs: noise(S) = base + Σ x_i over the layers i that S does not raise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from qdebug.decide.search.problem import ROUGH_STD, Measurement

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

UNKNOWN_STD = 2.5
"""Standard deviation of ln(x_i) where there is no estimate."""
SHARED = 0.5
"""The part of that variance that layers next to each other share: what becomes of an error on the
way to the outputs is much the same for both."""
_REACH = 1 / 8
"""The distance, as a part of the network, at which they share 1/e of it."""
MEASURED_STDS = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""Of ln(noise): how far noise may be from additive, at best and at worst."""
_KEPT = 300
"""Measurements; older ones are forgotten, so that a fit takes milliseconds."""
_STEPS = 12
_LONGEST_STEP = 2.0
_FIRST_STEP = 10.0
"""A noise that is next to nothing passed, and says little of how much may."""
_TINY = 1e-9
"""Relative to the noise of nothing raised: below it, noise is as good as none."""


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def _in_one_thread() -> AbstractContextManager[object]:
    """Within, matrices are not split among threads: these are small, and where other programs use
    the machine the threads wait for each other many times as long as they compute."""
    limited: AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limited


class NoiseModel:
    """Contributions x_i, from estimates and measurements.

    The estimate is the maximum a posteriori of ln x, with a normal prior around the (scaled)
    estimates, correlated between neighbours, and normal errors of ln noise, by Gauss-Newton
    (Nocedal & Wright, Numerical Optimization, 2006, §10.3); the covariance is that of the last
    step. Working with ln x keeps every x_i positive, and an error of the estimates a factor. How
    large the errors of ln noise are is estimated too, by the evidence (MacKay, Bayesian
    Interpolation, 1992), with a prior proportional to the inverse.
    """

    def __init__(
        self,
        estimates: Sequence[float],
        nothing: float,
        everything: float,
        std: float = ROUGH_STD,
    ) -> None:
        """`estimates` are in order of execution, `std` is the standard deviation of ln(x_i) around
        them; `nothing` and `everything` are the noise with no layer raised, and with all."""
        prior = np.asarray(estimates, np.float64)
        known = prior > 0
        prior = np.where(known, prior, np.median(prior[known]) if known.any() else 1.0)
        self._floor = _TINY * nothing
        self._base = min(everything, nothing) + self._floor
        total = max(nothing - everything, self._floor)
        self._prior = np.log(prior * (total / prior.sum()))
        self._covariance = _covariance(known, std)
        self._left_out: list[Mask] = []
        self._noise: list[float] = []
        self._log = self._prior.copy()
        self._slope = np.zeros((0, len(prior)))
        self._std = MEASURED_STDS[0]
        self.observe(np.zeros(len(prior), np.bool_), nothing)

    @property
    def contributions(self) -> Floats:
        """x_i, of shape (layers,)."""
        return np.asarray(np.exp(self._log))

    @property
    def base(self) -> float:
        """The noise with all layers raised."""
        return self._base

    def observe(self, raised: Mask, noise: float) -> None:
        """Fit again with the measured `noise` of `raised`, of shape (layers,)."""
        if raised.all():
            return
        self._left_out.append(~raised)
        self._noise.append(max(noise, self._floor))
        del self._left_out[:-_KEPT], self._noise[:-_KEPT]
        with _in_one_thread():
            self._fit()

    def predict(self, raised: Mask) -> Floats:
        """The noise of sets of shape (…, layers), of shape (…)."""
        return np.asarray(self._base + ~raised @ self.contributions)

    def deviation(self, raised: Mask) -> Floats:
        """The standard deviation of the logarithm of that noise, what is not additive included,
        for sets of shape (sets, layers)."""
        slope = ~raised * self.contributions / self.predict(raised)[:, None]
        with _in_one_thread():
            seen, inner = self._slope @ self._covariance, self._inner()
            known = np.sum(np.linalg.solve(np.linalg.cholesky(inner), seen @ slope.T) ** 2, axis=0)
            prior = np.sum((slope @ self._covariance) * slope, axis=1)
        variance = np.maximum(prior - known, 0.0)
        return np.asarray(np.sqrt(variance + self._std**2))

    def _fit(self) -> None:
        for _ in range(_STEPS):
            residual = self._linearized()
            pull = np.linalg.solve(self._inner(), residual) @ self._slope
            step = self._prior + pull @ self._covariance - self._log
            self._log = self._log + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            if np.max(np.abs(step)) < 1e-2:
                break
        self._std = self._likeliest_std()

    def _linearized(self) -> Floats:
        """Set the slopes at the present estimate; what the prior leaves unexplained there, of
        shape (measurements,)."""
        left_out, x = np.array(self._left_out, np.float64), self.contributions
        modelled = self._base + left_out @ x
        self._slope = left_out * x / modelled[:, None]
        measured = np.log(np.array(self._noise))
        return np.asarray(measured - np.log(modelled) + self._slope @ (self._log - self._prior))

    def _likeliest_std(self) -> float:
        residual = self._linearized()
        spread = self._slope @ self._covariance @ self._slope.T

        def evidence(std: float) -> float:
            lower = np.linalg.cholesky(spread + std**2 * np.eye(len(spread)))
            explained = np.linalg.solve(lower, residual)
            height = float(explained @ explained) / 2 + float(np.sum(np.log(np.diag(lower))))
            return -height - math.log(std)

        at = MEASURED_STDS.index(self._std)
        return max(MEASURED_STDS[max(0, at - 1) : at + 2], key=evidence)

    def _inner(self) -> Floats:
        """The covariance of the measured logarithms, of shape (measurements, measurements)."""
        wide = self._slope @ self._covariance
        return np.asarray(wide @ self._slope.T + self._std**2 * np.eye(len(wide)))


def _covariance(known: Mask, known_std: float) -> Floats:
    """Of the prior of ln x, of shape (layers, layers); layers without an estimate share nothing."""
    std = np.where(known, known_std, UNKNOWN_STD)
    place = np.arange(len(known)) / len(known)
    shared = SHARED * np.exp(-np.abs(place[:, None] - place) / _REACH) * np.outer(known, known)
    np.fill_diagonal(shared, 1.0)
    return np.asarray(shared * np.outer(std, std))


class Link:
    """From noise to verdict: the noise at which the target is just met."""

    def __init__(self) -> None:
        self._points: list[tuple[float, bool, float | None]] = []

    def observe(self, measurement: Measurement) -> None:
        """Learn from a measurement; one without noise says nothing."""
        noise = measurement.known_noise
        if noise is not None and not measurement.failure:
            self._points.append((noise, measurement.passed, measurement.slack))

    @property
    def passing(self) -> float:
        """The largest noise that passed; 0 where none did."""
        return max((noise for noise, passed, _ in self._points if passed), default=0.0)

    @property
    def failing(self) -> float:
        """The smallest noise that failed; +inf where none did."""
        return min((noise for noise, passed, _ in self._points if not passed), default=math.inf)

    def threshold(self) -> float:
        """The noise expected to be the most that passes.

        Between the largest that passed and the smallest that failed: where their slack is known,
        by interpolation, linear in noise or in its logarithm, whichever the slacks seen so far are
        closer to; else half-way in logarithm, but not more than `_FIRST_STEP` below the smallest
        that failed. Where the two overlap, half-way too.
        """
        low, high = self.passing, self.failing
        if math.isinf(high):
            return low
        low = max(low, _TINY * high)
        middle = math.sqrt(low * high)
        if low >= high:
            return middle
        under, over = self._slack_at(self.passing), self._slack_at(high)
        if under is None or over is None or under <= over:
            return max(middle, high / _FIRST_STEP)
        share = under / (under - over)
        if self._is_logarithmic():
            return float(low * (high / low) ** share)
        return low + (high - low) * share

    def _slack_at(self, noise: float) -> float | None:
        slacks = [s for n, _, s in self._points if n == noise and s is not None]
        return slacks[-1] if slacks and math.isfinite(slacks[-1]) else None

    def _is_logarithmic(self) -> bool:
        points = [(n, s) for n, _, s in self._points if s is not None and math.isfinite(s) and n]
        if len(points) < 3:
            return False
        noise, slack = np.array(points).T
        columns = [slack, noise, np.log(noise)]
        if any(np.ptp(c) == 0 for c in columns):
            return False
        _, linear, logarithmic = np.abs(np.corrcoef(columns)[0])
        return bool(logarithmic > linear)
