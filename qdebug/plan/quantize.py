"""The quantize contract, in one place.

What qdebug plans is symmetric INT8, zero point 0, as NvInfer.h documents for IQuantizeLayer:

    q = clamp(round_half_to_even(x / scale), -128, 127),   x' = q · scale,   scale = amax / 127

What others have quantized may be unsigned and asymmetric (`Grid`), as ONNX QuantizeLinear computes
it in float32:

    q = clamp(round_half_to_even(x / scale) + zero_point, lowest, highest)
    x' = (q − zero_point) · scale
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from qdebug.errors import PlanError
from qdebug.model.graph import Graph, Node

QMAX = 127
QMIN = -128
MASK = 1e30
"""Magnitudes beyond are finite stand-ins for infinity, as in attention masks of -3.4e38: beside
them a range holds nothing else."""

FloatArray = npt.NDArray[np.float32]
Int8Array = npt.NDArray[np.int8]
Scalar = TypeVar("Scalar", bound=np.generic)

_SMALLEST_SCALE = float(np.finfo(np.float32).tiny)  # a denormal scale would overflow x / scale
_LARGEST_AMAX = float(np.finfo(np.float32).max)
_LARGEST_SCALE = float(np.nextafter(np.float32(_LARGEST_AMAX / QMAX), np.float32(0)))
_LARGEST_HALF_SCALE = float(np.finfo(np.float16).max) / -QMIN


def scale_of(amax: npt.ArrayLike, what: str = "tensor") -> FloatArray:
    """The scale that maps ±`amax` to ±127, float32, of `amax`'s shape.

    An all-zero tensor (amax 0) is exact at any scale and gets 1, as in ONNX Runtime's quantizer.

    Raises:
        PlanError: an amax is negative, not finite, or beyond float32.
    """
    values = np.asarray(amax, np.float64)
    valid = (values >= 0) & (values <= _LARGEST_AMAX)  # False for NaN
    if not np.all(valid):
        first = int(np.argmin(valid))
        where = f" (channel {first})" if values.ndim else ""
        raise PlanError(
            f"{what}: amax must be a finite number >= 0, got {values.flat[first]:g}{where}",
            "Calibrate again on samples without NaN or Inf.",
            code="QD-PLAN-AMAX",
        )
    scale = np.clip(values / QMAX, _SMALLEST_SCALE, _LARGEST_SCALE)
    return np.where(values == 0, 1.0, scale).astype(np.float32)


def half_scale(scale: FloatArray) -> FloatArray | None:
    """`scale` rounded up to FP16 (up, so that it never clips more), as float32.

    Q/DQ pairs around FP16 arithmetic carry FP16 scales. Below about 1e-5 the rounding would change
    the quantization itself (by more than 1 %), and above 511 (65504 / 128) the largest codes would
    dequantize to Inf, which an INT8 kernel never produces.

    Returns:
        None where FP16 cannot hold the scale or the values it dequantizes to; such layers keep
        FP32 scales.
    """
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
        half = np.where(
            half.astype(np.float32) < scale, np.nextafter(half, np.float16(np.inf)), half
        )
    rounded: FloatArray = half.astype(np.float32)
    if np.any(rounded > _LARGEST_HALF_SCALE) or np.any(rounded > scale * np.float32(1.01)):
        return None
    return rounded


def quantize(x: npt.NDArray[np.floating], scale: FloatArray, axis: int | None = None) -> Int8Array:
    """INT8 codes of `x`, of its shape; `x` must not hold NaN. `scale` is [] or [channels]; with
    channels, `axis` is theirs."""
    ratio = np.empty(x.shape, np.float32)  # one array throughout: weights may be of gigabytes
    with np.errstate(over="ignore"):  # beyond float32 is beyond the range too
        np.divide(np.asarray(x, np.float32), along(scale, axis, x.ndim), out=ratio)
    np.clip(np.rint(ratio, out=ratio), QMIN, QMAX, out=ratio)
    return ratio.astype(np.int8)


def dequantize(codes: Int8Array, scale: FloatArray, axis: int | None = None) -> FloatArray:
    """The float32 values of INT8 codes, of their shape; `scale` and `axis` as in `quantize`."""
    with np.errstate(over="ignore"):  # Inf, as ONNX Runtime makes of it
        values: FloatArray = codes.astype(np.float32) * along(scale, axis, codes.ndim)
    return values


def fake_quantize(
    x: npt.NDArray[np.floating], scale: FloatArray, axis: int | None = None
) -> FloatArray:
    """`x` after a Q/DQ pair: what an INT8 layer reads in place of `x`."""
    return dequantize(quantize(x, scale, axis), scale, axis)


def along(values: npt.NDArray[Scalar], axis: int | None, rank: int) -> npt.NDArray[Scalar]:
    """`values`, [channels], in a shape that broadcasts along an axis of an array of `rank` axes;
    as they are where there is no axis."""
    if axis is None:
        return values
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape)


QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
"""Operators whose first output is the codes of their first input."""

CODES: Mapping[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
}
"""The codes of each integer type that QuantizeLinear writes."""


@dataclass(frozen=True)
class Grid:
    """The values that a Q/DQ pair can give: (code − zero_point) · scale, symmetric or not.

    Attributes:
        scale: float32, [] or [channels].
        zero_point: int64, of the same shape: the code of 0.
        lowest, highest: the codes.
        axis: of the channels; None where there is one scale.
        bounds: beyond which a value counts as clipped; None for the values whose code would be
            beyond the codes.
    """

    scale: FloatArray
    zero_point: npt.NDArray[np.int64]
    lowest: int
    highest: int
    axis: int | None = None
    bounds: tuple[float, float] | None = None

    @property
    def symmetric(self) -> bool:
        """Signed, with zero point 0: what TensorRT takes."""
        return self.lowest < 0 and not np.any(self.zero_point)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value, over all channels. A symmetric range is that of −127
        to 127."""
        lowest = -self.highest if self.symmetric else self.lowest
        low = (lowest - self.zero_point) * self.scale.astype(np.float64)
        high = (self.highest - self.zero_point) * self.scale.astype(np.float64)
        return max(float(low.min()), -_LARGEST_AMAX), min(float(high.max()), _LARGEST_AMAX)

    @property
    def shown(self) -> tuple[float, float]:
        """The range for people: `bounds` where it was chosen as such."""
        return self.bounds or self.range

    @property
    def limits(self) -> tuple[float, float]:
        """`bounds`, or else where the codes end: half a step beyond the range."""
        if self.bounds is not None:
            return self.bounds
        low, high = self.range
        if self.symmetric:
            return low, high
        half = float(self.scale.max()) / 2
        return max(low - half, -_LARGEST_AMAX), min(high + half, _LARGEST_AMAX)

    def codes(self, x: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
        """The codes of `x`, of its shape; `x` must not hold NaN."""
        with np.errstate(over="ignore"):
            ratio = np.asarray(x, np.float32) / along(self.scale, self.axis, x.ndim)
        zero = along(self.zero_point, self.axis, x.ndim)
        found: npt.NDArray[np.int64] = np.clip(
            np.rint(ratio).astype(np.float64) + zero, self.lowest, self.highest
        ).astype(np.int64)
        return found

    def clips_at(self, low: float | None, high: float | None) -> bool:
        """Whether quantizing takes every value below `low` as `low`, and every value above `high`
        as `high`: clipping there first would change no code."""
        with np.errstate(over="ignore"):
            if low is not None:
                code = np.rint(np.float32(low) / self.scale) + self.zero_point
                if np.any(code > self.lowest):
                    return False
            if high is not None:
                code = np.rint(np.float32(high) / self.scale) + self.zero_point
                if np.any(code < self.highest):
                    return False
        return True


def symmetric_grid(amax: float) -> Grid:
    """The grid of a planned activation: INT8, ±`amax` to ±127."""
    return Grid(scale_of(amax), np.array(0, np.int64), QMIN, QMAX, None, (-amax, amax))


def dynamic_grid(values: npt.NDArray[np.floating]) -> Grid:
    """The grid that DynamicQuantizeLinear takes for `values`: uint8, from their range with 0."""
    low = np.float32(min(0.0, float(values.min())))
    high = np.float32(max(0.0, float(values.max())))
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = int(np.clip(np.rint(-low / scale), 0, 255))
    return Grid(np.asarray(scale), np.array(zero, np.int64), 0, 255)


def quantizer_of(graph: Graph, dequantizer: Node) -> Node | None:
    """What makes the codes that a DequantizeLinear reads; None for those of a constant."""
    maker = graph.producers.get(dequantizer.inputs[0])
    return maker if maker is not None and maker.op_type in QUANTIZERS else None


def grid_of(graph: Graph, node: Node) -> Grid | None:
    """The grid of a QuantizeLinear or DequantizeLinear; None where its scale or zero point is
    computed, where it goes by blocks, for codes that are floating point, and where scale and zero
    point do not fit together: no runtime takes that."""
    scale = graph.constant(node.inputs[1])
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = graph.constant(zero_name) if zero_name else None
    if scale is None or (zero_name and zero is None) or scale.ndim > 1 or not scale.size:
        return None
    if zero is not None and zero.size != scale.size:
        return None
    kind = _code_type(graph, node, zero_name)
    if kind not in CODES:
        return None
    axis = None
    if scale.size > 1:
        attributes = graph.attributes(node)
        axis = int(attributes.get("axis", 1))
    wide = np.zeros(scale.size) if zero is None else np.asarray(zero).astype(np.int64)
    flat = scale.astype(np.float32).reshape(-1 if axis is not None else ())
    zeros = wide.astype(np.int64).reshape(flat.shape)
    return Grid(flat, zeros, *CODES[kind], axis)


def _code_type(graph: Graph, node: Node, zero: str) -> int:
    if zero:
        return graph.initializers[zero].data_type
    if node.op_type == "DequantizeLinear":
        return graph.types.get(node.inputs[0], TensorProto.UINT8)
    return int(graph.attributes(node).get("output_dtype", 0)) or TensorProto.UINT8
