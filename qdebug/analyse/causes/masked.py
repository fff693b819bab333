"""Scores of an attention that share a range with the huge constant of its mask.

Where masked scores are replaced by -1e9, or have it added, a range that holds the mask has a step
that no other score reaches: behind the Q/DQ pair all of them are 0, or one step from it, and
Softmax gives what is not masked equal weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from qdebug.analyse.causes.mixed_scales import MIXED_SCALES
from qdebug.engine_info.mismatch import MOVING_OPS
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.results.compare import Cause, to_try

LEAST_MASK = 1e3
"""Smaller constants leave scores a step that some of them reach."""
_SOFTMAX = frozenset({"Softmax", "LogSoftmax"})
_PASSING = (MOVING_OPS - {"Concat"}) | {"Add", "Cast", "Div", "Mul", "Sub", "Where"}
_FARTHEST = 4
"""Nodes between a mask and its Softmax."""
_BELOW = 50.0
"""A mask so far below the lowest score leaves e^-50 of its weight, which no INT8 code shows."""
_ROUND = 100.0
"""A mask to advise is a multiple of it."""


@dataclass(frozen=True)
class MaskedScores:
    """What a Q/DQ pair behind a mask makes of the scores.

    Attributes:
        mask: the lowest value, that of the mask.
        scores: the largest magnitude of the other ones.
        lowest: the lowest of these, 0 where all are positive.
        step: of the pair, which is larger.
    """

    mask: float
    scores: float
    lowest: float
    step: float

    def cause(self, share: float, tensor: str, step: str) -> Cause:
        """The cause of an error that it makes `share` of.

        Args:
            tensor: what the pair quantizes.
            step: what its steps are called: "INT8 step".
        """
        what = (
            f"the range is that of the mask ({self.mask:.3g}): one {step}, {self.step:.2g}, is "
            f"larger than every score (up to {self.scores:.3g})"
        )
        other = f"a mask of about {-_ROUND * math.ceil((_BELOW - self.lowest) / _ROUND):.0f}"
        remedy = (
            "Do not quantize behind the mask: keep the input of Softmax in FP32. "
            f"{to_try(f'{other} in the FP32 model before quantizing, if it must be INT8')}"
        )
        return Cause(MIXED_SCALES, share, f"'{tensor}': {what}", remedy, brief=what)


def masked_scores(
    bounds: tuple[float, float], scores: float, lowest: float, step: float
) -> MaskedScores | None:
    """What a pair of one range holds of scores and a mask; None where that is not so.

    Args:
        bounds: the lowest and the highest value that it reads.
        scores: the largest magnitude among those within an eighth of its range.
        lowest: the lowest of these, 0 where all are positive.
        step: of the pair.
    """
    low, high = bounds
    if low > -LEAST_MASK or not 0 < scores < step or high > scores:
        return None
    return MaskedScores(low, scores, lowest, step)


def feeds_softmax(graph: Graph, layer: Layer) -> bool:
    """Whether what the layer reads are scores: it is a Softmax, or there is one behind it, with
    nothing but masks, factors and moves in between."""
    if layer.op_type in _SOFTMAX:
        return True
    if layer.op_type not in _PASSING:
        return False
    tensors = {layer.output}
    for _ in range(_FARTHEST):
        readers = [node for t in tensors for node in graph.consumers.get(t, ())]
        if any(node.op_type in _SOFTMAX for node in readers):
            return True
        tensors = {t for node in readers if node.op_type in _PASSING for t in node.outputs}
    return False
