"""Several engines of one model, each with other tensors as outputs, as one Session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

from qdebug.run.tensorrt.execute.cuda import DeviceMemoryError
from qdebug.run.tensorrt.execute.session import EngineSession
from qdebug.types import Array, Feeds, Skipped, Tensors

ResultT = TypeVar("ResultT")


def with_room(work: Callable[[], ResultT], others: Sequence[EngineSession]) -> ResultT:
    """What `work` gives; where the GPU has no memory for it, without what `others` hold.

    Raises:
        DeviceMemoryError: that does not suffice.
    """
    try:
        return work()
    except DeviceMemoryError:
        for session in others:
            session.release()
    return work()


class GroupedSession:
    """See Session. The model's own outputs are those of the first engine.

    Its engines run one at a time, so that each may take the memory of the others.
    """

    def __init__(self, sessions: Sequence[EngineSession], skipped: Sequence[Skipped] = ()) -> None:
        """Becomes the owner of `sessions`, of which there is at least one."""
        self._sessions = tuple(sessions)
        self._turn = threading.Lock()
        self.dtypes = {n: t for s in reversed(sessions) for n, t in s.dtypes.items()}
        every = [*skipped, *(x for s in sessions for x in s.skipped)]
        self.skipped = tuple({x.tensor: x for x in every}.values())

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        found: dict[str, Array] = {}
        with self._turn if len(self._sessions) > 1 else nullcontext():
            for session in self._sessions:
                others = [s for s in self._sessions if s is not session]
                found = {**with_room(partial(session.run, feeds), others), **found}
        return found

    def close(self) -> None:
        """See Session.close."""
        for session in self._sessions:
            session.close()
