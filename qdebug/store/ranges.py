"""The calibration records within a run file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qdebug.store import schema
from qdebug.store.schema import RangeRecord


def write_ranges(file: Any, ranges: Mapping[str, RangeRecord]) -> None:
    """Replace the records of an open h5py file.

    Args:
        file: an h5py file open for writing.
        ranges: the records by tensor name.

    Raises:
        OSError: the disk refused.
    """
    if schema.RANGES in file:
        del file[schema.RANGES]
    for index, (name, record) in enumerate(ranges.items()):
        group = file.create_group(schema.numbered(schema.RANGES, index))
        for key, value in record.scalars.items():
            group.attrs[key] = value
        group.attrs[schema.ATTR_NAME] = name
        for key, array in record.arrays.items():
            group[key] = array


def read_ranges(file: Any) -> dict[str, RangeRecord]:
    """The records of an open h5py file, by tensor name; empty when there are none.

    Raises:
        OSError, KeyError: the file is damaged.
    """
    records: dict[str, RangeRecord] = {}
    for group in numbered_groups(file, schema.RANGES):
        attrs = dict(group.attrs)
        name = attrs.pop(schema.ATTR_NAME)
        scalars = {key: value.item() for key, value in attrs.items()}
        arrays = {key: np.asarray(item[()]) for key, item in group.items()}
        records[name] = RangeRecord(scalars, arrays)
    return records


def numbered_groups(file: Any, parent: str) -> list[Any]:
    """The groups below `parent` in the order they were written; none when it does not exist."""
    if parent not in file:
        return []
    # HDF5 lists by text, which puts 100000 before 99999.
    return [file[parent][key] for key in sorted(file[parent], key=int)]
