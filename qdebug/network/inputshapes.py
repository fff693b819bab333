"""Shapes that a user gives to inputs whose axes are free, as `images:1x3x640x640`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdebug.errors import UsageError
from qdebug.wording import option

if TYPE_CHECKING:
    import onnx

InputShapes = tuple[tuple[str, tuple[int | None, ...]], ...]
"""The name of each input, "" for the only one, and its axes, None for those that stay free."""
_AXIS = re.compile(r"[1-9][0-9]{0,9}|-1|\?|[A-Za-z_]\w*")
_SEPARATOR = re.compile(r"[x×,]")


def parse_shapes(texts: Sequence[str]) -> InputShapes:
    """Shapes of inputs, each given once.

    Raises:
        ValueError: one is none, or is given twice.
    """
    found: dict[str, tuple[int | None, ...]] = {}
    for text in texts:
        name, _, shape = text.rpartition(":")
        axes = _SEPARATOR.split(shape)
        if not all(_AXIS.fullmatch(axis) for axis in axes):
            raise ValueError(
                "it is no shape; write for example images:1x3x640x640, with N for an axis that "
                "stays free"
            )
        if name in found:
            raise ValueError(f"'{name}' is given twice; give each input once")
        found[name] = tuple(int(axis) if axis.isdecimal() else None for axis in axes)
    return tuple(found.items())


def checked_shapes(value: object) -> object:
    """The setting as it was written; see `parse_shapes`, whose errors it raises."""
    texts = [value] if isinstance(value, str) else value
    if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
        parse_shapes(texts)
    return texts


def fix_shapes(path: object, graph: onnx.GraphProto, shapes: InputShapes) -> None:
    """Give inputs these shapes, in place; the others, and axes that are None, stay as they are.

    Raises:
        UsageError: there is no such input, it has other axes, or fixed ones of other lengths.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights}
    for name, axes in shapes:
        if not name and len(inputs) == 1:
            name = next(iter(inputs))
        setting = option("shape", f"{name}:{'x'.join('N' if n is None else str(n) for n in axes)}")
        if name not in inputs:
            listed = ", ".join(f"'{each}'" for each in inputs)
            raise UsageError(
                f"{setting}: {path} has no input '{name}'",
                f"It has {listed}.",
                code="QD-USAGE-SHAPE",
            )
        shape = inputs[name].type.tensor_type.shape
        if len(shape.dim) != len(axes):
            raise UsageError(
                f"{setting}: input '{name}' has {len(shape.dim)} axes, not {len(axes)}",
                f"Its shape is {_text(shape)}.",
                code="QD-USAGE-SHAPE",
            )
        for axis, length in zip(shape.dim, axes, strict=True):
            if length is not None and axis.dim_value > 0 and axis.dim_value != length:
                raise UsageError(
                    f"{setting}: input '{name}' has the fixed shape {_text(shape)} there",
                    "Only free axes can be given a length.",
                    code="QD-USAGE-SHAPE",
                )
            if length is not None:
                axis.dim_value = length


def _text(shape: onnx.TensorShapeProto) -> str:
    return "x".join(str(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in shape.dim)
