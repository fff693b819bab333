"""One scale for parts of unlike scale: boxes of up to 640 beside scores of at most 1, say.

A Q/DQ pair with a single scale rounds all parts of a tensor to the same step. The step that suits
the largest part may be coarser than all that a small one holds, which is then gone. The same is so
for two inputs of a Concat or an Add whose pairs have been given one scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from qdebug.metrics.sums import error_energy, signal_energy
from qdebug.network.outputparts import OutputParts
from qdebug.plan.quantize import Grid
from qdebug.results.compare import Cause
from qdebug.types import Array

MIXED_SCALES = "mixed-scales"
_UNLIKE = 8.0
"""With a scale of its own, a part whose range is narrower by this factor would keep 3 bits more."""
_LEAST_NOISE = 0.001
"""A part that keeps 30 dB is not lost."""
_BESIDE_OTHERS = 10.0
"""How many times as much noise it has as the part that the scale suits."""


@dataclass(frozen=True)
class MixedScale:
    """A part that the scale of a pair does not suit.

    Attributes:
        branch: the part; `others_amax` is the largest magnitude of the parts beside it.
        amax: its largest magnitude.
        noise: Σerr²/Σref² of the part behind the pair.
        step: of the pair.
        zero_channels: of all `channels` of the tensor, those that hold something and of which
            nothing is left.
        joins: what joins the parts, for the advice: "Concat" or "Add".
        planned: the pair is of a plan of qdebug's own.
    """

    branch: str
    amax: float
    others_amax: float
    noise: float
    step: float
    zero_channels: int = 0
    channels: int = 0
    joins: str = "Concat"
    planned: bool = False

    def cause(self, share: float, tensor: str, step: str) -> Cause:
        """The cause of an error that it makes `share` of.

        Args:
            tensor: what the pair quantizes.
            step: what its steps are called: "INT8 step".
        """
        lost = ""
        if self.zero_channels:
            verb = "is" if self.zero_channels == 1 else "are"
            lost = f"; {self.zero_channels} of {self.channels} channels {verb} all zero behind it"
        suits = (
            f"one scale serves values of up to {self.others_amax:.3g} and those of "
            f"'{self.branch}', which reach {self.amax:.3g}: one {step} is {self.step:.2g}{lost}"
        )
        if self.planned:
            remedy = (
                "`qdebug repair` can equalize channels, so that one scale suits them. "
                "Keep this layer in FP32 only if that is not enough."
            )
        else:
            remedy = (
                f"Quantize before the {self.joins}, each branch with a scale of its own, and leave "
                "what follows in floating point: leave this layer out when quantizing."
            )
        return Cause(MIXED_SCALES, share, f"'{tensor}': {suits}", remedy, brief=suits)


@dataclass
class PartSums:
    """The parts of what a pair quantizes, over the batches that were added."""

    parts: OutputParts
    _signal: list[float] = field(default_factory=list)
    _error: list[float] = field(default_factory=list)
    _amax: list[float] = field(default_factory=list)
    _step: float = 0.0
    _held: Array | None = None
    _left: Array | None = None

    def add(self, values: Array, grid: Grid) -> None:
        """Add what the pair reads, finite values; those of another shape are left out."""
        axis = self.parts.axis
        if values.ndim <= axis or values.shape[axis] != self.parts.size or grid.axis is not None:
            return
        rounded = grid.quantize(values)
        count = len(self.parts.parts)
        self._step = max(self._step, grid.step)
        pieces = list(zip(self.parts.of(values), self.parts.of(rounded), strict=True))
        self._signal = _plus(self._signal, [signal_energy(x) for x, _ in pieces], count)
        self._error = _plus(self._error, [error_energy(x, y) for x, y in pieces], count)
        amax = [float(np.abs(x).max(initial=0.0)) for x, _ in pieces]
        self._amax = [max(pair) for pair in zip(self._amax or [0.0] * count, amax, strict=True)]
        others = tuple(k for k in range(values.ndim) if k != axis)
        held, left = (np.any(x != 0, axis=others) for x in (values, rounded))
        self._held = held if self._held is None else self._held | held
        self._left = left if self._left is None else self._left | left

    def found(self) -> MixedScale | None:
        """The part that suffers most; None where the scale suits all of them."""
        known = [k for k, signal in enumerate(self._signal) if signal > 0]
        if len(known) < 2 or self._held is None or self._left is None:
            return None
        noise = {k: self._error[k] / self._signal[k] for k in known}
        largest = max(known, key=lambda k: self._amax[k])
        worst = max(known, key=lambda k: noise[k])
        if not is_mixed(self._amax[worst], self._amax[largest], noise[worst], noise[largest]):
            return None
        return MixedScale(
            branch=self.parts.parts[worst].branch,
            amax=self._amax[worst],
            others_amax=self._amax[largest],
            noise=noise[worst],
            step=self._step,
            zero_channels=int(np.count_nonzero(self._held & ~self._left)),
            channels=self.parts.size,
        )


def is_mixed(amax: float, largest: float, noise: float, least_noise: float) -> bool:
    """Whether one scale serves two tensors of unlike scale: the largest magnitudes of both, and the
    noise Σerr²/Σref² that the scale makes of them."""
    unlike = amax * _UNLIKE <= largest
    return unlike and noise >= _LEAST_NOISE and noise >= _BESIDE_OTHERS * least_noise


def _plus(one: list[float], other: list[float], count: int) -> list[float]:
    return [a + b for a, b in zip(one or [0.0] * count, other, strict=True)]
