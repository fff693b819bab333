"""Checks one array against the model input it is meant for."""

from __future__ import annotations

import numpy as np

from qdebug.errors import SampleError
from qdebug.model.samples.base import shape_text
from qdebug.types import Array, TensorSpec

DType = np.dtype[np.generic]
Axes = tuple[int | str | None, ...]


def check_dtype(dtype: DType, spec: TensorSpec, where: str) -> None:
    """Raises SampleError unless `dtype` is the input's type, in any byte order."""
    if _same_type(dtype, spec.dtype):
        return
    if dtype.hasobject:
        raise SampleError(
            f"{where}: input '{spec.name}' holds Python objects, not numbers.",
            f"Save a {spec.dtype} array; rows of unequal length need one file each.",
        )
    raise SampleError(
        f"{where}: input '{spec.name}' is {dtype}; the model takes {spec.dtype}.",
        f"Convert it with `.astype(np.{spec.dtype})` and save it again.",
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


def wrong_shape(shape: tuple[int, ...], spec: TensorSpec, where: str) -> SampleError:
    """The error for an array that is no stack of samples of the input."""
    return SampleError(
        f"{where}: input '{spec.name}' has shape {shape_text(shape)}; "
        f"the model takes {shape_text(spec.shape)}.",
        _shape_hint(shape, spec.shape),
    )


def check_finite(array: Array, spec: TensorSpec, samples: tuple[int, int], where: str) -> None:
    """Raises SampleError on NaN or Inf; `samples` are the array's first one and their number."""
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
    )


def _same_type(dtype: DType, wanted: DType) -> bool:
    if dtype.kind == "V" and wanted.kind == "V" and dtype.fields is None:
        # .npy files keep bfloat16 and float8 as raw bytes ('|V2', '|V1').
        return dtype == wanted or (dtype.type is np.void and dtype.itemsize == wanted.itemsize)
    return dtype.newbyteorder("=") == wanted.newbyteorder("=")


def _shape_hint(shape: tuple[int, ...], axes: Axes) -> str:
    if len(shape) == len(axes) - 1 and axes_fit(shape, axes[1:]):
        return "It is one sample: give it a leading sample axis with `array[None]`."
    if len(shape) == len(axes) == 4 and axes_fit((shape[3], shape[1], shape[2]), axes[1:]):
        return "It looks channels-last: save `array.transpose(0, 3, 1, 2)`."
    return f"Save an array of shape {shape_text(('samples', *axes[1:]))}."
