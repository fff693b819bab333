"""A run file as Python callers read it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qdebug.errors import StoreError
from qdebug.inmemory import InMemory
from qdebug.inputfiles import HDF5_MAGIC, open_file
from qdebug.plan.plan import PrecisionPlan
from qdebug.plan.planfile import parse_plan
from qdebug.results.compare import CompareResult
from qdebug.store.reader import RunReader
from qdebug.store.schema import ROLES, Role
from qdebug.types import Array

_SUFFIXES = (".h5", ".hdf5")


def is_run(source: str) -> bool:
    """Whether it is a run file, or is meant to be one."""
    return not isinstance(source, InMemory) and (is_run_file(source) or source.endswith(_SUFFIXES))


def is_run_file(path: str) -> bool:
    """Whether `path` holds HDF5, or is the result of a run in memory."""
    if isinstance(path, InMemory):
        return isinstance(path.value, CompareResult)
    try:
        with open_file(path) as file:
            return file.read(len(HDF5_MAGIC)) == HDF5_MAGIC
    except OSError:
        return False


class Run(contextlib.AbstractContextManager["Run"]):
    """A run file: the result, the plan and the activations of a comparison.

    Functions that take the path of a run file take a `Run` as well, while it is open or not.
    Everything is read when it is asked for, arrays one sample at a time. A context manager; without
    `with`, the file closes when nothing refers to it any more.

        with qdebug.load_run("run.h5") as run:
            worst = run.result.layers[0]
            tensor = run.tensors[worst.tensor]
            for sample in tensor.candidate:
                print(sample, abs(tensor.candidate[sample] - tensor.reference[sample]).max())
    """

    def __init__(self, path: str | Path) -> None:
        """Open the file.

        Raises:
            StoreError: no such file, or not a run file that is whole.
        """
        self._reader = RunReader(path)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Run {self.path}: {self.result.model.name} in {self.result.precision}, "
            f"{self.result.samples} samples, activations of {len(self.samples)}>"
        )

    def __fspath__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        """The run as a notebook shows it: as its result."""
        return self.result._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """See CompareResult.to_dict: the JSON in the file.

        Raises:
            StoreError: the file is damaged.
        """
        return self.result.to_dict()

    def to_pandas(self) -> Any:
        """See CompareResult.to_pandas: the layers, worst first.

        Raises:
            UsageError: pandas is not installed (QD-USAGE-PANDAS).
            StoreError: the file is damaged.
        """
        return self.result.to_pandas()

    def close(self) -> None:
        """Close the file; may be called again."""
        self._reader.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._reader.path

    @cached_property
    def result(self) -> CompareResult:
        """What `compare` found.

        Raises:
            StoreError: the file is damaged, or of a version of qdebug that wrote something else.
        """
        stored = self._reader.results
        try:
            return replace(CompareResult.from_dict(stored), run_file=self.path)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(
                f"{self.path}: the results cannot be read: {error}",
                "Run compare again.",
                code="QD-STORE-DAMAGED",
            ) from error

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Hashes of model and samples, versions, the device and the settings of the run.

        Raises:
            StoreError: the file is damaged.
        """
        return self._reader.manifest

    @cached_property
    def plan(self) -> PrecisionPlan | None:
        """The precision plan that was run, with its ranges; None where the model carries Q/DQ.

        Raises:
            StoreError: the file is damaged.
            PlanError: another version of qdebug wrote the plan.
        """
        text = self._reader.plan_text
        return parse_plan(text, f"{self.path}: plan") if text else None

    @property
    def samples(self) -> tuple[int, ...]:
        """The numbers of the samples whose activations are kept."""
        return self._reader.samples

    @cached_property
    def tensors(self) -> Mapping[str, RunTensor]:
        """The tensors whose activations are kept, by name, in the order of execution.

        Raises:
            StoreError: the file is damaged.
        """
        kept = dict.fromkeys(name for role in ROLES for name in self._reader.tensors(role))
        computed = [tensor.name for tensor in self.result.tensors if tensor.name in kept]
        names = [*(name for name in kept if name not in set(computed)), *computed]
        return {name: RunTensor(name, self._reader) for name in names}


@dataclass(frozen=True, repr=False)
class RunTensor:
    """One tensor of a run."""

    name: str
    _reader: RunReader

    @property
    def reference(self) -> Activations:
        """As the FP32 reference computes it."""
        return Activations(self._reader, "reference", self.name)

    @property
    def candidate(self) -> Activations:
        """As the simulation of the quantized model computes it."""
        return Activations(self._reader, "candidate", self.name)

    @property
    def engine(self) -> Activations:
        """As an engine computes it; without samples where none was run."""
        return Activations(self._reader, "engine", self.name)

    def __repr__(self) -> str:
        roles = [role for role in ROLES if getattr(self, role)]
        return f"<RunTensor {self.name}: {', '.join(roles) or 'nothing kept'}>"


@dataclass(frozen=True, repr=False)
class Activations:
    """The arrays of one tensor, by the number of the sample; read when asked for.

    An array has the shape that the model gives the tensor for a batch of one sample.
    """

    _reader: RunReader
    role: Role
    tensor: str

    def __getitem__(self, sample: int) -> Array:
        """The array of one sample.

        Raises:
            StoreError: it was not kept, or the file is damaged.
        """
        return self._reader.read(self.role, self.tensor, sample)

    def __iter__(self) -> Iterator[int]:
        return iter(self._reader.samples_of(self.role, self.tensor))

    def __len__(self) -> int:
        return len(self._reader.samples_of(self.role, self.tensor))

    def __contains__(self, sample: object) -> bool:
        return sample in self._reader.samples_of(self.role, self.tensor)

    def __repr__(self) -> str:
        return f"<Activations {self.tensor}, {self.role}: samples {list(self)}>"
