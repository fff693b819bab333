"""Measure what the layers that cost most cost together: kept in FP32, over all samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from qdebug.analyse.causes.overflow import with_overflow_groups
from qdebug.analyse.causes.quantization import ACCUMULATION
from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.sets import Outcome
from qdebug.errors import MetricError
from qdebug.execute.context import sized
from qdebug.metrics.candidate import CLOSE_DB
from qdebug.metrics.effect import is_masked
from qdebug.metrics.tensor import noise_db
from qdebug.results.compare import CompareResult, LayerResult
from qdebug.results.curve import Figure, part_restored
from qdebug.results.summary import (
    RELEVANT_DB,
    RestoredMetric,
    Summary,
    common_cause,
    joint_share,
)
from qdebug.run.outputs import MetricEvaluator, joined


def summarized(compared: Compared) -> Compared:
    """With what its leading layers, of which the causes are known, cost together.

    Raises:
        QdebugError: samples cannot be read, or FP32 does not run.
    """
    result, pair = compared.result, compared.pair
    planned = [x for x in result.layers if x.effect is not None]
    measured = all(o.name in pair.candidate.outputs for o in result.outputs)
    if result.effect is None or not planned or not measured:
        return compared
    summary = Summary(
        samples=result.samples,
        layers=(),
        of_layers=result.effect.of_layers,
        output_share=None,
        cause="",
        sqnr_db=noise_db(result.worst_noise),
        restored_sqnr_db=None,
        metric=_restored_metric(result, None),
    )
    if result.is_as_good_as_fp32:
        return compared.found(summary=summary)
    choice = compared.choice
    first = planned[:1]
    chosen = choice.names if choice else tuple(with_overflow_groups(pair, first, result))
    found = _on_all_samples(compared, chosen)
    if found is None:
        return compared
    names = {x.name: x for x in planned}
    metric = _restored_metric(result, found.score)
    worst = _noise(found)
    summary = replace(
        summary,
        layers=chosen,
        output_share=joint_share(result.worst_noise, worst),
        cause=common_cause([_main_cause(names[n], result.noise) for n in chosen if n in names]),
        restored_sqnr_db=noise_db(worst),
        metric=metric,
        restored=_restored_part(compared, metric, found),
    )
    curve = result.curve and replace(result.curve, fits=_fits(compared, summary))
    layers = _with_gain(result, chosen, float(found.noise.sum()))
    return compared.found(summary=summary, curve=curve, layers=layers)


def _with_gain(result: CompareResult, names: Sequence[str], rest: float) -> tuple[LayerResult, ...]:
    """The layers; one that was run in FP32 by itself on all samples, which left so much noise, with
    that as its gain."""
    share = joint_share(result.noise, rest)
    if len(names) > 1 or share is None:
        return result.layers
    gained = {"gain": result.noise - rest, "output_share": share, "output_share_std": 0.0}
    return tuple(
        replace(x, effect=replace(x.effect, **gained)) if x.name in names and x.effect else x
        for x in result.layers
    )


def _on_all_samples(compared: Compared, names: Sequence[str]) -> Outcome | None:
    """What these layers in FP32 give; None where the runtime takes no such model."""
    sets = compared.sets
    if sets is None:
        return None
    if sets.samples < compared.samples.count:
        sets = sets.on(sized(compared.context, compared.pair.reference, compared.subset))
    sets.most = math.inf
    return sets([names])[0]


def _noise(given: Outcome) -> float:
    """Of the worst part of each output."""
    return float(given.worst.sum())


def _fits(compared: Compared, summary: Summary) -> bool:
    """Whether the layers of the summary gain about the SQNR that they gained on the samples of the
    curve: a screen would have two figures. What is better than RELEVANT_DB is all the same."""
    curve, choice, noise = compared.result.curve, compared.choice, compared.result.worst_noise
    if curve is None or choice is None or curve.figure is not Figure.SQNR:
        return True
    here, there = summary.output_share, choice.restored
    if here is None or math.isnan(there):
        return True
    least = 10 ** (-RELEVANT_DB / 10)
    left = [noise_db(max(least, (1 - share) * noise)) for share in (here, there)]
    return abs(left[0] - left[1]) <= CLOSE_DB


def _restored_part(
    compared: Compared, metric: RestoredMetric | None, found: Outcome
) -> float | None:
    """See Summary.restored."""
    result = compared.result
    if result.curve and result.curve.figure is Figure.LOSS and found.losses is not None:
        losses = _losses(compared)
        if losses and losses[1] < losses[0] < math.inf:
            return part_restored(losses[0], float(found.losses.mean()), losses[1])
    before = result.worst_noise
    return part_restored(before, _noise(found), 0.0) if before else None


def _losses(compared: Compared) -> tuple[float, float] | None:
    """The mean loss as planned, and of FP32; None without one."""
    if compared.metric is None:
        return None
    with suppress(MetricError):
        reference, planned = compared.measured.needed()
        task = MetricEvaluator.of(compared.metric, compared.samples, reference)
        losses = [task.losses(x) for x in (joined(planned), task.reference)]
        if losses[0] is not None and losses[1] is not None:
            return float(losses[0].mean()), float(losses[1].mean())
    return None


def _restored_metric(result: CompareResult, value: float | None) -> RestoredMetric | None:
    task = result.metric
    if task is None:
        return None
    return RestoredMetric(task.name, task.candidate, value, task.reference)


def _main_cause(layer: LayerResult, noise: float) -> tuple[str, float]:
    """And the layer's part of the error, as far as it was measured by itself; of broken outputs it
    is the same for each."""
    label = next((c.label for c in layer.causes if c.label != ACCUMULATION), "")
    effect = layer.effect
    assert effect is not None
    if math.isinf(noise) or is_masked(effect, noise):
        return label, 1.0
    alone = (effect.alone or 0.0) / noise if layer.overflows and noise else 0.0
    return label, max(alone, effect.output_share or 0.0)
