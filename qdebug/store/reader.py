"""Reads a run file. Nothing is read before it is asked for, and one row at a time.

Safe to use from several threads: h5py serialises its calls with a global lock, which it holds
without the interpreter lock while HDF5 reads.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from qdebug.store.schema import RangeRecord, Role, numbered_groups, read_range_record
from qdebug.types import Array
from qdebug.wording import option


@dataclass(frozen=True)
class _Stored:
    """One tensor of one role: its dataset, and the rows to find elsewhere or not at all."""

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
        self._file = _open_run(self.path)
        self._descriptor: int = self._file.id.get_vfd_handle()
        self._stamp = self._stamp_now()
        try:
            with _damage(self.path, "the list of samples"):
                kept = [int(s) for s in own_values(self._file, schema.SAMPLES).tolist()]
        except StoreError:
            self._file.close()
            raise
        self._row_of = {sample: row for row, sample in enumerate(kept) if sample >= 0}
        self._stored: dict[tuple[Role, str], _Stored | None] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called again."""
        self._stored.clear()
        for cached in ("_groups", "_range_groups"):
            self.__dict__.pop(cached, None)
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
        with _damage(self.path, "the manifest"):
            return _mapping(json.loads(self._file.attrs[schema.ATTR_MANIFEST]))

    @cached_property
    def plan_text(self) -> str:
        """The precision plan, YAML; empty when the run had none."""
        return self._text(schema.PLAN)

    @cached_property
    def network_text(self) -> str:
        """The network without its weights, JSON; empty where an earlier version wrote the file."""
        if schema.NETWORK not in self._file:
            return ""
        with _damage(self.path, "the network"):
            return bytes(own_values(self._file, schema.NETWORK)).decode()

    @cached_property
    def shown(self) -> list[dict[str, Any]]:
        """The samples that lose most by the task, as results.shown_samples describes them; none
        where the metric names none, and where an earlier version wrote the file."""
        if schema.SHOWN not in self._file:
            return []
        with _damage(self.path, "the worst samples"):
            return list(map(_mapping, json.loads(bytes(own_values(self._file, schema.SHOWN)))))

    @cached_property
    def results(self) -> dict[str, Any]:
        """The result of the comparison."""
        with _damage(self.path, "the results"):
            return _mapping(json.loads(self._text(schema.RESULTS)))

    def tensors(self, role: Role) -> tuple[str, ...]:
        """The names of the tensors that were captured in a role, in the order of capture."""
        _check_role(role)
        with _damage(self.path, "the tensors"):
            return tuple(name for name in self._groups if self._find(role, name) is not None)

    def samples_of(self, role: Role, tensor: str) -> tuple[int, ...]:
        """The samples that a tensor is kept of in a role, ascending; none where it is not.

        Raises:
            StoreError: the file is damaged.
        """
        _check_role(role)
        with _damage(self.path, f"tensor '{tensor}'"):
            stored = self._find(role, tensor)
        if stored is None:
            return ()
        return tuple(s for s in self.samples if self._row_of[s] not in stored.missing)

    def read(self, role: Role, tensor: str, sample: int) -> Array:
        """One tensor of one sample, of the shape it was put with.

        Raises:
            StoreError: the sample or tensor was not kept, or the file is damaged.
        """
        return self.read_rows(role, sample, (tensor,))[tensor]

    def read_rows(self, role: Role, sample: int, tensors: Sequence[str]) -> dict[str, Array]:
        """Several tensors of one sample, by name; each of the shape it was put with.

        Raises:
            StoreError: the sample or one of the tensors was not kept, or the file is damaged.
        """
        _check_role(role)
        row = self._row(sample)
        found = {name: self._read(role, name, sample, row) for name in tensors}
        self._check_unchanged()
        return found

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
        with _damage(self.path, "the ranges"):
            record = read_range_record(group)
        self._check_unchanged()
        return record

    @cached_property
    def _range_groups(self) -> dict[str, Any]:
        with _damage(self.path, "the ranges"):
            groups = numbered_groups(self._file, schema.RANGES)
            return _named(groups)

    @cached_property
    def _groups(self) -> dict[str, Any]:
        with _damage(self.path, "the tensor names"):
            return _named(numbered_groups(self._file, schema.TENSORS))

    def _find(self, role: Role, tensor: str) -> _Stored | None:
        """The stored tensor, opened once; None when it was not captured in this role."""
        if (role, tensor) not in self._stored:
            group = self._groups.get(tensor)
            if group is None or role not in group:
                self._stored[role, tensor] = None
            else:
                dataset = own_item(group, role)
                _check_form(dataset, tensor, group.attrs.get(schema.row_attribute(role)))
                self._stored[role, tensor] = _describe(dataset)
        return self._stored[role, tensor]

    def _row(self, sample: int) -> int:
        row = self._row_of.get(sample)
        if row is None and not self._row_of:
            raise StoreError(
                f"{self.path}: holds no activations.",
                f"Compare again with `{option('keep', 'all')}` or `{option('keep', 'worst:8')}`.",
                code="QD-STORE-NOT-KEPT",
            )
        if row is None:
            near = min(self._row_of, key=lambda kept: (abs(kept - sample), kept))
            raise StoreError(
                f"{self.path}: the activations of sample {sample} were not kept;"
                f" the nearest kept sample is {near}.",
                f"Compare again with `{option('keep', 'all')}` to keep every sample.",
                code="QD-STORE-NOT-KEPT",
            )
        return row

    def _read(self, role: Role, tensor: str, sample: int, row: int) -> Array:
        with _damage(self.path, f"tensor '{tensor}'"):
            stored = self._find(role, tensor)
            if stored is None:
                raise self._unknown(role, tensor)
            if row in stored.missing:
                raise StoreError(
                    f"{self.path}: the {role} has no tensor '{tensor}' for sample {sample}.",
                    "It was not captured for this sample; see `skipped` in the results.",
                    code="QD-STORE-NO-TENSOR",
                )
            if row in stored.ragged:
                apart = own_item(self._groups[tensor], schema.ragged_group(role))
                return np.asarray(own_values(apart, str(row)))
            return np.asarray(stored.dataset[row])

    def _unknown(self, role: Role, tensor: str) -> StoreError:
        near = difflib.get_close_matches(tensor, self.tensors(role), n=1, cutoff=0.0)
        return StoreError(
            f"{self.path}: the {role} has no tensor '{tensor}'.",
            f"Did you mean '{near[0]}'?" if near else "The run kept no activations of this role.",
            code="QD-STORE-NO-TENSOR",
        )

    def _text(self, name: str) -> str:
        with _damage(self.path, f"'{name}'"):
            text: str = own_values(self._file, name).decode()
        self._check_unchanged()
        return text

    def _stamp_now(self) -> tuple[int, int]:
        """Size and time of the last change of the file that is open here, whatever its name."""
        found = os.fstat(self._descriptor)
        return found.st_size, found.st_mtime_ns

    def _check_unchanged(self) -> None:
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


def _named(groups: Iterable[Any]) -> dict[str, Any]:
    """Groups by the name that each carries."""
    found = {group.attrs[schema.ATTR_NAME]: group for group in groups}
    odd = next((name for name in found if not isinstance(name, str)), None)
    if odd is not None:
        raise TypeError(f"{odd!r} in place of a name")
    return found


def _check_role(role: Role) -> None:
    if role not in schema.ROLES:
        raise ValueError(f"no role {role!r}")


def _check_form(dataset: Any, tensor: str, written: object) -> None:
    """Compare a dataset with what was written, `row_form` of its rows; None: that is not known.

    Raises:
        ValueError: it is another one.
    """
    found = schema.row_form(dataset.dtype, dataset.shape[1:])
    if written is not None and found != written:
        raise ValueError(f"rows of '{tensor}' are {found}; {written} was written")


def _describe(dataset: Any) -> _Stored:
    if missing := missing_filter(dataset):
        raise StoreError(
            f"{dataset.file.filename}: compressed with the HDF5 filter {missing}, which is not"
            " installed.",
            INSTALL_FILTER,
            code="QD-STORE-FILTER",
        )
    ragged = dataset.attrs.get(schema.ATTR_RAGGED, ())
    missing = dataset.attrs.get(schema.ATTR_MISSING, ())
    return _Stored(dataset, frozenset(map(int, ragged)), frozenset(map(int, missing)))


def _open_run(path: Path) -> Any:
    """The h5py file of a complete run, open for reading.

    Raises:
        StoreError: no such file, not an HDF5 file, not a run file of this version, or one that
            was never finished.
    """
    file = _open_hdf5(path)
    try:
        with _damage(path, "the head of the file"):
            _check_head(path, file.attrs)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Guard the reading of `what`.

    Raises:
        StoreError: in place of what h5py and json raise over a damaged file.
    """
    try:
        yield
    # Damaged JSON and damaged text are both kinds of ValueError; h5py raises the others where
    # there is something else than what was written.
    except (OSError, LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StoreError(
            f"{path}: {what} cannot be read: the file is damaged ({reason}).",
            "Copy the file again, or repeat the comparison.",
            code="QD-STORE-DAMAGED",
        ) from error


def _open_hdf5(path: Path) -> Any:
    if not os.path.exists(path):  # noqa: PTH110 (Path raises where the name is too long)
        raise StoreError(
            f"{path}: no such file.",
            f"`qdebug compare` writes a run file where `{option('output')}` says.",
            code="QD-STORE-NOT-FOUND",
        )
    if path.is_dir():
        raise StoreError(
            f"{path}: is a directory.", "Give the run file itself.", code="QD-STORE-NOT-A-RUN"
        )
    try:
        # Whole rows are read, each once: a chunk cache would only copy them.
        check_file(path)
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
    found = attrs.get(schema.ATTR_SCHEMA)
    if found is None:
        raise StoreError(
            f"{path}: an HDF5 file, but not a qdebug run.",
            "Give the run file that `qdebug compare` wrote.",
            code="QD-STORE-NOT-A-RUN",
        )
    if found != schema.SCHEMA:
        raise StoreError(
            f"{path}: has the schema {found!r}; this qdebug reads {schema.SCHEMA!r}.",
            "Use the version of qdebug that wrote it, or repeat the comparison.",
            code="QD-STORE-VERSION",
        )
    if not attrs.get(schema.ATTR_COMPLETE, False):
        raise StoreError(
            f"{path}: incomplete: the run that wrote it did not finish.",
            "Repeat the comparison.",
            code="QD-STORE-INCOMPLETE",
        )
