"""Settings of `qdebug compare`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qdebug.config.candidate import CandidateSettings
from qdebug.config.resolve import MemoryBudget, Positive

StorageName = Literal["float32", "float16"]


@dataclass(frozen=True)
class CompareSettings(CandidateSettings):
    """Everything `qdebug compare` can be told, beside what it shares with others.

    Attributes:
        reference: an FP32 model to compare with, or a run file whose reference is reused.
        local_samples: about how many samples the local errors are measured on.
        memory_budget: bytes that captured tensors may take at a time.
        keep, keep_dtype: which activations the run file keeps, and as what.
        fail_on: gate conditions.
        output: the run file; None writes none.
        force: replace existing files.
        save_plan: write the plan that was run to this file.
    """

    reference: str | None = None
    local_samples: Positive = 16
    memory_budget: MemoryBudget = 2 << 30
    keep: str = "worst:2"
    keep_dtype: StorageName = "float32"
    fail_on: tuple[str, ...] = ()
    output: str | None = None
    force: bool = False
    save_plan: str | None = None
