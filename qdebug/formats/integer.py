"""Integer formats: codes that lie evenly, with a scale and, where it is not symmetric, a zero
point."""

from __future__ import annotations

from dataclasses import dataclass
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

    def nearest(self, ratio: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """As `Format.nearest`: it saturates."""
        found: FloatArray = np.rint(ratio, out=out)
        np.maximum(found, np.float32(self.lowest), out=found)
        np.minimum(found, np.float32(self.largest), out=found)
        return found

    def encode(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> Array:
        """As `Format.encode`. NaN gets the lowest code, as in ONNX Runtime's kernels for x86."""
        return self._rounded(x, scale, axis, zero_point, shifted=True).astype(self.dtype)

    def decode(
        self,
        codes: Array,
        scale: FloatArray = ONE,
        axis: int | None = None,
        zero_point: Array = ZERO,
    ) -> FloatArray:
        """As `Format.decode`."""
        values = codes.astype(np.float32)
        if np.any(zero_point):
            values -= along(np.asarray(zero_point, np.float32), axis, codes.ndim)
        with np.errstate(over="ignore"):  # Inf, as ONNX Runtime makes of it
            scaled: FloatArray = values * along(scale, axis, codes.ndim)
        return scaled

    def quantize(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> FloatArray:
        """As `Format.quantize`, without codes in between."""
        values = self._rounded(x, scale, axis, zero_point, shifted=False)
        values += np.float32(0)  # an integer knows no -0.0
        with np.errstate(over="ignore"):
            values *= along(scale, axis, values.ndim)
        return values

    def step(self, x: npt.ArrayLike, scale: FloatArray = ONE) -> npt.NDArray[np.float64]:
        """As `Format.step`: the scale everywhere."""
        return np.broadcast_to(scale.astype(np.float64), np.shape(x)).copy()

    def _rounded(
        self, x: Values, scale: FloatArray, axis: int | None, zero_point: Array, *, shifted: bool
    ) -> FloatArray:
        """Codes as float32, with the zero point added where they are `shifted`."""
        found = ratio_of(x, scale, axis)
        np.rint(found, out=found)
        zero = along(np.asarray(zero_point, np.float32), axis, found.ndim)
        np.fmax(found, np.float32(self.lowest) - zero, out=found)  # NaN becomes the lowest
        np.minimum(found, np.float32(self.largest) - zero, out=found)
        if shifted and np.any(zero):
            found += zero
        return found
