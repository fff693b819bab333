"""Samples that are stacked on the leading axis: .npz, .npy, HDF5."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qdebug.errors import SampleError
from qdebug.network.samples.matching import (
    as_input,
    axes_fit,
    check_dtype,
    match_names,
    refuse_shape,
)
from qdebug.network.samples.samples import Extras, Layout, SampleArray
from qdebug.types import Array, TensorSpec


@dataclass(frozen=True)
class InputArray:
    """The array of one input.

    Attributes:
        whole: each of its rows is a whole feed of the input.
        shared: it is a single number, which every sample gets.
    """

    spec: TensorSpec
    array: SampleArray
    whole: bool
    shared: bool = False


class StackedReader:
    """Slices every input's array."""

    def __init__(self, arrays: list[InputArray]) -> None:
        self._arrays = arrays
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> dict[str, Array]:
        """`count` samples from `start`; just 1 when samples are whole feeds."""
        with self._lock:
            read = [each.array.read(start, start + count) for each in self._arrays]
        return {
            each.spec.name: as_input(array[0, ...] if each.whole else array, each.spec)
            for each, array in zip(self._arrays, read, strict=True)
        }


def open_stacked(
    arrays: Mapping[str, SampleArray], inputs: Sequence[TensorSpec], where: str, limit: int | None
) -> tuple[StackedReader, Layout, Extras]:
    """The reader, the layout and the extras of stacked arrays.

    Raises:
        SampleError: an input is missing, has the wrong type or shape, or no samples; or arrays
            differ in length.
    """
    names = match_names(arrays, inputs, where)
    matched = [_match(arrays[names[spec.name]], spec, where) for spec in inputs]
    available = _common_length(matched, where)
    count = available if limit is None else min(limit, available)
    extras = {
        name: _checked_extra(name, arrays[name], available, where)
        for name in arrays
        if name not in names.values() and arrays[name].shape
    }
    return StackedReader(matched), _layout(matched, count, where), Extras(extras, count)


def _match(array: SampleArray, spec: TensorSpec, where: str) -> InputArray:
    check_dtype(array.dtype, spec, where)
    axes = spec.shape
    if axes and axes_fit(array.shape[1:], axes[1:]) and len(array.shape) == len(axes):
        return InputArray(spec, array, whole=False)
    if not array.shape and not axes:
        return InputArray(spec, array, whole=False, shared=True)
    if not array.shape or not axes_fit(array.shape[1:], axes):
        refuse_shape(array.shape, spec, where)
    return InputArray(spec, array, whole=True)


def _common_length(matched: list[InputArray], where: str) -> int:
    by_sample = [each for each in matched if not each.shared]
    if not by_sample:
        return 1
    first = by_sample[0]
    for each in by_sample:
        if each.array.shape[0] == 0:
            raise SampleError(
                f"{where}: input '{each.spec.name}' has no samples.",
                "Add some.",
                code="QD-SAMPLES-EMPTY",
            )
        if each.array.shape[0] != first.array.shape[0]:
            raise SampleError(
                f"{where}: inputs differ in their number of samples: "
                f"'{first.spec.name}' has {first.array.shape[0]}, "
                f"'{each.spec.name}' has {each.array.shape[0]}.",
                "Save as many of each. An input that has no batch axis needs a leading sample "
                "axis of its own.",
                code="QD-SAMPLES-LENGTHS",
            )
    return first.array.shape[0]


def fixed_batch(specs: Iterable[TensorSpec]) -> set[int]:
    """The sizes of the fixed leading axes."""
    return {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], int)}


def _layout(matched: list[InputArray], count: int, where: str) -> Layout:
    by_sample = [each for each in matched if not each.shared]
    rows = [each.spec for each in by_sample if not each.whole]
    fixed = fixed_batch(rows)
    if len(fixed) > 1 or (len(rows) < len(by_sample) and fixed - {1}):
        wide = next(spec for spec in rows if spec.shape[0] != 1)
        raise SampleError(
            f"{where}: the leading axes of the model's inputs do not share a batch axis "
            f"(input '{wide.name}' takes [{', '.join(map(str, wide.shape))}]).",
            "Save every input with one more leading axis, of the samples: row i of each array is "
            "then all that the model takes for sample i.",
            code="QD-SAMPLES-BATCH",
        )
    if len(rows) < len(by_sample):
        return Layout(count, 1, batch_is_free=False, offsets=range(count + 1))
    return Layout(count, next(iter(fixed), 1), batch_is_free=not fixed)


def _checked_extra(name: str, array: SampleArray, available: int, where: str) -> SampleArray:
    if array.shape[0] != available:
        raise SampleError(
            f"{where}: array '{name}' has {array.shape[0]} rows, the inputs have {available} "
            "samples.",
            "An array that is not a model input is taken for labels, one row per sample: "
            "fix its length or remove it.",
            code="QD-SAMPLES-LABELS",
        )
    if array.dtype.hasobject:
        raise SampleError(
            f"{where}: array '{name}' holds Python objects, not numbers.",
            "Remove it.",
            code="QD-SAMPLES-OBJECTS",
        )
    return array
