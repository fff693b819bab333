"""A cache of network prefixes: a candidate resumes behind the layers it shares with earlier ones.

Candidates of a search differ little: most have their first layers, raised or not, in common with
one that ran before. At cut points, which few activations cross, these are cached, as many as fit a
limit, and the next candidate starts at the last cut point that is known. Its results are the same
to the bit. docs/validation/prefix-cache.md says what that saves.

Caching takes time too, on a tiny network as much as running it: the first candidate measures both,
which decides whether the others cache activations at all cut points, at some, or at none.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qdebug.backends.base import Session
from qdebug.backends.ort_fast.assemble import Assembled
from qdebug.backends.ort_fast.cut_points import CutPoint
from qdebug.backends.ort_fast.session import PartSessions
from qdebug.types import Array, Feeds, Tensors

DEFAULT_BYTES = 512 << 20
"""The default limit of the memory for cached activations."""
_LARGEST = 1 / 4
"""A place that more than this part of the limit crosses is no longer used."""
_DEAREST = 1 / 2
"""Where keeping at all places takes more than this part of a run, nothing is kept."""
_CHEAPEST = 1 / 16
"""A place where keeping takes less than this part of a run is kept in any case."""


@dataclass
class _Prefix:
    """What crosses a cut: by tensor, then by number of the batch."""

    cut: CutPoint
    tensors: dict[str, dict[int, Array]]
    size: int = 0


def stride_of(running: float, keeping: float) -> int | None:
    """Every how many places a candidate keeps what crosses: 1 is at all of them, None at none.

    With about 8 places evenly apart, a stride of s leaves keeping / s to do, and lets the next
    candidate compute half a stride again, running * s / 16. Their sum is least at
    s = 4 * sqrt(keeping / running).

    Args:
        running: seconds that the runtime takes for an execution from the inputs.
        keeping: seconds to keep what crosses all its places.
    """
    share = keeping / running
    return None if share > _DEAREST else max(1, math.ceil(4 * math.sqrt(share)))


class PrefixCache:
    """Opens candidates of one workshop, for samples that are always the same; from several threads
    if need be.

    Attributes:
        size: what is kept or gathered now, in bytes: never more than the limit.
        resumed: how many candidates did not start at the inputs.
        stride: every how many places candidates keep activations, None at none: see `stride_of`.
    """

    def __init__(self, sessions: PartSessions, limit: int = DEFAULT_BYTES) -> None:
        """`limit`, in bytes, is for what is kept and for what running candidates gather to be
        kept; the oldest go first."""
        self._sessions = sessions
        self._limit = limit
        self._known: OrderedDict[bytes, _Prefix] = OrderedDict()
        self.size = self.resumed = 0
        self.stride: int | None = 1
        self._measured = False
        self._cheap: frozenset[int] = frozenset()
        self._too_large: set[int] = set()
        self._lock = threading.Lock()

    def open(self, candidate: Assembled, *, keep: bool = True) -> ResumedSession:
        """A session of `candidate` from the last place that is known; `keep`: what crosses its
        further places is kept for others.

        Raises:
            ModelError: ONNX Runtime does not take the model.
            BackendError: ONNX Runtime failed.
        """
        known = self._last_known(candidate)
        start = known.cut if known else None
        behind = [c for c in candidate.cuts if start is None or c.place > start.place]
        with self._lock:
            kept = behind if keep else []
            new = [c for c in kept if self._keeps(c) and c.place not in self._too_large]
            measure = not self._measured
        session = self._sessions.open_part(candidate, start, new)
        found = [_Prefix(c, {name: {} for name in candidate.crossing(c)}) for c in new]
        return ResumedSession(self, session, known.tensors if known else {}, found, measure)

    def measured(self, running: float, keeping: Mapping[int, float]) -> None:
        """What an execution of the first candidate took, in seconds, and to keep what crosses each
        place; see `stride_of`."""
        cheap = {place for place, took in keeping.items() if took <= _CHEAPEST * running}
        with self._lock:
            if not self._measured:
                dear = sum(took for place, took in keeping.items() if place not in cheap)
                self.stride, self._measured = stride_of(running, dear), True
                self._cheap = frozenset(cheap)

    def reserve(self, crossing: _Prefix, more: int) -> bool:
        """Room for `more` bytes that cross a cut, at the cost of the oldest. False where there is
        none; a cut that takes too much is not used any more."""
        with self._lock:
            if crossing.size + more > self._limit * _LARGEST:
                self._too_large.add(crossing.cut.place)
                return False
            while self._known and self.size + more > self._limit:
                self.size -= self._known.popitem(last=False)[1].size
            if self.size + more > self._limit:
                return False
            self.size += more
            crossing.size += more
            return True

    def release(self, size: int) -> None:
        """Give back what was reserved."""
        with self._lock:
            self.size -= size

    def add(self, found: Iterable[_Prefix]) -> None:
        """Keep what crossed these cuts: it has been reserved."""
        with self._lock:
            for crossing in found:
                key = crossing.cut.key
                if not self._keeps(crossing.cut):
                    self.size -= crossing.size
                    continue
                if key in self._known:
                    self.size -= self._known.pop(key).size
                self._known[key] = crossing

    def _keeps(self, cut: CutPoint) -> bool:
        if cut.place in self._cheap:
            return True
        return self.stride is not None and cut.place % self.stride == self.stride // 2

    def _last_known(self, candidate: Assembled) -> _Prefix | None:
        with self._lock:
            for cut in reversed(candidate.cuts):
                known = self._known.get(cut.key)
                if known and candidate.crossing(cut).keys() <= known.tensors.keys():
                    self._known.move_to_end(cut.key)
                    self.resumed += 1
                    return replace(known, cut=cut)
        return None


class ResumedSession:
    """A candidate that starts where it is known. What crosses its further places is kept."""

    def __init__(
        self,
        store: PrefixCache,
        session: Session,
        known: Mapping[str, Mapping[int, Array]],
        new: Sequence[_Prefix],
        measure: bool,
    ) -> None:
        """`known` are the tensors to start from, by batch; `new` is to be filled and kept.
        `measure`: tell the store what that takes."""
        self._store = store
        self._session = session
        self._known = known
        self._new = list(new)
        self._measure = measure
        self._running = math.inf
        self._keeping: dict[int, float] = {}
        self._lock = threading.Lock()

    def run(self, number: int, feeds: Feeds) -> Tensors:
        """The outputs for the batch of that number."""
        known = {name: arrays[number] for name, arrays in self._known.items()}
        started = time.perf_counter()
        found = self._session.run({**feeds, **known})
        ran = time.perf_counter()
        if self._new:
            tensors = {**found, **known}
            with self._lock:
                self._new = [x for x in self._new if self._gather(x, number, tensors)]
                # The least of all executions: what else the machine did is not in it.
                self._running = min(self._running, ran - started)
        return found

    def _gather(self, crossing: _Prefix, number: int, tensors: Tensors) -> bool:
        """Whether there is room for what crosses a cut in that batch."""
        more, began = 0, time.perf_counter()
        for name, arrays in crossing.tensors.items():
            # The runtime's own array would keep all memory of its session from being freed.
            array = arrays[number] = tensors[name].copy()
            more += array.nbytes
        reserved = self._store.reserve(crossing, more)
        if not reserved:
            self._store.release(crossing.size)
        took, place = time.perf_counter() - began, crossing.cut.place
        self._keeping[place] = min(self._keeping.get(place, math.inf), took)
        return reserved

    def keep(self) -> None:
        """Every batch was run: what was found may be used."""
        if self._measure and self._new:
            self._store.measured(self._running, self._keeping)
        self._store.add(self._new)
        self._new = []

    def close(self) -> None:
        """Close the session, and drop what was not to be kept."""
        self._store.release(sum(crossing.size for crossing in self._new))
        self._new = []
        self._session.close()
