"""Whether single values, of which each says yes or no, are shares of 0 to 1 or logits.

It is decided once for a network, by its graph where that tells and else by what FP32 gives: values
of a quantized network may leave 0 to 1 a little, which makes them no logits.
"""

from __future__ import annotations

import numpy as np

from qdebug.metrics.tasks.base import Outputs
from qdebug.metrics.tasks.facts import ModelFacts
from qdebug.types import Array

_ROUNDING = 1e-3
"""How far beyond 0 and 1 shares may be by rounding alone: FP16 has ten bits."""


def are_shares(outputs: Outputs, reference: Outputs, facts: ModelFacts | None) -> bool:
    """Whether the values of the first output are shares.

    Args:
        reference: FP32's outputs of the same samples; where there are none, the outputs decide.
        facts: the model, where it is known.
    """
    name = next(iter(outputs), "")
    known = facts.shares.get(name) if facts is not None else None
    return all_shares(reference.get(name, outputs[name])) if known is None else known


def all_shares(values: Array) -> bool:
    """Whether all values that are finite lie in 0 to 1; of an array of objects, those of each."""
    if values.dtype == object:
        return all(all_shares(np.asarray(one)) for one in values)
    if values.dtype.kind in "iub":
        return bool((values.min(initial=0) >= 0) & (values.max(initial=0) <= 1))
    low, high = values.min(initial=0), values.max(initial=0)
    if not np.isfinite([low, high]).all():
        finite = values[np.isfinite(values)]
        low, high = finite.min(initial=0), finite.max(initial=0)
    return bool(low >= -_ROUNDING and high <= 1 + _ROUNDING)


def is_single(shape: tuple[int | None, ...]) -> bool:
    """Whether an output [samples, …] of this shape holds one value for each sample."""
    return len(shape) > 0 and all(size == 1 for size in shape[1:])
