"""Which blocks of a network a node is in: from the names, or from what repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

_SEPARATORS = ("/", "::", ".")
_FEWEST_REPEATS = 3
_SHORTEST_PERIOD = 3
"""Blocks of two, a convolution and its activation, would show nothing."""

Scope = tuple[str, ...]
Ints = npt.NDArray[np.int64]


def scopes_of(
    names: Sequence[str],
    tensors: Sequence[str],
    kinds: Sequence[str],
    reads: Sequence[Sequence[int]],
) -> list[Scope]:
    """The blocks that each node is in, outermost first.

    Args:
        names: of the nodes, in execution order.
        tensors: the first that each one computes.
        kinds: what repeats: their types, and after a space what else makes a node like another.
        reads: the nodes that each one reads, as positions.
    """
    found = named_scopes(names, tensors)
    if found is None or _tell_types_only(found, kinds):
        return repeated_scopes(kinds, reads)
    return found


def _tell_types_only(scopes: Sequence[Scope], kinds: Sequence[str]) -> bool:
    """Whether most scopes that nodes share hold nodes of one type: "Conv.0", "Conv.1" number the
    nodes of a type, wherever they are in the network, and spell no blocks."""
    types: dict[Scope, list[str]] = {}
    for scope, kind in zip(scopes, kinds, strict=True):
        if scope:
            types.setdefault(scope, []).append(kind.partition(" ")[0])
    shared = [found for found in types.values() if len(found) > 1]
    alike = sum(len(found) for found in shared if len(set(found)) == 1)
    return 2 * alike > sum(map(len, shared))


def named_scopes(names: Sequence[str], tensors: Sequence[str]) -> list[Scope] | None:
    """The scopes that names spell, such as ("blocks", "conv1") for "/blocks/conv1/Conv"; None
    where fewer than half of the nodes have one.

    A node whose name spells none, because an optimizer made it, is in the scope of its tensor; or
    else in what the nodes before and after it are both in.
    """
    for separator in _SEPARATORS:
        found = [
            _spelled(name, separator) or _spelled(tensor, separator)
            for name, tensor in zip(names, tensors, strict=True)
        ]
        if 2 * sum(map(bool, found)) > len(names):
            return _filled(found)
    return None


def _spelled(name: str, separator: str) -> Scope:
    return tuple(part for part in name.split(separator) if part)[:-1]


def _filled(scopes: Sequence[Scope]) -> list[Scope]:
    """`scopes`, where one that is missing is what those beside it have in common."""
    after: list[Scope] = [()] * len(scopes)
    following: Scope = ()
    for k in reversed(range(len(scopes))):
        following = after[k] = scopes[k] or following
    found: list[Scope] = []
    before: Scope = ()
    for own, behind in zip(scopes, after, strict=True):
        before = own or before
        common = zip(before, behind, strict=False)
        found.append(own or tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], common)))
    return found


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


def repeated_scopes(kinds: Sequence[str], reads: Sequence[Sequence[int]]) -> list[Scope]:
    """The scopes of nodes whose names tell nothing: blocks of at least three nodes that occur at
    least three times in a row. Of several such stretches each is a stage.

    Args:
        kinds: of the nodes, in execution order.
        reads: the nodes that each one reads, as positions.
    """
    _, codes = np.unique(np.asarray(kinds, dtype=str), return_inverse=True)
    found = sorted(
        _repeats(np.asarray(codes, np.int64), _crossing(len(kinds), reads), 0, len(kinds)),
        key=lambda repeats: repeats.start,
    )
    scopes: list[Scope] = [()] * len(kinds)
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
