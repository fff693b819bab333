"""A time after which nothing is begun: how a time limit reaches what takes long."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from qdebug.backends.base import Backend, Session
from qdebug.types import Feeds, Skipped, Tensors


class OutOfTimeError(Exception):
    """The time is over before all is done. None of qdebug's own errors: no model is refused
    because of it.

    Attributes:
        stage: what was being done, as Progress has it; "" where that does not matter.
    """

    def __init__(self, stage: str = "") -> None:
        super().__init__(stage)
        self.stage = stage


def check_time(ends_at: float, stage: str = "") -> None:
    """Nothing is begun after `ends_at`, on the clock of `time.monotonic`.

    Raises:
        OutOfTimeError: it is later.
    """
    if time.monotonic() >= ends_at:
        raise OutOfTimeError(stage)


@dataclass(frozen=True)
class TimedBackend:
    """A backend that neither opens nor executes anything after `ends_at`. See Backend."""

    backend: Backend
    ends_at: float

    @property
    def name(self) -> str:
        """See Backend."""
        return self.backend.name

    @property
    def results_key(self) -> str:
        """See run.variant.Repeatable; that of `backend`, if it has one."""
        key: str = self.backend.results_key  # type: ignore[attr-defined]
        return key

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> TimedSession:
        """As Backend.open.

        Raises:
            OutOfTimeError: the time is over.
        """
        check_time(self.ends_at)
        return TimedSession(self.backend.open(proto, capture), self.ends_at)


@dataclass(frozen=True)
class TimedSession:
    """A session of it. See Session."""

    session: Session
    ends_at: float

    @property
    def dtypes(self) -> Mapping[str, np.dtype[np.generic]]:
        """See Session."""
        return self.session.dtypes

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """See Session."""
        return self.session.skipped

    def run(self, feeds: Feeds) -> Tensors:
        """As Session.run.

        Raises:
            OutOfTimeError: the time is over.
        """
        check_time(self.ends_at)
        return self.session.run(feeds)

    def close(self) -> None:
        """See Session."""
        self.session.close()
