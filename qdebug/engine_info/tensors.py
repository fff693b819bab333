"""What a layer of an engine reads, writes or holds, and the element types there are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from qdebug.results import MaybeText

FLOATS = ("fp32", "tf32", "fp16", "bf16")
"""Floating point types, widest first."""

QUANTIZED = ("int8", "fp8", "int4", "fp4")
"""Types that hold quantized values."""


@dataclass(frozen=True)
class EngineTensor:
    """An operand of an engine's layer.

    Attributes:
        dtype: "fp32", "fp16", "bf16", "int8", "fp8", "int4", "fp4", "int32", "int64", "bool" …;
            "" when the file does not say.
        format: how it lies in memory, in TensorRT's words.
        dims: -1 for a dynamic axis; None when the file does not say.
    """

    name: str
    dtype: MaybeText = ""
    format: MaybeText = ""
    dims: tuple[int, ...] | None = None


def canonical_dtype(text: str) -> str:
    """TensorRT's word for an element type ("Half", "kHALF", "Row major linear FP16 format") as in
    `EngineTensor.dtype`; "" when the text names none."""
    words = re.findall(r"[a-z]+\d*(?:e\d+m\d+)?", text.lower().replace("float32", "fp32"))
    for word in words:
        name = _DTYPES.get(word.removeprefix("k") if word not in _DTYPES else word)
        if name:
            return name
    return ""


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
