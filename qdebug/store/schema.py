"""The layout of a run file: one HDF5 file that holds all the evidence of one comparison.

It can be read with plain h5py (1.10 file format or newer)::

    /                     attributes
                            schema    "qdebug.run/1"
                            complete  True; a file without it was never finished
                            created   UTC time, ISO 8601
                            manifest  JSON text: hashes of model, samples and plan, versions, seed
                            keep      "all", "none" or "worst:N"
                            dtype     "float32" (floats as captured) or "float16" (floats narrowed)
    /plan                 scalar text: the precision plan, YAML; empty when there was none
    /results              scalar text: the result of the comparison, JSON
    /network              uint8 [bytes], gzip: the FP32 network without its weights, JSON in UTF-8
                          (plan/description.py); absent in files of earlier versions
    /shown                uint8 [bytes], gzip: the samples that lose most by the task, JSON in UTF-8
                          with pictures; absent without any, and in files of earlier versions
    /samples              int64 [rows]: which sample each row of every activation dataset belongs
                          to; -1 for a row that was never used
    /tensors/00000        one group per tensor, numbered in the order of capture
                            attribute name: the user's exact name
                            attribute row_reference, row_candidate, row_engine: dtype and shape of
                            one row of the dataset, such as "float32 1x10"; absent in files of
                            earlier versions. A dataset of another form is damaged
        reference         [rows, *shape of one row], not compressed
        candidate         the same; as the simulation computes it
        engine            the same; as an engine computes it. Each may be absent
                            attribute ragged:  int64, rows that are stored apart (absent when none)
                            attribute missing: int64, rows with no value (absent when none)
        ragged_reference/<row>   a row whose shape or dtype does not fit the dataset; its row
        ragged_candidate/<row>   there is the fill value: NaN for floats, 0 or False otherwise
        ragged_engine/<row>
    /ranges/00000         one group per tensor: attribute name, one attribute per scalar (amax,
                          count, ...), one dataset per array (histogram, ...)

Names are attributes, never HDF5 paths, because a tensor's name may hold '/', ':' or be 300
characters long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from qdebug.errors import UsageError
from qdebug.network.samples.readers.hdf5 import own_item, own_values
from qdebug.types import Array
from qdebug.wording import option

SCHEMA = "qdebug.run/1"

ATTR_SCHEMA = "schema"
ATTR_COMPLETE = "complete"
ATTR_CREATED = "created"
ATTR_MANIFEST = "manifest"
ATTR_KEEP = "keep"
ATTR_DTYPE = "dtype"
ATTR_NAME = "name"
ATTR_RAGGED = "ragged"
ATTR_MISSING = "missing"

PLAN = "plan"
NETWORK = "network"
RESULTS = "results"
SHOWN = "shown"
SAMPLES = "samples"
TENSORS = "tensors"
RANGES = "ranges"


def row_attribute(role: str) -> str:
    """The attribute of a tensor's group that holds the `row_form` of its dataset of a role."""
    return f"row_{role}"


def row_form(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """Dtype and shape of a row, as text."""
    return f"{dtype.name} {'x'.join(map(str, shape))}"


Role = Literal["reference", "candidate", "engine"]
ROLES: tuple[Role, ...] = ("reference", "candidate", "engine")
FloatStorage = Literal["float32", "float16"]


@dataclass(frozen=True)
class Keep:
    """Which samples' activations a run file keeps.

    `kind` is "all", "none" or "worst", and `count` how many of the worst; 0 for the others.
    """

    kind: str
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> Keep:
        """Read "all", "none" or "worst:N".

        Raises:
            UsageError: anything else, or N below 1.
        """
        words = re.fullmatch("(all|none)|(worst):0*([1-9][0-9]{0,8})", text.strip())
        if words is not None:
            return cls(words[1] or words[2], int(words[3] or 0))
        raise UsageError(
            f"{option('keep', text)}: not a valid choice of samples to keep.",
            "Use `all`, `none` or `worst:N` with N at least 1, such as `worst:8`.",
            code="QD-USAGE-KEEP",
        )

    def __str__(self) -> str:
        return f"worst:{self.count}" if self.kind == "worst" else self.kind


@dataclass(frozen=True)
class RangeRecord:
    """What calibration saw of one tensor.

    `scalars` are single numbers by name (amin, amax, count, first_bin, ...); `arrays` are numeric
    arrays of any shape by name (histogram, ...). The name "name" is taken.
    """

    scalars: Mapping[str, float | int] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def numbered(group: str, index: int) -> str:
    """The path of the index-th group below `group`, such as "tensors/00007"."""
    return f"{group}/{index:05d}"


def ragged_group(role: Role) -> str:
    """The group, beside a tensor's dataset, that holds the rows which do not fit it."""
    return f"ragged_{role}"


def write_range_records(file: Any, ranges: Mapping[str, RangeRecord]) -> None:
    """Write the calibration records into an open h5py file.

    Args:
        file: an h5py file open for writing.
        ranges: the records by tensor name.

    Raises:
        OSError: the disk refused.
    """
    for index, (name, record) in enumerate(ranges.items()):
        group = file.create_group(numbered(RANGES, index))
        for key, value in record.scalars.items():
            group.attrs[key] = value
        group.attrs[ATTR_NAME] = name
        for key, array in record.arrays.items():
            group[key] = array


def read_range_record(group: Any) -> RangeRecord:
    """The calibration record that a group of an open h5py file holds.

    Raises:
        OSError, KeyError, TypeError: the file is damaged.
        ValueError: it holds something else than numbers.
    """
    scalars = {k: _number(value) for k, value in group.attrs.items() if k != ATTR_NAME}
    arrays = {key: np.asarray(own_values(group, key)) for key in group}
    if odd := [key for key, array in arrays.items() if array.dtype.kind not in "fiub"]:
        raise ValueError(f"'{odd[0]}' holds no numbers")
    return RangeRecord(scalars, arrays)


def _number(value: Any) -> float | int:
    found = np.asarray(value).item()
    if not isinstance(found, int | float):
        raise TypeError(f"{found!r} is no number")
    return found


def named_groups(file: Any, parent: str) -> dict[str, Any]:
    """The groups of an open h5py file below `parent` by the name that each carries, in the order
    they were written.

    Raises:
        OSError, KeyError, ValueError: the file is damaged.
        TypeError: a name is no text.
    """
    if parent not in file:
        return {}
    group = own_item(file, parent)
    # HDF5 lists by text, which puts 100000 before 99999.
    items = [own_item(group, key) for key in sorted(group, key=int)]
    groups = {item.attrs[ATTR_NAME]: item for item in items}
    if odd := [name for name in groups if not isinstance(name, str)]:
        raise TypeError(f"{odd[0]!r} in place of a name")
    return groups
