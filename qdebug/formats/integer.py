"""Integer formats: codes that lie evenly, with a scale and, where it is not symmetric, a zero
point."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from qdebug.formats.base import ONE, ZERO, FloatArray, Format, Kind, Values, along, ratio_of
from qdebug.types import Array


@dataclass(frozen=True)
class IntegerFormat(Format):
    """q = clamp(round_half_to_even(x / scale) + zero_point, lowest, largest) and
    x' = (q − zero_point) · scale, as ONNX has it."""

    kind: ClassVar[Kind] = Kind.INTEGER

    @cached_property
    def magnitudes(self) -> npt.NDArray[np.float64]:
        """As `Format.magnitudes`."""
        return np.arange(self.largest + 1, dtype=np.float64)

    def nearest(self, ratio: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """As `Format.nearest`: it saturates."""
        found: FloatArray = np.rint(ratio, out=out)
        return np.clip(found, self.lowest, self.largest, out=found)

    def encode(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> Array:
        """As `Format.encode`. NaN gets the lowest code, as in ONNX Runtime's kernels for x86."""
        rounded = self._rounded(x, scale, axis, zero_point)
        if np.any(zero_point):
            rounded += along(np.asarray(zero_point, np.float32), axis, rounded.ndim)
        return rounded.astype(self.dtype)

    def quantize(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> FloatArray:
        """As `Format.quantize`, without codes in between."""
        values = self._rounded(x, scale, axis, zero_point)
        values += np.float32(0)  # an integer knows no -0.0
        with np.errstate(over="ignore"):
            values *= along(scale, axis, values.ndim)
        return values

    def step(self, x: npt.ArrayLike, scale: FloatArray = ONE) -> npt.NDArray[np.float64]:
        """As `Format.step`: the scale everywhere."""
        return np.broadcast_to(scale.astype(np.float64), np.shape(x)).copy()

    def _rounded(
        self, x: Values, scale: FloatArray, axis: int | None, zero_point: Array
    ) -> FloatArray:
        """Codes as float32, less their zero point."""
        found = ratio_of(x, scale, axis)
        np.rint(found, out=found)
        lowest, largest = np.asarray(self.lowest, np.float32), np.asarray(self.largest, np.float32)
        if np.any(zero_point):
            zero = along(np.asarray(zero_point, np.float32), axis, found.ndim)
            lowest, largest = np.asarray(lowest - zero), np.asarray(largest - zero)
        np.clip(found, lowest, largest, out=found)
        if np.isnan(found.min(initial=0)):  # sought once: `fmax` alone is slower than `clip`
            np.fmax(found, lowest, out=found)
        return found
