"""Which of the user's arrays is which model input, and whether it fits."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from typing import NoReturn

import numpy as np

from qdebug.errors import SampleError
from qdebug.types import Array, TensorSpec

DType = np.dtype[np.generic]
Axes = tuple[int | str | None, ...]


def check_dtype(dtype: DType, spec: TensorSpec, where: str) -> None:
    """Check that `dtype` is the input's type, in any byte order, or float16 where that is float32,
    which holds every such value.

    Raises:
        SampleError: it is another one.
    """
    if _same_type(dtype, spec.dtype) or (dtype == np.float16 and spec.dtype == np.float32):
        return
    if dtype.hasobject:
        raise SampleError(
            f"{where}: input '{spec.name}' holds Python objects, not numbers.",
            f"Give a {spec.dtype} array; rows of unequal length need one file each.",
            code="QD-SAMPLES-OBJECTS",
        )
    module = "ml_dtypes" if spec.dtype.kind == "V" else "np"
    pixels = dtype.kind in "iu" and spec.dtype.kind == "f"
    scaled = ", scaled as in training (values from 0 to 255 often by / 255)" if pixels else ""
    raise SampleError(
        f"{where}: input '{spec.name}' is {dtype}; the model takes {spec.dtype}.",
        f"Convert it with `.astype({module}.{spec.dtype})`{scaled}.",
        code="QD-SAMPLES-DTYPE",
    )


def as_input(array: Array, spec: TensorSpec) -> Array:
    """The array C-contiguous and in the input's type, which was checked before."""
    if array.dtype.kind == "V":
        array = array.view(spec.dtype)
    return np.asarray(array, dtype=spec.dtype, order="C")


def axes_fit(shape: tuple[int, ...], axes: Axes) -> bool:
    """Whether every fixed axis of the model has the size it asks for."""
    return len(shape) == len(axes) and all(
        size == axis or not isinstance(axis, int) for size, axis in zip(shape, axes, strict=True)
    )


def refuse_shape(shape: tuple[int, ...], spec: TensorSpec, where: str) -> NoReturn:
    """Refuse an array that is not a stack of samples of the input.

    Raises:
        SampleError: always.
    """
    raise SampleError(
        f"{where}: input '{spec.name}' has shape {shape_text(shape)}; "
        f"the model takes {shape_text(spec.shape)}.",
        _shape_hint(shape, spec.shape),
        code="QD-SAMPLES-SHAPE",
    )


def check_finite(array: Array, spec: TensorSpec, samples: tuple[int, int], where: str) -> None:
    """Check an array; `samples` are its first one and their number.

    Raises:
        SampleError: it holds NaN or Inf.
    """
    if array.dtype.kind not in "fcV":
        return
    finite = np.isfinite(array)
    if finite.all():
        return
    sample, count = samples
    if count > 1:  # a single sample may be a feed of several rows
        sample += int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
    what = "NaN" if np.isnan(array).any() else "Inf"
    raise SampleError(
        f"{where}: input '{spec.name}' holds {what}, first in sample {sample} "
        f"({np.count_nonzero(~finite)} such values in the batch).",
        "Repair or remove that sample: with it, no error in any layer can be measured.",
        code="QD-SAMPLES-NON-FINITE",
    )


def _same_type(dtype: DType, wanted: DType) -> bool:
    if dtype.kind == "V" and wanted.kind == "V" and dtype.fields is None:
        # .npy files keep bfloat16 and float8 as raw bytes ('|V2', '|V1').
        return dtype == wanted or (dtype.type is np.void and dtype.itemsize == wanted.itemsize)
    return dtype.newbyteorder("=") == wanted.newbyteorder("=")


def _shape_hint(shape: tuple[int, ...], axes: Axes) -> str:
    if not axes:
        return (
            "The model declares no axes of it: if it is not a single number, declare them, such as "
            "with onnx.tools.update_model_dims."
        )
    if len(shape) == len(axes) - 1 and axes_fit(shape, axes[1:]):
        return "It is one sample: give it a leading sample axis with `array[None]`."
    if len(shape) == len(axes) == 4 and axes_fit((shape[3], shape[1], shape[2]), axes[1:]):
        return "It looks channels-last: give `array.transpose(0, 3, 1, 2)`."
    return f"Give an array of shape {shape_text(('samples', *axes[1:]))}."


def aliases(name: str) -> tuple[str, ...]:
    """The names an array of input `name` may have, best first.

    HDF5 paths have no leading '/', and file names can hold neither '/' nor ':'.
    """
    return name, name.strip("/"), re.sub(r"[/:]", "_", name)


def find_names(found: Collection[str], inputs: Sequence[TensorSpec]) -> dict[str, str]:
    """The found name of every input that has one, by input name."""
    names: dict[str, str] = {}
    for spec in inputs:
        alias = next((name for name in aliases(spec.name) if name in found), None)
        if alias is not None:
            names[spec.name] = alias
    return names


def match_names(found: Collection[str], inputs: Sequence[TensorSpec], where: str) -> dict[str, str]:
    """The found name of every input, by input name.

    One array and one input need no common name.

    Raises:
        SampleError: an input has no array, or two inputs would share one.
    """
    names = find_names(found, inputs)
    if not names and len(found) == 1 and len(inputs) == 1:
        return {inputs[0].name: next(iter(found))}
    for spec in inputs:
        if spec.name not in names:
            free = sorted(set(found) - set(names.values()))
            near = difflib.get_close_matches(spec.name, free, n=1, cutoff=0.5)
            raise SampleError(
                f"{where}: no array for model input '{spec.name}'; found {quoted(sorted(found))}.",
                f"Rename '{near[0]}' to '{spec.name}'."
                if near
                else f"Name one of the arrays '{spec.name}'.",
                code="QD-SAMPLES-NAMES",
            )
    owner: dict[str, str] = {}
    for name, alias in names.items():
        if owner.setdefault(alias, name) != name:
            raise SampleError(
                f"{where}: array '{alias}' could be model input '{owner[alias]}' or '{name}'.",
                "Save both in an .npz, under the inputs' exact names.",
                code="QD-SAMPLES-NAMES",
            )
    return names


def shape_text(shape: tuple[int | str | None, ...]) -> str:
    """A shape for a message: `[N, 3, 32, 32]`, with `?` for an unnamed dynamic axis."""
    return "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def inputs_text(inputs: Sequence[TensorSpec]) -> str:
    """The inputs of a model for a message: "its input is 'x' float32 [N, 3, 32, 32]"."""
    listed = ", ".join(f"'{spec.name}' {spec.dtype} {shape_text(spec.shape)}" for spec in inputs)
    return f"its {'inputs are' if len(inputs) > 1 else 'input is'} {listed}"


def quoted(names: list[str], most: int = 8) -> str:
    """The names in quotes, cut after `most`."""
    shown = ", ".join(f"'{name}'" for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "nothing"
