"""What every number format says of itself, and how values become its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from qdebug.types import Array, Precision

FloatArray = npt.NDArray[np.float32]
Values = npt.NDArray[np.floating]
Scalar = TypeVar("Scalar", bound=np.generic)

ONE = np.ones((), np.float32)
"""The scale of values that are stored without one."""
ZERO = np.zeros((), np.int64)
"""The zero point of a symmetric range."""

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # a denormal scale would overflow x / scale
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


class Kind(StrEnum):
    """How the numbers of a format lie: evenly, or with an exponent each."""

    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True)
class Format(ABC):
    """A number format.

    Codes are the format's own numbers; a value is (code − zero_point) · scale. All arithmetic is
    that of ONNX QuantizeLinear, DequantizeLinear and Cast in float32, rounding half to even.

    Attributes:
        kind: how its numbers lie.
        name: in files and results, such as "fp8_e4m3".
        label: in text for people, such as "FP8 E4M3".
        precision: what a layer computes in whose operands are of this format.
        bits: of one code.
        onnx_type: of onnx.TensorProto.
        dtype: of an array of codes.
        lowest, largest: the finite codes between which all others lie.
        smallest_normal: the smallest positive code with all its digits.
        smallest_subnormal: the smallest positive code.
        needs_scale: it is used with a scale, by Q/DQ pairs; else values are cast to it.
        opset: the first whose QuantizeLinear writes it, or, without a scale, whose Cast does.
        mac_cost: the time of one multiply-accumulate relative to INT8 on the same GPU, by compute
            capability (80 for 8.0); without those whose tensor cores do not take the format. At 0
            where none does, on an NPU.
    """

    kind: ClassVar[Kind]
    name: str
    label: str
    precision: Precision
    bits: int
    onnx_type: int
    dtype: np.dtype[np.generic]
    lowest: float
    largest: float
    smallest_normal: float
    smallest_subnormal: float
    needs_scale: bool
    opset: int
    mac_cost: Mapping[int, float] = field(hash=False)

    def scale_of(self, amax: npt.ArrayLike) -> FloatArray:
        """The scale that maps ±`amax` to ±`largest`, float32, of `amax`'s shape.

        An all-zero tensor (amax 0) is exact at any scale and gets 1, as in ONNX Runtime's
        quantizer. So does every tensor of a format without scales. `amax` is finite and not
        negative: `plan.quantize.scale_of` refuses others.
        """
        values = np.asarray(amax, np.float64)
        if not self.needs_scale:
            return np.ones(values.shape, np.float32)
        scale = np.maximum(values / self.largest, _SMALLEST_SCALE)
        scale = np.minimum(scale, self.largest_scale).astype(np.float32)
        return np.where(values == 0, ONE, scale)

    @cached_property
    def largest_scale(self) -> float:
        """The largest by which no code becomes infinite."""
        beyond = np.float32(_LARGEST_FLOAT32 / self.largest)
        return float(np.nextafter(beyond, np.float32(0)))

    @property
    @abstractmethod
    def magnitudes(self) -> npt.NDArray[np.float64]:
        """The finite codes from 0 on, ascending; of a format of at most 16 bits."""

    @abstractmethod
    def nearest(self, ratio: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """The code nearest to each number, as float32; `out` may be `ratio` itself. What is beyond
        the codes saturates where the format does. `ratio` must not hold NaN."""

    @abstractmethod
    def encode(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> Array:
        """The codes of `x`, of its shape and of `dtype`.

        Args:
            x: any floating type; computed in float32.
            scale: float32, [] or [channels].
            axis: that of the channels.
            zero_point: the code of 0, of the shape of `scale`; 0 for a float format.
        """

    def decode(
        self,
        codes: Array,
        scale: FloatArray = ONE,
        axis: int | None = None,
        zero_point: Array = ZERO,
    ) -> FloatArray:
        """The float32 values of codes, of their shape; the arguments as in `encode`."""
        values = codes.astype(np.float32)
        if np.any(zero_point):
            values -= along(np.asarray(zero_point, np.float32), axis, codes.ndim)
        if self.needs_scale:
            with np.errstate(over="ignore"):  # Inf, as ONNX Runtime makes of it
                values *= along(scale, axis, codes.ndim)
        return values

    def quantize(
        self, x: Values, scale: FloatArray = ONE, axis: int | None = None, zero_point: Array = ZERO
    ) -> FloatArray:
        """`x` after a round trip: what a layer reads in place of it, float32."""
        return self.decode(self.encode(x, scale, axis, zero_point), scale, axis, zero_point)

    @abstractmethod
    def step(self, x: npt.ArrayLike, scale: FloatArray = ONE) -> npt.NDArray[np.float64]:
        """The distance between the two neighbouring values of the format around each of `x`."""

    def mac_cost_on(self, capability: int) -> float:
        """The relative time of a multiply-accumulate on a GPU: that of the newest generation up to
        this one, or else of the first that takes the format."""
        usable = [c for c in self.mac_cost if c <= capability]
        return self.mac_cost[max(usable) if usable else min(self.mac_cost)]


def along(values: npt.NDArray[Scalar], axis: int | None, rank: int) -> npt.NDArray[Scalar]:
    """`values`, [channels], in a shape that broadcasts along an axis of an array of `rank` axes;
    as they are where there is no axis."""
    if axis is None:
        return values
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


def ratio_of(x: Values, scale: FloatArray, axis: int | None) -> FloatArray:
    """x / scale in float32, in a new array."""
    ratio = np.empty(np.shape(x), np.float32)  # the only copy: weights may be of gigabytes
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # beyond float32 is beyond every range; NaN stays
        np.divide(np.asarray(x, np.float32), along(scale, axis, ratio.ndim), out=ratio)
    return ratio
