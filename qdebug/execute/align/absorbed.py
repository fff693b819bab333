"""Which activations a quantizer absorbed, judged by what the model computes.

Without its FP32 model, a quantized model does not tell whether a QuantizeLinear whose codes end at
0 took the place of a Relu, or whether its tensor just was never negative on the calibration
samples. Its values before rounding do: after a Relu that was absorbed, many are negative; a tensor
that is never negative has none, and for it the difference does not matter.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from qdebug.errors import ModelError
from qdebug.execute.context import Context, runner_of
from qdebug.metrics.accumulate import CANDIDATE
from qdebug.network.prepare import Model
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import first, whole
from qdebug.plan.quantize import Grid
from qdebug.plan.rewrite.restore import Absorbed, guessed, suspects
from qdebug.run.variant import as_it_is
from qdebug.wording import option

SURE = 0.01
"""A share of negative values from which on they are no accident of the samples. Of 47 Relus that
ONNX Runtime absorbed in two networks, the one that cuts off least cuts off 2 %."""
_MOST_SAMPLES = 16


def guess_absorbed(context: Context, model: Model, samples: Samples) -> list[Absorbed]:
    """The activations that the quantizers of `model` absorbed, as far as `samples` tell.

    Raises:
        ModelError: of one that cannot be told.
        BackendError: the model does not run.
    """
    grids = suspects(model.graph)
    if not grids:
        return []
    negative = _negative_shares(context, model, samples, grids)
    for tensor, share in negative.items():
        if 0 < share < SURE:
            raise ModelError(
                f"{model.file.path}: '{tensor}' is quantized to values from 0 up, and "
                f"{100 * share:.2g}% of its values are negative: either the quantizer took over a "
                "Relu, or its calibration samples had no negative values; which one cannot be told",
                f"Give the FP32 model as well: {option('reference', 'fp32.onnx')}.",
                code="QD-MODEL-ABSORBED-UNKNOWN",
            )
    return guessed([t for t, share in negative.items() if share], grids)


def _negative_shares(
    context: Context, model: Model, samples: Samples, grids: dict[str, Grid]
) -> dict[str, float]:
    """The share of the values of each tensor that are negative by more than half a step."""
    below, count = Counter[str](), Counter[str]()
    runner = runner_of(context, first(whole(samples), _MOST_SAMPLES))
    variants = {CANDIDATE: as_it_is(model.graph.proto, context.simulation, {t: t for t in grids})}
    for executed in runner.batches(variants):
        found = executed.of(CANDIDATE)
        for tensor in found.keys() & grids.keys():
            smallest = -float(grids[tensor].scale) / 2
            below[tensor] += int(np.count_nonzero(found[tensor] < smallest))
            count[tensor] += found[tensor].size
    return {tensor: below[tensor] / max(count[tensor], 1) for tensor in grids}
