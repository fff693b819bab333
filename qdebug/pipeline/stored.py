"""Activations that candidates of one search have in common: the next one starts behind them.

Candidates of a search differ little: most have the first layers, raised or not, in common with one
that ran before. Where a few activations cross, they are kept, as many as fit a limit; a candidate
is run from the last place that is known. Its results are the same to the bit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from qdebug.run.ort import OrtSession
from qdebug.run.ort_fast.assemble import Assembled
from qdebug.run.ort_fast.cuts import Cut
from qdebug.run.ort_fast.session import CandidateSessions
from qdebug.types import Feeds, Precision, Tensors

LIMIT_BYTES = 512 << 20
"""What is kept, and what running candidates gather to be kept; the oldest go first."""
_LARGEST = 1 / 4
"""A place at which more than this part of the limit crosses is not used any more."""


@dataclass
class _Crossing:
    """The tensors that cross a cut, by number of the batch."""

    tensors: dict[int, Tensors] = field(default_factory=dict)
    size: int = 0


class StoredActivations:
    """Opens candidates of one base plan, for samples that are always the same; from several threads
    if need be.

    Attributes:
        size: what is kept or gathered now, in bytes: never more than the limit.
        resumed: how many candidates did not start at the inputs.
    """

    def __init__(self, sessions: CandidateSessions, limit: int = LIMIT_BYTES) -> None:
        """`limit` is how much is kept, in bytes."""
        self._sessions = sessions
        self._limit = limit
        self._known: OrderedDict[bytes, _Crossing] = OrderedDict()
        self.size = self.resumed = 0
        self._too_large: set[int] = set()
        self._lock = threading.Lock()

    def open(self, precisions: Mapping[str, Precision]) -> Resumed:
        """A session of the model in `precisions`, by layer, from the last place that is known.

        Raises:
            ModelError: ONNX Runtime does not take the model.
            BackendError: ONNX Runtime failed.
        """
        candidate = self._sessions.assemble(precisions)
        start, known = self._last_known(candidate)
        behind = [c for c in candidate.cuts if start is None or c.place > start.place]
        with self._lock:
            new = [c for c in behind if c.place not in self._too_large]
        session = self._sessions.open_part(candidate, start, new)
        return Resumed(self, session, known.tensors, {c: list(candidate.crossing(c)) for c in new})

    def reserve(self, cut: Cut, crossing: int, more: int) -> bool:
        """Room for `more` bytes of the now `crossing` ones that cross `cut`, at the cost of the
        oldest. False where there is none; a cut that takes too much is not used any more."""
        with self._lock:
            if crossing > self._limit * _LARGEST:
                self._too_large.add(cut.place)
                return False
            while self._known and self.size + more > self._limit:
                self.size -= self._known.popitem(last=False)[1].size
            if self.size + more > self._limit:
                return False
            self.size += more
            return True

    def release(self, size: int) -> None:
        """Give back what was reserved."""
        with self._lock:
            self.size -= size

    def add(self, found: Mapping[bytes, _Crossing]) -> None:
        """Keep what crossed the cuts with these keys: it has been reserved."""
        with self._lock:
            for key, crossing in found.items():
                if key in self._known:
                    self.size -= self._known.pop(key).size
                self._known[key] = crossing

    def _last_known(self, candidate: Assembled) -> tuple[Cut | None, _Crossing]:
        with self._lock:
            for cut in reversed(candidate.cuts):
                known = self._known.get(cut.key)
                names = candidate.crossing(cut).keys()
                if known and all(names <= tensors.keys() for tensors in known.tensors.values()):
                    self._known.move_to_end(cut.key)
                    self.resumed += 1
                    return cut, known
        return None, _Crossing()


class Resumed:
    """A candidate that starts where it is known. What crosses its further places is kept."""

    def __init__(
        self,
        store: StoredActivations,
        session: OrtSession,
        known: Mapping[int, Tensors],
        new: Mapping[Cut, Sequence[str]],
    ) -> None:
        """`known` are the tensors to start from, by batch; `new` those to keep, by cut."""
        self._store = store
        self._session = session
        self._known = known
        self._new = dict(new)
        self._found = {cut: _Crossing() for cut in new}
        self._lock = threading.Lock()

    def run(self, number: int, feeds: Feeds) -> Tensors:
        """The outputs for the batch of that number."""
        known = self._known.get(number, {})
        found = self._session.run({**feeds, **known})
        with self._lock:
            for cut, names in list(self._new.items()):
                tensors = {n: known[n] if n in known else found[n] for n in names}
                crossing, more = self._found[cut], sum(a.nbytes for a in tensors.values())
                if self._store.reserve(cut, crossing.size + more, more):
                    crossing.tensors[number] = tensors
                    crossing.size += more
                else:
                    self._store.release(crossing.size)
                    del self._new[cut], self._found[cut]
        return found

    def keep(self) -> None:
        """Every batch was run: what was found may be used."""
        self._store.add({cut.key: crossing for cut, crossing in self._found.items()})
        self._found = {}

    def close(self) -> None:
        """Let go of the session, and of what was not to be kept."""
        self._store.release(sum(crossing.size for crossing in self._found.values()))
        self._found = {}
        self._session.close()
