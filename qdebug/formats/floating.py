"""Floating-point formats: a sign, an exponent and a fraction; with or without a scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from qdebug.formats.base import ONE, ZERO, FloatArray, Format, Kind, Values, ratio_of
from qdebug.types import Array


@dataclass(frozen=True)
class FloatFormat(Format):
    """A value is rounded to the nearest of the format's numbers, subnormal ones included.

    Attributes:
        fraction_bits: stored digits of the fraction: two neighbours differ by 2^−fraction_bits of
            the power of two below them.
        saturates: what is beyond the largest becomes the largest, infinities too; else infinite.
    """

    kind: ClassVar[Kind] = Kind.FLOAT
    fraction_bits: int
    saturates: bool

    @cached_property
    def magnitudes(self) -> npt.NDArray[np.float64]:
        """As `Format.magnitudes`."""
        raw = np.arange(2**self.bits).astype(np.uint8 if self.bits <= 8 else np.uint16)
        values = raw.view(self.dtype).astype(np.float64)
        return np.unique(np.abs(values[np.isfinite(values)]))

    def nearest(self, ratio: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """As `Format.nearest`: a cast there and back."""
        found = self._cast(ratio).astype(np.float32)
        if out is None:
            return found
        out[...] = found
        return out

    def encode(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> Array:
        """As `Format.encode`."""
        return self._cast(ratio_of(x, scale, axis) if self.needs_scale else np.asarray(x))

    def step(self, x: npt.ArrayLike, scale: FloatArray = ONE) -> npt.NDArray[np.float64]:
        """As `Format.step`: it doubles with every power of two of x / scale, down to the normal
        numbers; below them it is the smallest subnormal one."""
        scale64 = scale.astype(np.float64)
        ratio = np.abs(np.asarray(x, np.float64)) / scale64
        exponent = np.frexp(np.clip(ratio, self.smallest_normal, self.largest))[1] - 1
        found: npt.NDArray[np.float64] = np.ldexp(scale64, exponent - self.fraction_bits)
        return found

    def _cast(self, values: Values) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = np.asarray(values, np.float32)
            if self.saturates:
                narrow = np.clip(narrow, np.float32(self.lowest), np.float32(self.largest))
            return narrow.astype(self.dtype)
