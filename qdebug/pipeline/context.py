"""What every stage of a command needs beside its settings: the runtime, and whom to tell."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.pipeline.sizing import Parallelism
from qdebug.run.base import Backend
from qdebug.types import ProgressCallback


@dataclass(frozen=True)
class Context:
    """The surroundings of one run. `batch_size` is None where it may be chosen."""

    backend: Backend
    parallel: Parallelism
    progress: ProgressCallback
    batch_size: int | None = None
