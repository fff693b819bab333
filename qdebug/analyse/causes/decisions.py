"""Decisions that flip: where an index is chosen by scores, the candidate's scores may choose
another, and what reads the index is wrong by more than any rounding explains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt

from qdebug.network.graph import Graph, Node
from qdebug.results.compare import DECISIONS, Cause
from qdebug.types import Array
from qdebug.wording import option

INDEX_FLIP = "index-flip"


@dataclass(frozen=True)
class Decision:
    """A node that chooses indices by scores: ArgMax, ArgMin or TopK.

    Attributes:
        node, op_type: of the node.
        scores: the tensor that it reads.
        axis: along which it chooses.
        count: how many indices of each row.
        largest: it chooses the largest scores, not the smallest.
        ordered: it gives the indices in the order of their scores.
    """

    node: str
    op_type: str
    scores: str
    axis: int
    count: int = 1
    largest: bool = True
    ordered: bool = False


def decisions_of(graph: Graph) -> list[Decision]:
    """The nodes of `graph` that choose a constant number of indices by float scores."""
    found = []
    for node in graph.nodes:
        if node.op_type in ("ArgMax", "ArgMin", "TopK") and not node.domain:
            attributes = graph.attributes(node)
            count = _count(graph, node)
            if count and graph.is_float(node.inputs[0]):
                found.append(
                    Decision(
                        node.name,
                        node.op_type,
                        node.inputs[0],
                        attributes.get("axis", -1 if node.op_type == "TopK" else 0),
                        count,
                        node.op_type != "ArgMin" and bool(attributes.get("largest", 1)),
                        node.op_type == "TopK" and count > 1 and bool(attributes.get("sorted", 1)),
                    )
                )
    return found


def _count(graph: Graph, node: Node) -> int:
    if node.op_type != "TopK":
        return 1
    value = graph.constant(node.inputs[1])
    return int(value.reshape(-1)[0]) if value is not None and value.size else 0


@dataclass
class FlipCount:
    """How often something comes out otherwise than in FP32, over the batches that were added.

    Attributes:
        total, flipped: how often it was looked at, and how often it differs.
        sample: the first where it does.
        margin: there, how far FP32 is from the other outcome.
        moved: there, by how much what decides it changed.
    """

    total: int = field(default=0, init=False)
    flipped: int = field(default=0, init=False)
    sample: int = field(default=-1, init=False)
    margin: float = field(default=0.0, init=False)
    moved: float = field(default=0.0, init=False)
    _seen: set[int] = field(default_factory=set, init=False)

    def merge(self, other: Self) -> bool:
        """Add what was counted over other batches, all of them later; False where it was counted
        before: it does not count twice."""
        if not self._seen.isdisjoint(other._seen):
            return False
        self.total += other.total
        self.flipped += other.flipped
        self._seen |= other._seen
        if self.sample < 0:
            self.sample, self.margin, self.moved = other.sample, other.margin, other.moved
        return True


@dataclass
class Flips(FlipCount):
    """How often a decision is made otherwise: the margin is by how much the last score that FP32
    chose leads the best one that it did not; the largest difference of a score is what moved.

    Attributes:
        reordered: how often the same indices come in another order. Where nothing else flips,
            `sample` is the first of these, and the margin the least lead of a chosen score.
    """

    decision: Decision
    reordered: int = field(default=0, init=False)

    @property
    def evidence(self) -> str:
        """What flips, for people."""
        decision = self.decision
        what, other = f"{decision.op_type} '{decision.node}'", f" of {self.total} decisions"
        if not self.flipped:
            return (
                f"{what} gives the same indices as FP32, but in another order in {self.reordered}"
                f"{other}, first in sample {self.sample}: there two chosen scores of "
                f"'{decision.scores}' are {self._apart}, and a score moved by "
                f"{self.moved:.2g}. What reads them is compared place by place, so its error is "
                "that of the order"
            )
        more = f", and gives the same ones in another order in {self.reordered}"
        # An ArgMax is read as a class, a TopK's indices by what gathers with them.
        gathered = (
            ". What reads them is compared place by place, so its error is that of another choice: "
            "a metric judges what that costs"
        )
        leads = f"leads by only {self.margin:.2g}" if self.margin else "is equal to the next one"
        return (
            f"{what} chooses other indices than in FP32 in {self.flipped}{other}, first in sample "
            f"{self.sample}: there the chosen score of '{decision.scores}' {leads}, "
            f"and a score moved by {self.moved:.2g}"
            f"{more if self.reordered else ''}{gathered if decision.op_type == 'TopK' else ''}"
        )

    @property
    def _apart(self) -> str:
        return f"only {self.margin:.2g} apart" if self.margin else "equal"

    def merge(self, other: Self) -> bool:
        """See FlipCount. A set that differs is told before one in another order."""
        before = self.flipped
        if not super().merge(other):
            return False
        self.reordered += other.reordered
        if not before and other.flipped:
            self.sample, self.margin, self.moved = other.sample, other.margin, other.moved
        return True

    def add(self, reference: Array, candidate: Array, start: int) -> None:
        """Add the scores of a batch, whose first sample is number `start`; once for each batch.

        Rows in which either holds NaN are no decisions.
        """
        if start in self._seen or reference.shape != candidate.shape or not reference.ndim:
            return
        self._seen.add(start)
        sign = 1 if self.decision.largest else -1
        right, found = (
            sign * np.moveaxis(np.asarray(a, np.float64), self.decision.axis, -1)
            for a in (reference, candidate)
        )
        valid = ~(np.isnan(right).any(axis=-1) | np.isnan(found).any(axis=-1))
        count = self.decision.count
        orders = [np.argsort(-x, axis=-1, kind="stable")[..., :count] for x in (right, found)]
        differs = valid & np.any(_chosen(right, orders[0]) != _chosen(found, orders[1]), axis=-1)
        moved = valid & ~differs & np.any(orders[0] != orders[1], axis=-1)
        self.total += int(valid.sum())
        before = self.flipped
        self.flipped += int(differs.sum())
        if self.decision.ordered:
            self.reordered += int(moved.sum())
        if differs.any() and not before:
            self._describe(right, found, differs, start, slice(count - 1, count + 1))
        elif self.sample < 0 and self.decision.ordered and moved.any():
            self._describe(right, found, moved, start, slice(0, count))

    def _describe(
        self,
        right: npt.NDArray[np.float64],
        found: npt.NDArray[np.float64],
        where: npt.NDArray[np.bool_],
        start: int,
        places: slice,
    ) -> None:
        """Tell of the first row that differs; the margin is the least lead at these `places` of the
        scores in order."""
        at = tuple(int(i[0]) for i in np.nonzero(where))
        leads = -np.diff(-np.sort(-right[at])[places])
        self.sample = start + (at[0] if at else 0)
        least = float(leads.min()) if leads.size else 0.0
        self.margin = least + 0.0  # of equal scores the difference may be -0
        self.moved = float(np.nanmax(np.abs(right[at] - found[at])))


def _chosen(scores: npt.NDArray[np.float64], order: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Which scores are chosen; of equal ones the first, as ONNX's operators do."""
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def flip_cause(flips: Flips) -> Cause:
    """The cause of an error behind a decision that flips."""
    closer = (
        "reduce the error of the layers that make the scores: with `qdebug calibrate` and `qdebug "
        "repair`, and last by keeping them in FP32."
    )
    if not flips.flipped:
        return Cause(
            INDEX_FLIP,
            flips.reordered / flips.total,
            flips.evidence,
            "Nothing to do where the order does not count, as of a detector's queries: judge by a "
            f"metric that does not depend on it ({option('metric')}). Where it does, {closer}",
            DECISIONS,
            brief=f"{flips.decision.op_type} '{flips.decision.node}' chooses the same in another "
            f"order in {flips.reordered} of {flips.total} decisions, which the SQNR counts as an "
            "error: harmless where the order does not matter",
        )
    return Cause(
        INDEX_FLIP,
        flips.flipped / flips.total,
        flips.evidence,
        f"Treat scores that are so close as a tie, or {closer}",
        DECISIONS,
    )
