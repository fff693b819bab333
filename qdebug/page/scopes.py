"""Which blocks of a network a node is in: from the names, or from what repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SEPARATORS = ("/", "::", ".")
_FEWEST_REPEATS = 3
_SHORTEST_PERIOD = 2

Scope = tuple[str, ...]
Ints = npt.NDArray[np.int64]


def scopes_of(
    names: Sequence[str], ops: Sequence[str], reads: Sequence[Sequence[int]]
) -> list[Scope]:
    """The blocks that each node is in, outermost first.

    Args:
        names: of the nodes, in execution order.
        ops: their types.
        reads: the nodes that each one reads, as positions.
    """
    return named_scopes(names) or repeated_scopes(ops, reads)


def named_scopes(names: Sequence[str]) -> list[Scope] | None:
    """The scopes that names spell, such as ("blocks", "conv1") for "/blocks/conv1/Conv"; None
    where fewer than half of them spell any."""
    for separator in _SEPARATORS:
        parts = [[part for part in name.split(separator) if part] for name in names]
        if 2 * sum(len(part) > 1 for part in parts) > len(names):
            return [tuple(part[:-1]) for part in parts]
    return None


@dataclass(frozen=True)
class Repeats:
    """A sequence that occurs several times in a row.

    Attributes:
        start: of the first. period: its length. count: how often it occurs.
    """

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """The end of the last."""
        return self.start + self.period * self.count


def repeated_scopes(ops: Sequence[str], reads: Sequence[Sequence[int]]) -> list[Scope]:
    """The scopes of nodes whose names tell nothing: blocks of operators that occur at least three
    times in a row. Of several such stretches each is a stage.

    Args:
        ops: types of the nodes, in execution order.
        reads: the nodes that each one reads, as positions.
    """
    _, codes = np.unique(np.asarray(ops, dtype=str), return_inverse=True)
    found = sorted(
        _repeats(np.asarray(codes, np.int64), _crossing(len(ops), reads), 0, len(ops)),
        key=lambda repeats: repeats.start,
    )
    scopes: list[Scope] = [()] * len(ops)
    for number, repeats in enumerate(found, start=1):
        outer = () if len(found) == 1 else (f"stage {number} of {len(found)}",)
        for node in range(repeats.start, repeats.stop):
            block = (node - repeats.start) // repeats.period + 1
            scopes[node] = (*outer, f"block {block} of {repeats.count}")
    return scopes


def _crossing(count: int, reads: Sequence[Sequence[int]]) -> Ints:
    """How many nodes before each place are read behind it, int64 [nodes + 1]."""
    last = {source: reader for reader, sources in enumerate(reads) for source in sources}
    change = np.zeros(count + 2, np.int64)
    for source, reader in last.items():
        change[source + 1] += 1
        change[reader + 1] -= 1
    found: Ints = np.cumsum(change)[: count + 1]
    return found


def _repeats(codes: Ints, crossing: Ints, start: int, stop: int) -> Iterator[Repeats]:
    """The stretches of blocks within [start, stop): the longest, then those beside it."""
    waiting = [(start, stop)]
    while waiting:
        low, high = waiting.pop()
        best = _longest(codes, low, high)
        if best is None:
            continue
        placed = _placed(best, crossing)
        yield placed
        waiting += [(low, placed.start), (placed.stop, high)]


def _longest(codes: Ints, low: int, high: int) -> _Stretch | None:
    """The longest stretch of repeats within [low, high); of the shortest period, where several
    cover as much."""
    part = codes[low:high]
    best, covered = None, 0
    for period in range(_SHORTEST_PERIOD, len(part) // _FEWEST_REPEATS + 1):
        same = np.concatenate([[False], part[:-period] == part[period:], [False]])
        edges = np.flatnonzero(same[1:] != same[:-1])
        begins, ends = edges[::2], edges[1::2]
        if not len(begins):
            continue
        which = int(np.argmax(ends - begins))
        size = int(ends[which] - begins[which]) + period
        count = size // period
        if count >= _FEWEST_REPEATS and count * period > covered:
            best, covered = _Stretch(low + int(begins[which]), size, period), count * period
    return best


@dataclass(frozen=True)
class _Stretch:
    """`size` nodes from `start` on, which repeat with a period, whole times or not."""

    start: int
    size: int
    period: int


def _placed(stretch: _Stretch, crossing: Ints) -> Repeats:
    """The blocks of a stretch, which begin where the fewest tensors cross their bounds."""
    count, spare = divmod(stretch.size, stretch.period)
    bounds = np.arange(count + 1) * stretch.period + stretch.start
    cost = [int(crossing[bounds + shift].sum()) for shift in range(spare + 1)]
    return Repeats(stretch.start + int(np.argmin(cost)), stretch.period, count)
