"""Where two runs of one model diverge; its fields are the JSON of `diff`, schema qdebug.diff/1."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from qdebug.metrics.tensor import Metrics
from qdebug.result import Hidden, Inline, MaybeText, ModelRef, Result, in_json
from qdebug.results.compare import GateVerdict
from qdebug.results.conditions import Checked
from qdebug.results.words import in_decibels
from qdebug.store.schema import Role
from qdebug.wording import counted

ROLE_WORDS = {"reference": "FP32", "candidate": "the simulation", "engine": "the engine"}
"""The roles of a run file, as sentences name them."""


@dataclass(frozen=True)
class DifferingRun:
    """One of the two runs.

    Attributes:
        path: its run file.
        backend: what ran the candidate.
        library: of its engine, such as "OpenVINO 2026.4.1"; where there is none, the simulation's.
        provider: of ONNX Runtime, where one was chosen.
        machine: architecture and system.
        versions: of the packages that decide results.
    """

    path: str
    backend: str
    library: str
    provider: MaybeText
    machine: str
    versions: Mapping[str, str]

    @property
    def description(self) -> str:
        """What ran it, for people."""
        provider = f", {self.provider}" if self.provider else ""
        return f"{self.backend} ({self.library}{provider}) on {self.machine}"


@dataclass(frozen=True)
class TensorDifference:
    """How far a tensor of the second run is from that of the first.

    Attributes:
        tensor, layer: its name, and the layer that computes it; null for none.
        metrics: of the second run against the first.
        quantization_sqnr_db: of the first run's tensor against its own FP32 reference, on the same
            samples; null in FP32, and where that was not kept.
        diverges: the difference is more than rounding explains; see `commands.diff`.
    """

    tensor: str
    layer: str | None
    metrics: Inline[Metrics]
    quantization_sqnr_db: float | None
    diverges: bool

    @property
    def where(self) -> str:
        """The layer, or the tensor where no layer computes it."""
        return self.layer or self.tensor


@dataclass(frozen=True)
class RoleDifference:
    """The tensors that both runs kept of one role, or the engine's of one run beside the other's
    simulation.

    Attributes:
        role: of the first run: reference (FP32), candidate (the simulation) or engine.
        second_role: of the second run; another one where only one of them ran an engine.
        tensors: in execution order.
        outputs: names of those that are outputs of the model.
        inputs_sqnr_db: of the tensors that the first one to diverge is computed from, the lowest;
            null where none diverges, and where none of them was kept.
    """

    role: Role
    second_role: Role
    tensors: tuple[TensorDifference, ...]
    outputs: tuple[str, ...]
    inputs_sqnr_db: float | None

    @property
    @in_json
    def first(self) -> str | None:
        """The first tensor that diverges; null where none does."""
        found = self.first_to_diverge
        return found.tensor if found else None

    @property
    def words(self) -> str:
        """What is compared, as sentences name it."""
        first, second = ROLE_WORDS[self.role], ROLE_WORDS[self.second_role]
        return first if first == second else f"{second} against {first} of the first run"

    @property
    def first_to_diverge(self) -> TensorDifference | None:
        """The first tensor, in execution order, that is further apart than rounding explains."""
        return next((t for t in self.tensors if t.diverges), None)

    @property
    def is_equal(self) -> bool:
        """Bit for bit."""
        return all(t.metrics.sqnr_db == math.inf for t in self.tensors)

    @property
    def lowest_db(self) -> float:
        """The lowest SQNR of all tensors; NaN where one run alone holds NaN or Inf."""
        values = [t.metrics.sqnr_db for t in self.tensors]
        return math.nan if any(map(math.isnan, values)) else min(values)


@dataclass(frozen=True, repr=False)
class DiffResult(Result):
    """Where two runs of one model diverge.

    Attributes:
        runs: the first, against which differences are measured, and the second.
        samples: the numbers of those whose activations both keep.
        same_plan: both ran the same precision plan.
    """

    SCHEMA: ClassVar[str] = "qdebug.diff/1"
    ROWS: ClassVar[str] = "roles"

    model: ModelRef
    runs: tuple[DifferingRun, DifferingRun]
    samples: tuple[int, ...]
    same_plan: bool
    roles: tuple[RoleDifference, ...]
    conditions: Hidden[tuple[Checked, ...]] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """The gate held; True without one."""
        return all(c.passed for c in self.conditions)

    @property
    @in_json
    def verdict(self) -> GateVerdict:
        """Whether the gate held."""
        return GateVerdict(self.passed, self.conditions)

    def headline(self) -> str:
        """Where they diverge first, in FP32, in the simulation or in the engine."""
        on = f"on {counted(len(self.samples), 'sample')}"
        for role in self.roles:
            first = role.first_to_diverge
            if first is not None:
                apart = in_decibels(first.metrics.sqnr_db)
                return f"{ROLE_WORDS[role.role]} diverges at {first.where}: {apart} {on}"
        if all(role.is_equal for role in self.roles):
            return f"the runs are equal bit for bit {on}"
        return f"the runs differ by rounding only {on}"
