"""The quantize contract, in one place: symmetric INT8, zero point 0.

    q = clamp(round_half_to_even(x / scale), -128, 127),   x' = q · scale,   scale = amax / 127

as NvInfer.h documents for IQuantizeLayer and as ONNX QuantizeLinear computes it in float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qdebug.errors import PlanError

QMAX = 127
QMIN = -128

FloatArray = npt.NDArray[np.float32]
Int8Array = npt.NDArray[np.int8]

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
    with np.errstate(over="ignore"):  # beyond float32 is beyond the range too
        ratio = np.asarray(x, np.float32) / _along(scale, x.ndim, axis)
    codes: Int8Array = np.clip(np.rint(ratio), QMIN, QMAX).astype(np.int8)
    return codes


def dequantize(codes: Int8Array, scale: FloatArray, axis: int | None = None) -> FloatArray:
    """The float32 values of INT8 codes, of their shape; `scale` and `axis` as in `quantize`."""
    with np.errstate(over="ignore"):  # Inf, as ONNX Runtime makes of it
        values: FloatArray = codes.astype(np.float32) * _along(scale, codes.ndim, axis)
    return values


def fake_quantize(
    x: npt.NDArray[np.floating], scale: FloatArray, axis: int | None = None
) -> FloatArray:
    """`x` after a Q/DQ pair: what an INT8 layer reads in place of `x`."""
    return dequantize(quantize(x, scale, axis), scale, axis)


def _along(scale: FloatArray, rank: int, axis: int | None) -> FloatArray:
    if axis is None:
        return scale
    shape = [1] * rank
    shape[axis] = -1
    return scale.reshape(shape)
