"""Comparisons that come out otherwise: a Greater or an Equal whose operands are close, and what
follows from it.

A comparison that flips does no harm by itself: where both branches of a Where are nearly equal
there (a LeakyRelu, written out), nothing follows. So it is a cause only of a layer most of whose
error, or a part worth telling, lies where the comparison flipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from qdebug.analyse.causes.decisions import INDEX_FLIP, FlipCount
from qdebug.network.graph import Graph
from qdebug.results.compare import OUTPUT_ERROR, Cause
from qdebug.types import Array

_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = {
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Equal": np.equal,
}
_ELEMENTWISE = frozenset({"Cast", "Identity", "Not", "And", "Or", "Xor"})
_SELECTING = frozenset({"Where", "Mul"})
LEAST_SHARE, MOST = 0.1, 0.5
"""Of a reader's error energy: less is not told, more is the main cause."""


@dataclass(frozen=True)
class Comparing:
    """A node that compares two float tensors element by element.

    Attributes:
        readers: outputs of the Where and Mul nodes that select by it, element by element.
    """

    node: str
    op_type: str
    left: str
    right: str
    readers: tuple[str, ...]


def comparisons_of(graph: Graph) -> list[Comparing]:
    """The comparisons of `graph` by whose results a Where or a Mul selects elements."""
    found = []
    for node in graph.nodes:
        if node.op_type in _OPERATORS and not node.domain and graph.is_float(node.inputs[0]):
            readers = _readers(graph, node.outputs[0])
            if readers:
                left, right = node.inputs
                found.append(Comparing(node.name, node.op_type, left, right, readers))
    return found


def _readers(graph: Graph, tensor: str) -> tuple[str, ...]:
    waiting, seen, found = [tensor], {tensor}, dict[str, None]()
    while waiting:
        for node in graph.consumers.get(waiting.pop(), ()):
            output = node.outputs[0]
            if node.op_type in _SELECTING:
                found[output] = None
            elif node.op_type in _ELEMENTWISE and output not in seen:
                seen.add(output)
                waiting.append(output)
    return tuple(found)


@dataclass
class ComparisonFlips(FlipCount):
    """How often a comparison comes out otherwise, by element: the margin is how far apart its
    operands are in FP32.

    Attributes:
        energies: Σerr² of each reader, where the comparison flipped and in all.
    """

    comparing: Comparing
    energies: dict[str, tuple[float, float]] = field(default_factory=dict)

    def merge(self, other: Self) -> bool:
        """See FlipCount."""
        if not super().merge(other):
            return False
        for name, (there, whole) in other.energies.items():
            before = self.energies.get(name, (0.0, 0.0))
            self.energies[name] = (before[0] + there, before[1] + whole)
        return True

    def add(
        self,
        reference: tuple[Array, Array],
        candidate: tuple[Array, Array],
        readers: Mapping[str, tuple[Array, Array]],
        start: int,
        samples: int,
    ) -> None:
        """Add the operands of a batch, left and right, whose first sample is number `start`; once
        for each batch. NaN is no decision.

        Args:
            readers: the outputs that are known, in the reference and the candidate.
        """
        if start in self._seen:
            return
        self._seen.add(start)
        compare = _OPERATORS[self.comparing.op_type]
        with np.errstate(invalid="ignore"):
            right, found = (
                np.subtract(*np.broadcast_arrays(*(np.asarray(x, np.float64) for x in operands)))
                for operands in (reference, candidate)
            )
            if right.shape != found.shape:
                return
            valid = ~(np.isnan(right) | np.isnan(found))
            flips = valid & (compare(*reference) != compare(*candidate))
        self.total += int(valid.sum())
        self.flipped += int(flips.sum())
        if self.sample < 0 and flips.any():
            at = tuple(int(i[0]) for i in np.nonzero(flips))
            by_sample = bool(at) and right.shape[0] == samples
            self.sample = start + (at[0] if by_sample else 0)
            self.margin = float(abs(right[at]))
            self.moved = float(abs(found[at] - right[at]))
        for name, (expected, given) in readers.items():
            self._add_reader(name, flips, expected, given)

    def _add_reader(
        self, name: str, flips: npt.NDArray[np.bool_], expected: Array, given: Array
    ) -> None:
        if expected.shape != given.shape:
            return
        try:
            where = np.broadcast_to(flips, expected.shape)
        except ValueError:  # the reader is larger in another way
            return
        squares = np.square(expected.astype(np.float64) - given.astype(np.float64))
        squares = np.where(np.isfinite(squares), squares, 0.0)
        there, whole = self.energies.get(name, (0.0, 0.0))
        self.energies[name] = (
            there + float(squares[where].sum()),
            whole + float(squares.sum()),
        )

    def cause(self, reader: str) -> Cause | None:
        """The cause of an error at the output `reader`; None where the flips hardly matter there,
        or it is not known."""
        there, whole = self.energies.get(reader, (0.0, 0.0))
        if not whole or there / whole < LEAST_SHARE:
            return None
        compared = self.comparing
        return Cause(
            INDEX_FLIP,
            there / whole,
            f"{compared.op_type} '{compared.node}' gives another result than in FP32 for "
            f"{self.flipped} of {self.total} elements, first in sample {self.sample}: there "
            f"'{compared.left}' and '{compared.right}' are {self.margin:.2g} apart, and their "
            f"difference moved by {self.moved:.2g}",
            "Move the threshold, or reduce the error of the layers that make what is compared: "
            "with `qdebug calibrate` and `qdebug repair`, and last by keeping them in FP32.",
            OUTPUT_ERROR,
        )
