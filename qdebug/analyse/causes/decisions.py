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
    """

    node: str
    op_type: str
    scores: str
    axis: int
    count: int = 1
    largest: bool = True


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
    chose leads the best one that it did not; the largest difference of a score is what moved."""

    decision: Decision

    @property
    def evidence(self) -> str:
        """What flips, for people."""
        decision = self.decision
        return (
            f"{decision.op_type} '{decision.node}' chooses other indices than in FP32 in "
            f"{self.flipped} of {self.total} decisions, first in sample {self.sample}: there the "
            f"chosen score of '{decision.scores}' leads by only {self.margin:.2g}, and a score "
            f"moved by {self.moved:.2g}"
        )

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
        differs = valid & (
            _chosen(right, self.decision.count) != _chosen(found, self.decision.count)
        ).any(axis=-1)
        self.total += int(valid.sum())
        self.flipped += int(differs.sum())
        if self.sample < 0 and differs.any():
            at = tuple(int(i[0]) for i in np.nonzero(differs))
            ordered = -np.sort(-right[at])
            last = self.decision.count
            self.sample = start + (at[0] if at else 0)
            self.margin = float(ordered[last - 1] - ordered[last]) if last < ordered.size else 0.0
            self.moved = float(np.nanmax(np.abs(right[at] - found[at])))


def _chosen(scores: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.bool_]:
    """Which scores are chosen; of equal ones the first, as ONNX's operators do."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :count]
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen


def flip_cause(flips: Flips) -> Cause:
    """The cause of an error behind a decision that flips."""
    return Cause(
        INDEX_FLIP,
        flips.flipped / flips.total,
        flips.evidence,
        "Treat scores that are so close as a tie, or reduce the error of the layers that make the "
        "scores: with `qdebug calibrate` and `qdebug repair`, and last by keeping them in FP32.",
        DECISIONS,
    )
