"""Measure what the layers that cost most cost together: one further run keeps them in FP32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

from qdebug.analyse.causes.overflow import with_overflow_groups
from qdebug.analyse.causes.quantization import ACCUMULATION
from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.curves import apart_db
from qdebug.analyse.effect.leave_out import candidates_of
from qdebug.analyse.effect.pinned import PinnedRun, PinnedTask, begin_pinned
from qdebug.errors import MetricError
from qdebug.execute.context import sized
from qdebug.execute.evaluator import Reducer
from qdebug.metrics.candidate import CLOSE_DB
from qdebug.metrics.effect import is_masked
from qdebug.metrics.tensor import noise_db
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import CompareResult, LayerResult
from qdebug.results.curve import Figure, part_restored
from qdebug.results.summary import (
    MOST_LEADERS,
    RestoredMetric,
    Summary,
    common_cause,
    joint_share,
    leading,
)
from qdebug.run.outputs import MetricEvaluator, joined
from qdebug.types import Tensors


@dataclass(frozen=True)
class Restoration:
    """A run with the leading layers in FP32, begun.

    Attributes:
        summary: what is known without it.
        before: the outputs' noise Σerr²/Σref² as planned, by which layers are ranked.
        first: the leading layer.
        names: of the layers that run in FP32; `estimated`: no curve chose them.
        run: gives the noise, and the metric.
    """

    summary: Summary
    before: float
    first: LayerResult
    names: tuple[str, ...]
    estimated: bool
    run: _RestoredRun


def begin_restoration(compared: Compared) -> Compared:
    """With what is known of its leading layers, and a run of the model with these in FP32; other
    processes begin it at once, if there are any, this one when it is asked for the result.

    Raises:
        QdebugError: samples cannot be read.
    """
    result, pair = compared.result, compared.pair
    planned = [x for x in result.layers if x.effect is not None]
    outputs = tuple(o.name for o in result.outputs if o.name in pair.candidate.outputs)
    if result.effect is None or not planned or len(outputs) < max(1, len(result.outputs)):
        return compared
    before = result.noise
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
    if candidates_of(compared.context, pair) is None:
        return compared
    curve = compared.choice
    chosen = curve.names if curve else tuple(_chosen(pair, planned, result, before))
    run = _RestoredRun.begun(compared, chosen, outputs)
    found = Restoration(summary, before, planned[0], chosen, curve is None, run)
    return replace(compared, restoration=found)


def summarized(compared: Compared) -> Compared:
    """With what its leading layers, of which the causes are known, cost together.

    Raises:
        QdebugError: samples cannot be read.
    """
    begun = compared.restoration
    if begun is None:
        return compared
    try:
        found = begun.run.result()
    except MetricError:
        return compared
    if found is None:
        return compared
    summary, chosen = begun.summary, begun.names
    if begun.estimated and len(chosen) > 1 and found.noise > _with_first(begun.first, begun.before):
        # Errors may offset each other: then the first layer alone gives more than all of them.
        with suppress(MetricError):
            outputs = begun.run.task.outputs
            alone = _RestoredRun.begun(compared, [begun.first.name], outputs).result()
            if alone is not None and alone.noise < found.noise:
                together = noise_db(found.worst)
                summary = replace(summary, group_layers=len(chosen), group_sqnr_db=together)
                chosen, found = (begun.first.name,), alone
    result = compared.result
    names = {x.name: x for x in result.layers if x.effect is not None}
    metric = _restored_metric(result, found.score)
    summary = replace(
        summary,
        layers=chosen,
        output_share=joint_share(result.worst_noise, found.worst),
        cause=common_cause([_main_cause(names[n], begun.before) for n in chosen if n in names]),
        restored_sqnr_db=noise_db(found.worst),
        metric=metric,
        restored=_restored_part(result, metric, found),
    )
    off_db = _off_db(compared, summary)
    curve = replace(result.curve, fits=off_db <= CLOSE_DB) if result.curve else None
    return compared.found(
        *_uncertain(compared, off_db),
        summary=summary,
        curve=curve,
    )


def _off_db(compared: Compared, summary: Summary) -> float:
    """By how much the SQNR that the layers of the summary gain differs from what they gained on the
    samples of the curve: a screen would have two figures. 0 where that was not run, or is what the
    summary has."""
    curve, choice = compared.result.curve, compared.choice
    if curve is None or choice is None or curve.figure is not Figure.SQNR:
        return 0.0
    there, here = choice.restored, summary.output_share
    if here is None or summary.layers != choice.names or math.isnan(there):
        return 0.0
    return apart_db(here, there, compared.result.worst_noise)


def _uncertain(compared: Compared, off_db: float) -> Iterator[str]:
    """A note, where two runs of the same samples with the same layers in FP32 differ."""
    choice, curve, result = compared.choice, compared.result.curve, compared.result
    if choice is None or curve is None:
        return
    uncertain_db = max(choice.uncertain_db, off_db if curve.samples == result.samples else 0.0)
    if uncertain_db > CLOSE_DB:
        yield (
            f"What a single layer gains is uncertain by {uncertain_db:.1f} dB: so much do two runs "
            "of the same samples differ that keep the same layers in FP32, and only the last bits "
            "of what the others compute are not the same. This network magnifies them; more "
            "samples average that out."
        )


def _restored_part(
    result: CompareResult, metric: RestoredMetric | None, found: _Restored
) -> float | None:
    """See Summary.restored."""
    figure = result.curve.figure if result.curve else Figure.SQNR
    if figure is Figure.LOSS and found.losses:
        planned, value, reference = found.losses
        if reference < planned < math.inf:
            return part_restored(planned, value, reference)
    if figure is not Figure.SQNR and metric is not None:
        if metric.restored is None or metric.kept:
            return None
        return part_restored(metric.planned, metric.restored, metric.reference)
    before = result.worst_noise
    return part_restored(before, found.worst, 0.0) if before else None


def _restored_metric(result: CompareResult, value: float | None) -> RestoredMetric | None:
    task = result.metric
    if task is None:
        return None
    return RestoredMetric(task.name, task.candidate, value, task.reference)


def _chosen(
    pair: ModelPair, planned: Sequence[LayerResult], result: CompareResult, before: float
) -> list[str]:
    """The layers to keep in FP32 together. Broken outputs come of overflows, wherever they are."""
    overflowing = [x for x in planned if x.overflows]
    if math.isinf(before) and overflowing:
        return with_overflow_groups(pair, overflowing, result)
    if math.isinf(before):
        return [planned[0].name]
    count = leading([_estimate(x, before) for x in planned])
    # Of layers that mask each other, one in FP32 gains nothing.
    masked = [is_masked(x.effect, before) if x.effect else False for x in planned[:MOST_LEADERS]]
    count = max(count, len([*takewhile(bool, masked)]))
    return with_overflow_groups(pair, planned[:count], result)


def _with_first(first: LayerResult, before: float) -> float:
    """The outputs' noise that is left when only the first layer runs in FP32, as far as known."""
    share = first.output_share
    return math.inf if share is None else before * (1 - share)


def _estimate(layer: LayerResult, noise: float) -> float:
    """The part of the outputs' noise that the layer makes, as far as it was measured by itself."""
    assert layer.effect is not None
    if is_masked(layer.effect, noise):
        return 1.0
    alone = (layer.effect.alone or 0.0) / noise if layer.overflows and noise else 0.0
    return max(alone, layer.effect.output_share or 0.0)


def _main_cause(layer: LayerResult, noise: float) -> tuple[str, float]:
    """And the layer's part of the error; of broken outputs it is the same for each."""
    labels = (c.label for c in layer.causes if c.label != ACCUMULATION)
    return next(labels, ""), 1.0 if math.isinf(noise) else _estimate(layer, noise)


@dataclass(frozen=True)
class _Restored:
    """What the run gives.

    Attributes:
        noise: of the outputs, Σerr²/Σref²; `worst` is that of the worst part of each.
        score: the metric, None without one.
        losses: the mean as planned, of this run, and of FP32; none where the metric has no loss.
    """

    noise: float
    worst: float
    score: float | None = None
    losses: tuple[float, ...] = ()


@dataclass(frozen=True)
class _RestoredRun:
    """The run of a comparison's model with some layers in FP32.

    Attributes:
        task: what it runs on.
        runs: the one run.
    """

    compared: Compared
    task: PinnedTask
    runs: Iterator[PinnedRun | None]

    @classmethod
    def begun(
        cls, compared: Compared, names: Sequence[str], outputs: tuple[str, ...]
    ) -> _RestoredRun:
        """The run with the layers `names` in FP32. Raises as Executor.map."""
        subset, known = fp32_outputs(compared)
        metric = compared.metric
        keep = tuple(compared.pair.reference.outputs) if metric else ()
        reduce = Reducer(metric, compared.samples) if metric else None
        task = PinnedTask(compared.pair, subset, known, outputs, keep, reduce=reduce)
        return cls(compared, task, begin_pinned(compared.context, task, [names]))

    def result(self) -> _Restored | None:
        """What it gives; None where the runtime takes no such model. To be asked for once.

        Raises:
            MetricError: the metric does not take the outputs.
        """
        [run] = self.runs
        if run is None:
            return None
        errors, metric = run.errors, self.compared.metric
        if metric is None:
            return _Restored(errors.noise(), errors.worst_noise())
        reference, planned = self.compared.measured.needed()
        task = MetricEvaluator.of(metric, self.compared.samples, reference)
        outputs = joined(run.outputs)
        losses = [task.losses(x) for x in (joined(planned), outputs, task.reference)]
        found = [float(x.mean()) for x in losses if x is not None]
        return _Restored(errors.noise(), errors.worst_noise(), task(outputs), tuple(found))


def fp32_outputs(compared: Compared) -> tuple[SampleSubset, Mapping[Batch, Tensors]]:
    """The samples, and what FP32 made of them, where that was kept."""
    known, samples = compared.measured.raw, compared.samples
    if known and samples.batch_is_free:
        samples = samples.with_batch_size(max(batch.count for batch in known))
    if tuple(samples.batches()) == tuple(known):
        return whole(samples), known
    return sized(compared.context, compared.pair.reference, compared.subset), {}
