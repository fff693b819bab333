"""What every stage of one command needs: the settings, the runtime, and whom to tell."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.config import CompareSettings
from qdebug.pipeline.sizing import Parallelism
from qdebug.run.base import Backend
from qdebug.types import ProgressCallback


@dataclass(frozen=True)
class Context:
    """The surroundings of one run."""

    settings: CompareSettings
    backend: Backend
    parallel: Parallelism
    progress: ProgressCallback
