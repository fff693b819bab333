"""The window of a convolution: what its kernel reads for one pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from qdebug.plan.rewrite.edit import attributes_of
from qdebug.run.fp16_emulation.sketch import Shape, Sketch

_END = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """A kernel of [groups · outputs, channels, *kernel] and how it moves.

    Attributes:
        outputs, channels: of one group.
        kernel, strides, dilations: by spatial axis.
        pads: at the start of each spatial axis, then at the end of each.
    """

    groups: int
    outputs: int
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def moves(self) -> bool:
        """Whether an output pixel reads anything but the input pixel at its place."""
        return any(n > 1 for n in (*self.kernel, *self.strides))

    def slice_of(self, position: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the pixels that a position of the kernel reads start and end in the padded input,
        by spatial axis; an end may count from the axis' end."""
        each = list(zip(position, self.kernel, self.dilations, strict=True))
        return [p * d for p, _, d in each], [-d * (k - 1 - p) or _END for p, k, d in each]


def window_of(node: onnx.NodeProto, shapes: Sequence[Shape]) -> Window | None:
    """The window of a Conv; None where it depends on sizes that are not known beforehand."""
    sizes, given = shapes[1], attributes_of(node)
    known = [n for n in sizes or () if isinstance(n, int)]
    if not known or len(known) != len(sizes or ()):
        return None
    ones = (1,) * len(known[2:])
    groups = given.get("group", 1)
    strides = tuple(given.get("strides", ones))
    dilations = tuple(given.get("dilations", ones))
    pads = _pads(given, known[2:], strides, dilations, shapes[0])
    if pads is None:
        return None
    return Window(groups, known[0] // groups, known[1], tuple(known[2:]), strides, dilations, pads)


def padded(sketch: Sketch, pixels: str, window: Window) -> str:
    """The input with the zeros around it that the window reads."""
    if not any(window.pads):
        return pixels
    rank = len(window.kernel)
    pads = (0, 0, *window.pads[:rank], 0, 0, *window.pads[rank:])
    return sketch.add("Pad", pixels, sketch.ints(pads))


def _pads(
    given: dict[str, Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    shape: Shape,
) -> tuple[int, ...] | None:
    """What is given, or what ONNX's auto_pad stands for: ⌈size / stride⌉ outputs."""
    how = given.get("auto_pad", b"NOTSET")
    if how not in (b"SAME_UPPER", b"SAME_LOWER"):
        return tuple(given.get("pads", ())) or (0, 0) * len(kernel)
    small, large = [], []
    for axis, (k, s, d) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        size = 1 if s == 1 else shape[axis] if shape else None
        if not isinstance(size, int):
            return None
        pad = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
        small.append(pad // 2)
        large.append(pad - pad // 2)
    return (*small, *large) if how == b"SAME_UPPER" else (*large, *small)
