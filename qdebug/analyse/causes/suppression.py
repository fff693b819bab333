"""NonMaxSuppression that keeps other boxes: the first one, and how close it was to being kept or
not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from qdebug.analyse.causes.decisions import Decision, Flips
from qdebug.network.graph import Graph, Node
from qdebug.plan.rewrite.edit import make_node
from qdebug.types import Array

BOXES, SCORES, KEPT = "boxes", "scores", "kept"
"""Inputs and output of the model of a single NonMaxSuppression."""
_FLOAT = onnx.TensorProto.FLOAT


@dataclass(frozen=True)
class Suppression:
    """A NonMaxSuppression with constant thresholds.

    Attributes:
        decision: its node and scores; `boxes` are the tensor of the boxes.
        model: the node by itself.
        iou, score: its thresholds; None where boxes are kept whatever they score.
        centered: boxes are given by their centers and sizes, not by two corners.
    """

    decision: Decision
    boxes: str
    model: onnx.ModelProto
    iou: float
    score: float | None
    centered: bool


def suppressions_of(graph: Graph) -> Iterator[Suppression]:
    """Those of `graph` whose numbers and thresholds are constants."""
    for node in graph.nodes:
        if node.op_type != "NonMaxSuppression" or node.domain:
            continue
        given = _constants(graph, node)
        if given is not None:
            yield Suppression(
                Decision(node.name, node.op_type, node.inputs[1], 0),
                node.inputs[0],
                _alone(graph, graph.protos[node.name], given),
                float(given.get(3, np.zeros(1)).reshape(-1)[0]),
                float(given[4].reshape(-1)[0]) if 4 in given else None,
                bool(graph.attributes(node).get("center_point_box", 0)),
            )


def _constants(graph: Graph, node: Node) -> dict[int, Array] | None:
    """The inputs behind boxes and scores, by place; None where one is computed."""
    found = {}
    for place, name in enumerate(node.inputs[2:], start=2):
        if name:
            value = graph.constant(name)
            if value is None or not value.size:
                return None
            found[place] = value
    return found


def _alone(graph: Graph, node: onnx.NodeProto, given: dict[int, Array]) -> onnx.ModelProto:
    names = [BOXES, SCORES, *(f"c{k}" if k in given else "" for k in range(2, len(node.input)))]
    alone = make_node("NonMaxSuppression", names, KEPT, "suppression")
    alone.attribute.extend(node.attribute)
    value = helper.make_tensor_value_info
    inside = helper.make_graph(
        [alone],
        "suppression",
        [value(name, _FLOAT, ["n", "a", "b"]) for name in (BOXES, SCORES)],
        [value(KEPT, onnx.TensorProto.INT64, ["k", 3])],
        [onnx.numpy_helper.from_array(array, f"c{k}") for k, array in given.items()],
    )
    return helper.make_model(
        inside, opset_imports=graph.proto.opset_import, ir_version=graph.proto.ir_version
    )


@dataclass
class SuppressionFlips(Flips):
    """How many boxes only one of the two keeps, of those that either does.

    `margin` is, for the first such box in FP32, the distance of its score or of an overlap from its
    threshold, whichever is less; `moved` by how much its score changed.
    """

    suppression: Suppression | None = None

    @property
    def evidence(self) -> str:
        """See Flips."""
        return (
            f"NonMaxSuppression '{self.decision.node}' keeps other boxes than in FP32: "
            f"{self.flipped} of {self.total} are kept in one of the two only, first in sample "
            f"{self.sample}, where a score or an overlap is {self.margin:.2g} from its threshold "
            f"and the score in '{self.decision.scores}' moved by {self.moved:.2g}"
        )

    def add_kept(
        self,
        reference: tuple[Array, Array, Array],
        candidate: tuple[Array, Array, Array],
        start: int,
    ) -> None:
        """Add boxes, scores and what is kept of a batch (rows of sample, class and box); once for
        each batch."""
        if start in self._seen:
            return
        self._seen.add(start)
        right, found = ({tuple(map(int, row)) for row in x[2]} for x in (reference, candidate))
        differ = sorted(right ^ found)
        self.total += len(right | found)
        self.flipped += len(differ)
        if self.sample < 0 and differ:
            first = differ[0]
            self.sample = start + first[0]
            self.margin = self._margin(first, reference)
            self.moved = float(abs(candidate[1][first] - reference[1][first]))

    def _margin(self, box: tuple[int, ...], run: tuple[Array, Array, Array]) -> float:
        assert self.suppression is not None
        boxes, scores, kept = run
        sample, label, place = box
        distances = []
        if self.suppression.score is not None:
            distances.append(abs(float(scores[box]) - self.suppression.score))
        others = [int(k) for n, c, k in kept if (n, c) == (sample, label) and k != place]
        if others:
            ious = overlaps(boxes[sample, place], boxes[sample, others], self.suppression.centered)
            distances.append(float(np.abs(ious - self.suppression.iou).min()))
        return min(distances, default=0.0)


def overlaps(box: Array, others: Array, centered: bool) -> npt.NDArray[np.float64]:
    """Intersection over union of a box, float [4], with others, float [n, 4]: float64 [n].

    Args:
        centered: (x, y, width, height) in place of two opposite corners.
    """
    one, many = (np.asarray(x, np.float64).reshape(-1, 4) for x in (box, others))
    if centered:
        one, many = (
            np.hstack([x[:, :2] - x[:, 2:] / 2, x[:, :2] + x[:, 2:] / 2]) for x in (one, many)
        )
    low, high = ([f(x[:, :2], x[:, 2:]) for x in (one, many)] for f in (np.minimum, np.maximum))
    shared = np.clip(np.minimum(high[0], high[1]) - np.maximum(low[0], low[1]), 0, None).prod(
        axis=1
    )
    union = sum((h - w).prod(axis=1) for h, w in zip(high, low, strict=True)) - shared
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(union > 0, shared / union, 0.0)
