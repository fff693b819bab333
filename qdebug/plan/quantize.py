"""The scales of a plan, and the grids of a model that somebody else quantized.

What qdebug plans is symmetric, zero point 0, as NvInfer.h documents for IQuantizeLayer. What others
have quantized may be unsigned and asymmetric, and of other formats (`Grid`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdebug.errors import PlanError
from qdebug.formats.base import FloatArray, Format, Values
from qdebug.formats.registry import FP16, FP32, INT8, UINT8
from qdebug.network.codes import format_of_codes
from qdebug.network.graph import Graph, Node
from qdebug.types import Array

MASK = 1e30
"""Magnitudes beyond are finite stand-ins for infinity, as in attention masks of -3.4e38: beside
them a range holds nothing else."""

_LARGEST_AMAX = FP32.largest


def scale_of(amax: npt.ArrayLike, what: str = "tensor", form: Format = INT8) -> FloatArray:
    """`Format.scale_of` for a range of `what`, which is checked.

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
    return form.scale_of(values)


def half_scale(scale: FloatArray, form: Format = INT8) -> FloatArray | None:
    """`scale` rounded up to FP16 (up, so that it never clips more), as float32.

    Q/DQ pairs around FP16 arithmetic carry FP16 scales. Below about 1e-5 the rounding would change
    the quantization itself (by more than 1 %), and above 511 (65504 / 128, of INT8) the largest
    codes would dequantize to Inf, which a kernel that multiplies codes never produces.

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
    largest = FP16.largest / max(form.largest, -form.lowest)
    if np.any(rounded > largest) or np.any(rounded > scale * np.float32(1.01)):
        return None
    return rounded


ROUNDING_INSIDE = frozenset({"DynamicQuantizeLSTM", "QAttention"})
"""Operators of ONNX Runtime that quantize what they read, and an LSTM its states, step by step.
No Q/DQ pair can stand there: they are executed as they are, and cannot be kept in FP32."""
QUANTIZERS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})
"""Operators whose first output is the codes of their first input."""


@dataclass(frozen=True)
class Grid:
    """The values that a Q/DQ pair can give: (code − zero_point) · scale, symmetric or not.

    Attributes:
        scale: float32, [] or [channels].
        zero_point: int64, of the same shape: the code of 0.
        format: of the codes.
        axis: of the channels; None where there is one scale.
        bounds: beyond which a value counts as clipped; None for the values whose code would be
            beyond the codes.
    """

    scale: FloatArray
    zero_point: npt.NDArray[np.int64]
    format: Format
    axis: int | None = None
    bounds: tuple[float, float] | None = None

    @property
    def symmetric(self) -> bool:
        """Signed, with zero point 0: what TensorRT takes."""
        return self.format.lowest < 0 and not np.any(self.zero_point)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value, over all channels. A symmetric range is that of −127
        to 127."""
        largest = self.format.largest
        lowest = -largest if self.symmetric else self.format.lowest
        low = (lowest - self.zero_point) * self.scale.astype(np.float64)
        high = (largest - self.zero_point) * self.scale.astype(np.float64)
        return max(float(low.min()), -_LARGEST_AMAX), min(float(high.max()), _LARGEST_AMAX)

    @property
    def step(self) -> float:
        """The largest distance between two neighbouring values."""
        ends = self.scale.astype(np.float64) * self.format.largest
        return float(self.format.step(ends, self.scale).max())

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

    def quantize(self, x: Values) -> FloatArray:
        """`x` after the pair, float32 of its shape."""
        return self.format.quantize(x, self.scale, self.axis, self.zero_point)

    def same_codes(self, other: Grid) -> bool:
        """Whether both give every value the same code, with one scale for all."""
        if self.axis is not None or other.axis is not None or self.format != other.format:
            return False
        return bool(self.scale == other.scale and self.zero_point == other.zero_point)

    def clips_at(self, low: float | None, high: float | None) -> bool:
        """Whether quantizing takes every value below `low` as `low`, and every value above `high`
        as `high`: clipping there first would change no code."""
        ends = (low, self.format.lowest), (high, self.format.largest)
        return all(
            bound is None or np.all(self._codes(bound).astype(np.float64) == end)
            for bound, end in ends
        )

    def _codes(self, bound: float) -> Array:
        """The code of one value, for each scale."""
        values = np.full(self.scale.shape, bound, np.float32)
        axis = None if self.axis is None else 0
        return self.format.encode(values, self.scale, axis, self.zero_point)


def symmetric_grid(amax: float, form: Format = INT8) -> Grid:
    """The grid of a planned activation: ±`amax` to ± the largest code."""
    return Grid(scale_of(amax, form=form), np.array(0, np.int64), form, None, (-amax, amax))


def dynamic_grid(values: npt.NDArray[np.floating]) -> Grid:
    """The grid that DynamicQuantizeLinear takes for `values`: uint8, from their range with 0."""
    low = np.float32(min(0.0, float(values.min())))
    high = np.float32(max(0.0, float(values.max())))
    scale = np.asarray(np.float32((high - low) / np.float32(UINT8.largest)) or np.float32(1))
    zero = UINT8.encode(np.asarray(-low), scale)
    return Grid(scale, zero.astype(np.int64), UINT8)


def quantizer_of(graph: Graph, dequantizer: Node) -> Node | None:
    """What makes the codes that a DequantizeLinear reads; None for those of a constant. A Clip may
    lie between, of symmetric codes to −127 and more, as Brevitas writes it."""
    maker = graph.producers.get(dequantizer.inputs[0])
    if maker is not None and maker.op_type == "Clip":
        maker = graph.producers.get(maker.inputs[0])
    return maker if maker is not None and maker.op_type in QUANTIZERS else None


def grid_of(graph: Graph, node: Node) -> Grid | None:
    """The grid of a QuantizeLinear or DequantizeLinear; None where its scale or zero point is
    computed, where it goes by blocks, where the codes are in no format of the registry, and where
    scale and zero point do not fit together: no runtime takes that."""
    scale = graph.constant(node.inputs[1])
    zero_name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = graph.constant(zero_name) if zero_name else None
    if scale is None or (zero_name and zero is None) or scale.ndim > 1 or not scale.size:
        return None
    if zero is not None and zero.size != scale.size:
        return None
    form = format_of_codes(graph, node)
    if form is None:
        return None
    axis = None
    if scale.size > 1:
        attributes = graph.attributes(node)
        axis = int(attributes.get("axis", 1))
    wide = np.zeros(scale.size) if zero is None else np.asarray(zero).astype(np.int64)
    flat = scale.astype(np.float32).reshape(-1 if axis is not None else ())
    zeros = wide.astype(np.int64).reshape(flat.shape)
    return Grid(flat, zeros, form, axis)
