"""What a layer of an engine reads, writes or holds, and the element types there are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qdebug.result import MaybeText

FLOATS = ("fp32", "tf32", "fp16", "bf16")
"""Floating point types, widest first."""

QUANTIZED = ("int8", "fp8", "int4", "fp4", "int16")
"""Types that hold quantized values."""


@dataclass(frozen=True)
class EngineTensor:
    """An operand of an engine's layer.

    Attributes:
        dtype: "fp32", "fp16", "bf16", "int8", "fp8", "int4", "fp4", "int16", "int32", "int64",
            "bool" …; "" when the file does not say.
        format: how it lies in memory, in TensorRT's words.
        dims: -1 for a dynamic axis; None when the file does not say.
    """

    name: str
    dtype: MaybeText = ""
    format: MaybeText = ""
    dims: tuple[int, ...] | None = None

    @property
    def bytes(self) -> float | None:
        """Its size, without the padding of its format; None where type or dims are unknown, or an
        axis is dynamic."""
        bits, size = _BITS.get(self.dtype), size_of(self.dims)
        return None if bits is None or size is None else size * bits / 8


_BITS = {
    **dict.fromkeys(("fp64", "int64"), 64),
    **dict.fromkeys(("fp32", "tf32", "int32"), 32),
    **dict.fromkeys(("fp16", "bf16"), 16),
    **dict.fromkeys(("int8", "uint8", "fp8", "bool"), 8),
    **dict.fromkeys(("int4", "fp4"), 4),
}


def size_of(dims: Sequence[int] | None) -> float | None:
    """How many elements there are; None where an axis is unknown or dynamic."""
    if dims is None or any(d < 0 for d in dims):
        return None
    return float(math.prod(dims))


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are known; None where none is."""
    found = [v for v in values if v is not None]
    return sum(found) if found else None


def total_bytes(tensors: Iterable[EngineTensor]) -> float | None:
    """The size of several tensors; None where one is unknown, or there are none."""
    found = [t.bytes for t in tensors]
    return sum(b or 0.0 for b in found) if found and None not in found else None


def canonical_dtype(text: str) -> str:
    """TensorRT's word for an element type ("Half", "kHALF", "Row major linear FP16 format") as in
    `EngineTensor.dtype`; "" when the text names none."""
    words = re.findall(r"[a-z]+\d*(?:e\d+m\d+)?", text.lower().replace("float32", "fp32"))
    names = (_DTYPES.get(word) or _DTYPES.get(word.removeprefix("k")) for word in words)
    return next(filter(None, names), "")


def dtype_in(text: str) -> str:
    """As `canonical_dtype`, and a word that it does not know as it is; "" for a sentence, such as
    "N/A due to dynamic shapes"."""
    return canonical_dtype(text) or (text.lower() if re.fullmatch(r"\w+", text) else "")


_KERNEL_TYPES = (
    ("int8", r"i8i32|imma|i8816|i16832|int8|i8i8|dp4a"),
    ("fp8", r"e4m3|fp8|f8f"),
    ("tf32", r"tf32"),
    ("bf16", r"bf16"),
    ("fp16", r"hmma|h884|h1688|h16816|f16f16|f16f32|fp16"),
    ("fp32", r"ffma|f32f32|scudnn|sgemm|fp32"),
)


def dtype_of_kernel(tactic: str) -> str:
    """The type that a kernel for matrix products multiplies in, by its name: "int8" of
    "turing_fp16_i8816cudnn_int8_128x128", which writes FP16; "" where the name tells none."""
    name = tactic.lower()
    return next((dtype for dtype, marks in _KERNEL_TYPES if re.search(marks, name)), "")


_DTYPES = {
    **dict.fromkeys(("float", "fp32"), "fp32"),
    **dict.fromkeys(("half", "fp16", "float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    "int8": "int8",
    **dict.fromkeys(("fp8", "float8", "fp8e4m3", "float8e4m3fn"), "fp8"),
    "int4": "int4",
    **dict.fromkeys(("fp4", "float4", "fp4e2m1"), "fp4"),
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "bool": "bool",
}


def widest(tensors: Iterable[EngineTensor]) -> str:
    """The widest floating point type among `tensors`; "" where there is none."""
    found = {t.dtype for t in tensors}
    return next((dtype for dtype in FLOATS if dtype in found), "")
