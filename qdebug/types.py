"""The small records that stages hand to each other. Frozen; no behaviour beyond derived values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
"""Input arrays of one execution, by input name."""

Tensors = Mapping[str, Array]
"""Captured arrays of one execution, by the user's tensor name."""


class Precision(StrEnum):
    """The precision a layer computes in. A plan asks for those in `formats.registry.FORMAT_OF`; the
    others are read in models that somebody else quantized. A16W8 has activations of 16 bits and
    weights of 8; W4 and W8 have weights of 4 and 8 bits in blocks, and activations as they are."""

    W4 = "w4"
    INT4 = "int4"
    W8 = "w8"
    INT8 = "int8"
    FP8 = "fp8"
    A16W8 = "a16w8"
    INT16 = "int16"
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Fp16Kernels(StrEnum):
    """How the simulation computes a layer in FP16.

    EXACT: as if in FP32; what comes out is rounded. TENSORRT: as TensorRT's kernels do, which also
    round inside: sums of products after every 16, the steps of a Softmax (see run/fp16_emulation).
    """

    EXACT = "exact"
    TENSORRT = "tensorrt"


@dataclass(frozen=True)
class TensorSpec:
    """A model input or output.

    `shape` holds an int for a fixed axis, and a symbol's name or None for a dynamic one. An input's
    leading axis may hold samples, unless `holds_samples` says that it does not.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: np.dtype[np.generic]
    holds_samples: bool = True


@dataclass(frozen=True)
class Skipped:
    """A tensor that could not be captured or compared, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True)
class Progress:
    """One step of a long operation, for whoever shows it. `total` is 0 where it is not known;
    `note` says what there is so far."""

    stage: str
    done: int
    total: int
    note: str = ""


ProgressCallback = Callable[[Progress], None]


def ignore_progress(_: Progress) -> None:
    """The default progress callback: shows nothing."""
