"""Several engines of one model, each with other tensors as outputs, as one Session."""

from __future__ import annotations

from collections.abc import Sequence

from qdebug.run.tensorrt.session import EngineSession
from qdebug.types import Array, Feeds, Skipped, Tensors


class GroupedSession:
    """See Session. The model's own outputs are those of the first engine."""

    def __init__(self, sessions: Sequence[EngineSession], skipped: Sequence[Skipped] = ()) -> None:
        """Becomes the owner of `sessions`, of which there is at least one."""
        self._sessions = tuple(sessions)
        self.dtypes = {n: t for s in reversed(sessions) for n, t in s.dtypes.items()}
        every = [*skipped, *(x for s in sessions for x in s.skipped)]
        self.skipped = tuple({x.tensor: x for x in every}.values())

    def run(self, feeds: Feeds) -> Tensors:
        """See Session.run."""
        found: dict[str, Array] = {}
        for session in self._sessions:
            found = {**session.run(feeds), **found}
        return found

    def close(self) -> None:
        """See Session.close."""
        for session in self._sessions:
            session.close()
