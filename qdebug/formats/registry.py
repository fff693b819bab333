"""The number formats, each as a value.

What a layer can be planned in is in `FORMAT_OF`; the others are only read, in models that somebody
else quantized.

Costs are ratios of peak dense rates in NVIDIA's data sheets: T4 (7.5), A100 (8.0: 624 TOPS in INT8,
312 TFLOPS in FP16, 156 in TF32, which stands for FP32) and L4 (8.9). No GPU multiplies INT16 by
INT8; that is of NPUs, by Arm's Ethos-U55 (128 such products a cycle where it makes 256 of INT8:
Arm Community, "What does the MACs (8x8) of Ethos-U55 specification mean"), and stands at 0. Limits
of floating-point formats are those of IEEE 754 and of "OCP 8-bit Floating Point Specification",
2023.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
from onnx import TensorProto

from qdebug.formats.base import Format
from qdebug.formats.floating import FloatFormat
from qdebug.formats.integer import IntegerFormat
from qdebug.types import Precision

INT4 = IntegerFormat(
    name="int4",
    label="INT4",
    precision=Precision.INT4,
    bits=4,
    onnx_type=TensorProto.INT4,
    dtype=np.dtype(ml_dtypes.int4),
    lowest=-8,
    largest=7,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=21,
    mac_cost={75: 0.5, 80: 0.5},
)
UINT4 = IntegerFormat(
    name="uint4",
    label="UINT4",
    precision=Precision.INT4,
    bits=4,
    onnx_type=TensorProto.UINT4,
    dtype=np.dtype(ml_dtypes.uint4),
    lowest=0,
    largest=15,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=21,
    mac_cost={75: 0.5, 80: 0.5},
)
INT8 = IntegerFormat(
    name="int8",
    label="INT8",
    precision=Precision.INT8,
    bits=8,
    onnx_type=TensorProto.INT8,
    dtype=np.dtype(np.int8),
    lowest=-128,
    largest=127,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=10,
    mac_cost={75: 1.0},
)
UINT8 = IntegerFormat(
    name="uint8",
    label="UINT8",
    precision=Precision.INT8,
    bits=8,
    onnx_type=TensorProto.UINT8,
    dtype=np.dtype(np.uint8),
    lowest=0,
    largest=255,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=10,
    mac_cost={75: 1.0},
)
INT16 = IntegerFormat(
    name="int16",
    label="INT16",
    precision=Precision.INT16,
    bits=16,
    onnx_type=TensorProto.INT16,
    dtype=np.dtype(np.int16),
    lowest=-32768,
    largest=32767,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=21,
    mac_cost={0: 2.0},
)
UINT16 = IntegerFormat(
    name="uint16",
    label="UINT16",
    precision=Precision.INT16,
    bits=16,
    onnx_type=TensorProto.UINT16,
    dtype=np.dtype(np.uint16),
    lowest=0,
    largest=65535,
    smallest_normal=1,
    smallest_subnormal=1,
    needs_scale=True,
    opset=21,
    mac_cost={0: 2.0},
)
FP8_E4M3 = FloatFormat(
    name="fp8_e4m3",
    label="FP8 E4M3",
    precision=Precision.FP8,
    bits=8,
    onnx_type=TensorProto.FLOAT8E4M3FN,
    dtype=np.dtype(ml_dtypes.float8_e4m3fn),
    lowest=-448,
    largest=448,
    smallest_normal=2.0**-6,
    smallest_subnormal=2.0**-9,
    needs_scale=True,
    opset=19,
    mac_cost={89: 1.0},
    fraction_bits=3,
    saturates=True,
)
FP8_E5M2 = FloatFormat(
    name="fp8_e5m2",
    label="FP8 E5M2",
    precision=Precision.FP8,
    bits=8,
    onnx_type=TensorProto.FLOAT8E5M2,
    dtype=np.dtype(ml_dtypes.float8_e5m2),
    lowest=-57344,
    largest=57344,
    smallest_normal=2.0**-14,
    smallest_subnormal=2.0**-16,
    needs_scale=True,
    opset=19,
    mac_cost={89: 1.0},
    fraction_bits=2,
    saturates=True,
)
BF16 = FloatFormat(
    name="bf16",
    label="BF16",
    precision=Precision.BF16,
    bits=16,
    onnx_type=TensorProto.BFLOAT16,
    dtype=np.dtype(ml_dtypes.bfloat16),
    lowest=-255 * 2.0**120,
    largest=255 * 2.0**120,
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-133,
    needs_scale=False,
    opset=22,
    mac_cost={80: 2.0},
    fraction_bits=7,
    saturates=False,
)
FP16 = FloatFormat(
    name="fp16",
    label="FP16",
    precision=Precision.FP16,
    bits=16,
    onnx_type=TensorProto.FLOAT16,
    dtype=np.dtype(np.float16),
    lowest=-65504,
    largest=65504,
    smallest_normal=2.0**-14,
    smallest_subnormal=2.0**-24,
    needs_scale=False,
    opset=1,
    mac_cost={75: 2.0},
    fraction_bits=10,
    saturates=False,
)
FP32 = FloatFormat(
    name="fp32",
    label="FP32",
    precision=Precision.FP32,
    bits=32,
    onnx_type=TensorProto.FLOAT,
    dtype=np.dtype(np.float32),
    lowest=-(2 - 2.0**-23) * 2.0**127,
    largest=(2 - 2.0**-23) * 2.0**127,
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-149,
    needs_scale=False,
    opset=1,
    mac_cost={75: 16.0, 80: 4.0},
    fraction_bits=23,
    saturates=False,
)

FORMATS: tuple[Format, ...] = (
    INT4,
    UINT4,
    INT8,
    UINT8,
    FP8_E4M3,
    FP8_E5M2,
    INT16,
    UINT16,
    BF16,
    FP16,
    FP32,
)
PLANNED: tuple[tuple[Precision, Format, Format], ...] = (
    (Precision.W4, FP32, INT4),
    (Precision.W8, FP32, INT8),
    (Precision.INT8, INT8, INT8),
    (Precision.FP8, FP8_E4M3, FP8_E4M3),
    (Precision.A16W8, INT16, INT8),
    (Precision.BF16, BF16, BF16),
    (Precision.FP16, FP16, FP16),
    (Precision.FP32, FP32, FP32),
)
"""What a plan may ask for, with the formats of activations and of weights. Their order is that of
lists for people and, within a price, of a search: of INT8 and FP8, of BF16 and FP16 neither is the
better one for every layer.

W4 and W8 quantize weights alone, in blocks; activations stay in the precision of what is around.

A16W8 has INT16 rather than UINT16, which what follows a Relu would use one bit more of: all that
qdebug plans is symmetric, and of 16 bits one is not missed. (In UINT16 with the zero point 32768,
as QNN writes it, the values are the same.)"""

FORMAT_OF: Mapping[Precision, Format] = {p: activation for p, activation, _ in PLANNED}
"""What the activations that a layer reads are quantized to, or a whole layer cast to, in each
precision that a plan may ask for, in their order."""

WEIGHT_FORMAT_OF: Mapping[Precision, Format] = {p: weight for p, _, weight in PLANNED}
"""What the weight of a layer is quantized or cast to."""

WEIGHT_ONLY = frozenset({Precision.W4, Precision.W8})
"""The precisions in which a layer reads a weight that is stored in blocks of codes, and activations
as they are."""

SCALED = frozenset(f.precision for f in FORMATS if f.needs_scale) | {Precision.A16W8} | WEIGHT_ONLY
"""The precisions of layers that read what they multiply, or its weight, through Q/DQ pairs."""

RANGED = SCALED - WEIGHT_ONLY
"""Those whose activations have ranges as well: what calibration and repair change."""

CAST = tuple(p for p, _, form in PLANNED if not form.needs_scale and p is not Precision.FP32)
"""The precisions of layers that are cast to a narrower floating-point format, all of whose
operators take it."""

BITS: Mapping[Precision, int] = {
    **{f.precision: f.bits for f in FORMATS},
    **{p: (weight if p in WEIGHT_ONLY else form).bits for p, form, weight in PLANNED},
}
"""Of one operand of a layer that is quantized: of an activation, where that has more than the
weight."""

BY_ONNX_TYPE: Mapping[int, Format] = {f.onnx_type: f for f in FORMATS}
"""Their formats by onnx.TensorProto type."""

_ORDER = tuple(FORMAT_OF)


def is_planned(form: Format) -> bool:
    """Whether a plan may ask for a precision in which layers read this format."""
    return any(
        form.precision in (a.precision, w.precision) for p, a, w in PLANNED if p not in WEIGHT_ONLY
    )


def may_raise(start: Precision, end: Precision) -> bool:
    """Whether a search for accuracy may run a layer in `end` instead of `start`: in another
    precision of as many bits or more. One with scales takes the ranges that the layer has in
    another one with scales."""
    if end is start or BITS[end] < BITS[start]:
        return False
    if start in WEIGHT_ONLY or end in WEIGHT_ONLY:  # no ranges of activations, or no use for them
        return start in WEIGHT_ONLY and (end in WEIGHT_ONLY or end not in SCALED)
    return end not in SCALED or start in SCALED


def order_of(precision: Precision) -> int:
    """The place of a precision that a plan may ask for, from 0 for the lowest."""
    return _ORDER.index(precision)
