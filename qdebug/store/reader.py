"""Reads a run file. Nothing is read before it is asked for, and one row at a time.

Safe to use from several threads: h5py serialises its calls with a global lock, which it holds
without the interpreter lock while HDF5 reads.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from qdebug.errors import StoreError
from qdebug.inputfiles import check_file
from qdebug.network.samples.readers.hdf5 import INSTALL_FILTER, missing_filter, own_item, own_values
from qdebug.store import schema
from qdebug.store.schema import RangeRecord, Role
from qdebug.types import Array
from qdebug.wording import option


@dataclass(frozen=True)
class _Stored:
    """One tensor of one role: its group and dataset, and the rows to find elsewhere or not at
    all."""

    group: Any
    dataset: Any
    ragged: frozenset[int]
    missing: frozenset[int]


class RunReader(contextlib.AbstractContextManager["RunReader"]):
    """A context manager over a complete run file.

    A run file never changes once it has its name, so it is opened without a lock; one that is
    replaced meanwhile stays readable here as it was. One that is changed in its place is refused:
    HDF5 gives zeros for what was cut off.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file.

        Raises:
            StoreError: no such file, not an HDF5 file, not a run file of this version, or one
                that was never finished.
        """
        self.path = Path(path)
        self._file = _open_hdf5(self.path)
        self._roles: dict[Role, dict[str, _Stored]] = {}
        try:
            self._stamp = self._stamp_now()
            with self._guard("the head of the file"):
                _check_head(self.path, self._file.attrs)
            with self._guard("the list of samples"):
                kept = own_values(self._file, schema.SAMPLES).tolist()
                self._row_of = {int(sample): row for row, sample in enumerate(kept) if sample >= 0}
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called again."""
        self._roles.clear()
        self.__dict__.pop("_range_groups", None)
        self._file.close()

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples whose activations are kept, ascending."""
        return tuple(sorted(self._row_of))

    @property
    def dtype(self) -> str:
        """How floats are stored: "float32" as they were captured, "float16" narrowed."""
        return str(self._file.attrs.get(schema.ATTR_DTYPE, ""))

    @cached_property
    def manifest(self) -> Mapping[str, object]:
        """Hashes, versions, device, flags and seed of the run."""
        with self._guard("the manifest"):
            return _mapping(json.loads(self._file.attrs[schema.ATTR_MANIFEST]))

    @cached_property
    def plan_text(self) -> str:
        """The precision plan, YAML; empty when the run had none."""
        with self._guard("'plan'"):
            return self._text(schema.PLAN)

    @cached_property
    def network_text(self) -> str:
        """The network without its weights, JSON; empty where an earlier version wrote the file."""
        with self._guard("the network"):
            return self._text(schema.NETWORK) if schema.NETWORK in self._file else ""

    @cached_property
    def shown(self) -> list[dict[str, Any]]:
        """The samples that lose most by the task, as results.shown_samples describes them; none
        where the metric names none, and where an earlier version wrote the file."""
        with self._guard("the worst samples"):
            text = self._text(schema.SHOWN) if schema.SHOWN in self._file else "[]"
            return list(map(_mapping, json.loads(text)))

    @cached_property
    def results(self) -> dict[str, Any]:
        """The result of the comparison."""
        with self._guard("the results"):
            return _mapping(json.loads(self._text(schema.RESULTS)))

    def tensors(self, role: Role) -> tuple[str, ...]:
        """The names of the tensors that were captured in a role, in the order of capture."""
        return tuple(self._of(role))

    def samples_of(self, role: Role, tensor: str) -> tuple[int, ...]:
        """The samples that a tensor is kept of in a role, ascending; none where it is not.

        Raises:
            StoreError: the file is damaged.
        """
        stored = self._of(role).get(tensor)
        rows = self._row_of if stored else {}
        return tuple(s for s in sorted(rows) if stored and rows[s] not in stored.missing)

    def read(self, role: Role, tensor: str, sample: int) -> Array:
        """One tensor of one sample, of the shape it was put with.

        Raises:
            StoreError: the sample or tensor was not kept, or the file is damaged.
        """
        row, stored = self._row(sample), self._of(role).get(tensor)
        if stored is None:
            raise self._unknown(role, tensor)
        if row in stored.missing:
            raise StoreError(
                f"{self.path}: the {role} has no tensor '{tensor}' for sample {sample}.",
                "It was not captured for this sample; see `skipped` in the results.",
                code="QD-STORE-NO-TENSOR",
            )
        with self._guard(f"tensor '{tensor}'"):
            if row in stored.ragged:
                apart = own_item(stored.group, schema.ragged_group(role))
                return np.asarray(own_values(apart, str(row)))
            return np.asarray(stored.dataset[row])

    def ranges(self) -> Mapping[str, RangeRecord]:
        """The calibration record of each tensor, by name; empty when there was no calibration.

        Raises:
            StoreError: the file is damaged.
        """
        return {name: self.range_record(name) for name in self.range_names}

    @property
    def range_names(self) -> tuple[str, ...]:
        """The tensors that there is a calibration record of."""
        return tuple(self._range_groups)

    def range_record(self, tensor: str) -> RangeRecord:
        """The calibration record of a tensor.

        Raises:
            KeyError: there is none.
            StoreError: the file is damaged.
        """
        group = self._range_groups[tensor]
        with self._guard("the ranges"):
            return schema.read_range_record(group)

    @cached_property
    def _range_groups(self) -> dict[str, Any]:
        with self._guard("the ranges"):
            return schema.named_groups(self._file, schema.RANGES)

    def _of(self, role: Role) -> dict[str, _Stored]:
        """The tensors of a role, opened once."""
        if role not in schema.ROLES:
            raise ValueError(f"no role {role!r}")
        if role not in self._roles:
            with self._guard("the tensors"):
                groups = schema.named_groups(self._file, schema.TENSORS)
                self._roles[role] = {
                    name: _opened(group, role, name)
                    for name, group in groups.items()
                    if role in group
                }
        return self._roles[role]

    def _row(self, sample: int) -> int:
        if not self._row_of:
            raise StoreError(
                f"{self.path}: holds no activations.",
                f"Compare again with `{option('keep', 'all')}` or `{option('keep', 'worst:8')}`.",
                code="QD-STORE-NOT-KEPT",
            )
        if sample not in self._row_of:
            near = min(self._row_of, key=lambda kept: (abs(kept - sample), kept))
            raise StoreError(
                f"{self.path}: the activations of sample {sample} were not kept;"
                f" the nearest kept sample is {near}.",
                f"Compare again with `{option('keep', 'all')}` to keep every sample.",
                code="QD-STORE-NOT-KEPT",
            )
        return self._row_of[sample]

    def _unknown(self, role: Role, tensor: str) -> StoreError:
        near = difflib.get_close_matches(tensor, self.tensors(role), n=1, cutoff=0.0)
        return StoreError(
            f"{self.path}: the {role} has no tensor '{tensor}'.",
            f"Did you mean '{near[0]}'?" if near else "The run kept no activations of this role.",
            code="QD-STORE-NO-TENSOR",
        )

    def _text(self, name: str) -> str:
        return bytes(own_values(self._file, name)).decode()

    def _stamp_now(self) -> tuple[int, int]:
        """Size and time of the last change of the file that is open here, whatever its name."""
        found = os.fstat(self._file.id.get_vfd_handle())
        return found.st_size, found.st_mtime_ns

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Guard the reading of `what`.

        Raises:
            StoreError: in place of what h5py and json raise over a damaged file; the file was
                changed meanwhile.
        """
        try:
            yield
        # Damaged JSON and damaged text are both kinds of ValueError; h5py raises the others where
        # there is something else than what was written.
        except (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise StoreError(
                f"{self.path}: {what} cannot be read: the file is damaged ({reason}).",
                "Copy the file again, or repeat the comparison.",
                code="QD-STORE-DAMAGED",
            ) from error
        finally:
            if self._stamp_now() != self._stamp:
                raise StoreError(
                    f"{self.path}: was changed while it was read.",
                    "Wait until the program that writes it has ended, and repeat the command.",
                    code="QD-STORE-CHANGED",
                )


def _mapping(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{type(found).__name__} in place of an object")
    return found


def _opened(group: Any, role: Role, tensor: str) -> _Stored:
    """A tensor in a role.

    Raises:
        StoreError: it needs a filter of HDF5 that is not installed.
        ValueError: its dataset has another form than was written.
    """
    dataset = own_item(group, role)
    written = group.attrs.get(schema.row_attribute(role))
    form = schema.row_form(dataset.dtype, dataset.shape[1:])
    if written not in (None, form):  # earlier versions wrote none
        raise ValueError(f"rows of '{tensor}' are {form}; {written} was written")
    if absent := missing_filter(dataset):
        raise StoreError(
            f"{dataset.file.filename}: compressed with the HDF5 filter {absent}, which is not"
            " installed.",
            INSTALL_FILTER,
            code="QD-STORE-FILTER",
        )
    ragged, missing = (
        frozenset(map(int, dataset.attrs.get(name, ())))
        for name in (schema.ATTR_RAGGED, schema.ATTR_MISSING)
    )
    return _Stored(group, dataset, ragged, missing)


def _open_hdf5(path: Path) -> Any:
    if not os.path.exists(path):  # noqa: PTH110 (Path raises where the name is too long)
        raise StoreError(
            f"{path}: no such file.",
            f"`qdebug compare` writes a run file where `{option('output')}` says.",
            code="QD-STORE-NOT-FOUND",
        )
    try:
        check_file(path)
        # Whole rows are read, each once: a chunk cache would only copy them.
        return h5py.File(path, "r", locking=False, rdcc_nbytes=0)
    except PermissionError as error:
        raise StoreError(
            f"{path}: permission denied.", f"Run `chmod +r {path}`.", code="QD-STORE-PERMISSION"
        ) from error
    except OSError as error:
        raise StoreError(
            f"{path}: not a qdebug run: not an HDF5 file, or truncated.",
            "Give the run file that `qdebug compare` wrote, or copy it again.",
            code="QD-STORE-NOT-A-RUN",
        ) from error


def _check_head(path: Path, attrs: Any) -> None:
    written = attrs.get(schema.ATTR_SCHEMA)
    if written is None:
        raise StoreError(
            f"{path}: an HDF5 file, but not a qdebug run.",
            "Give the run file that `qdebug compare` wrote.",
            code="QD-STORE-NOT-A-RUN",
        )
    if written != schema.SCHEMA:
        raise StoreError(
            f"{path}: has the schema {written!r}; this qdebug reads {schema.SCHEMA!r}.",
            "Use the version of qdebug that wrote it, or repeat the comparison.",
            code="QD-STORE-VERSION",
        )
    if not attrs.get(schema.ATTR_COMPLETE, False):
        raise StoreError(
            f"{path}: incomplete: the run that wrote it did not finish.",
            "Repeat the comparison.",
            code="QD-STORE-INCOMPLETE",
        )
