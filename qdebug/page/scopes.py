"""Which blocks of a network a node is in: from the names, or from what repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

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


class Repeats(NamedTuple):
    """A sequence of `period` nodes that occurs `times` times in a row from the node `start` on."""

    start: int
    period: int
    times: int

    @property
    def stop(self) -> int:
        """The end of the last."""
        return self.start + self.period * self.times


def repeated_scopes(kinds: Sequence[str], reads: Sequence[Sequence[int]]) -> list[Scope]:
    """The scopes of nodes whose names tell nothing: blocks of at least three nodes that occur at
    least three times in a row. Of several such stretches each is a stage.

    Args:
        kinds: of the nodes, in execution order.
        reads: the nodes that each one reads, as positions.
    """
    _, codes = np.unique(np.asarray(kinds, dtype=str), return_inverse=True)
    crossing = _crossing(len(kinds), reads)
    found = list(_repeats(np.asarray(codes, np.int64), crossing, 0, len(kinds)))
    scopes: list[Scope] = [()] * len(kinds)
    for number, repeats in enumerate(found, start=1):
        outer = () if len(found) == 1 else (f"stage {number} of {len(found)}",)
        for node in range(repeats.start, repeats.stop):
            block = (node - repeats.start) // repeats.period + 1
            scopes[node] = (*outer, f"block {block} of {repeats.times}")
    return scopes


def _crossing(count: int, reads: Sequence[Sequence[int]]) -> Ints:
    """How many nodes before each place are read behind it, int64 [nodes + 1]."""
    last = {source: reader for reader, sources in enumerate(reads) for source in sources}
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, [source + 1 for source in last], 1)
    np.add.at(change, [reader + 1 for reader in last.values()], -1)
    found: Ints = np.cumsum(change)[: count + 1]
    return found


def _repeats(codes: Ints, crossing: Ints, low: int, high: int) -> Iterator[Repeats]:
    """The stretches of blocks within [low, high), in order: the longest, and those beside it."""
    best = _longest(codes, crossing, low, high)
    if best is not None:
        yield from _repeats(codes, crossing, low, best.start)
        yield best
        yield from _repeats(codes, crossing, best.stop, high)


def _longest(codes: Ints, crossing: Ints, low: int, high: int) -> Repeats | None:
    """The longest stretch of repeats within [low, high); of the shortest period, where several
    cover as much. Its blocks begin where the fewest tensors cross their bounds."""
    part, best = codes[low:high], Repeats(low, 0, 0)
    for period in range(_SHORTEST_PERIOD, len(part) // _FEWEST_REPEATS + 1):
        same = np.concatenate([[False], part[:-period] == part[period:], [False]])
        begins, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
        which = int(np.argmax(ends - begins)) if len(begins) else 0
        size = int(ends[which] - begins[which]) + period if len(begins) else 0
        count, spare = divmod(size, period)
        if count >= _FEWEST_REPEATS and count * period > best.stop - best.start:
            bounds = np.arange(count + 1) * period + low + begins[which]
            shift = np.argmin([crossing[bounds + k].sum() for k in range(spare + 1)])
            best = Repeats(int(bounds[0] + shift), period, count)
    return best if best.times else None
