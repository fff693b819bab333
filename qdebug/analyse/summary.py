"""Measure what the layers that cost most cost together: one further run keeps them in FP32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from qdebug.analyse.causes.overflow import overflow_group
from qdebug.analyse.causes.quantization import ACCUMULATION
from qdebug.analyse.compared import Compared
from qdebug.analyse.effect.leave_out import candidates_of
from qdebug.backends.sizing import probe
from qdebug.errors import BackendError, MetricError, ModelError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import (
    MetricEvaluator,
    OutputKeeper,
    evaluate,
    run_of,
)
from qdebug.execute.executor import part_of
from qdebug.execute.lockstep import output_options
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ErrorTotals
from qdebug.metrics.effect import is_masked
from qdebug.metrics.tensor import sqnr_db
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import CompareResult, LayerResult
from qdebug.results.summary import (
    MOST_LEADERS,
    RELEVANT_DB,
    RestoredMetric,
    Summary,
    common_cause,
    joint_share,
    leading,
)
from qdebug.types import Tensors


@dataclass(frozen=True)
class Restoration:
    """A run with the leading layers in FP32, begun.

    Attributes:
        summary: what is known without it.
        before: the outputs' noise Σerr²/Σref² as planned, by which layers are ranked.
        first: the leading layer.
        names: of the layers that run in FP32.
        run: gives the noise, and the metric.
    """

    summary: Summary
    before: float
    first: LayerResult
    names: tuple[str, ...]
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
    before = _noise(result)
    summary = Summary(
        samples=result.samples,
        layers=(),
        of_layers=result.effect.of_layers,
        output_share=None,
        cause="",
        sqnr_db=_in_db(_worst_noise(result)),
        restored_sqnr_db=None,
        metric=_restored_metric(result, None),
    )
    if summary.sqnr_db >= RELEVANT_DB and _keeps_metric(result):
        return compared.found(summary=summary)
    if candidates_of(compared.context, pair) is None:
        return compared
    chosen = tuple(_chosen(pair, planned, result, before))
    with suppress(*_NOT_TAKEN):
        run = _RestoredRun.begun(compared, chosen, outputs)
        found = Restoration(summary, before, planned[0], chosen, run)
        return replace(compared, restoration=found)
    return compared


def summarized(compared: Compared) -> Compared:
    """With what its leading layers, of which the causes are known, cost together.

    Raises:
        QdebugError: samples cannot be read.
    """
    begun = compared.restoration
    if begun is None:
        return compared
    try:
        after, worst, value = begun.run.result()
    except _NOT_TAKEN:
        return compared
    summary, chosen = begun.summary, begun.names
    if len(chosen) > 1 and after > _with_first(begun.first, begun.before):
        # Errors may offset each other: then the first layer alone gives more than all of them.
        with suppress(*_NOT_TAKEN):
            alone = _RestoredRun.begun(compared, chosen[:1], begun.run.outputs).result()
            if alone[0] < after:
                together = _in_db(worst)
                summary = replace(summary, group_layers=len(chosen), group_sqnr_db=together)
                chosen, (after, worst, value) = chosen[:1], alone
    names = {x.name: x for x in compared.result.layers if x.effect is not None}
    return compared.found(
        summary=replace(
            summary,
            layers=chosen,
            output_share=joint_share(_worst_noise(compared.result), worst),
            cause=common_cause([_main_cause(names[n], begun.before) for n in chosen if n in names]),
            restored_sqnr_db=_in_db(worst),
            metric=_restored_metric(compared.result, value),
        )
    )


_NOT_TAKEN = ModelError, BackendError, MetricError
"""What is raised where the runtime takes no such model, or the metric not its outputs."""


def _noise(result: CompareResult) -> float:
    """Σerr²/Σref² of the outputs, as `ErrorTotals.noise`."""
    return _mean_noise([x for o in result.outputs for x in o.part_sqnrs_db])


def _worst_noise(result: CompareResult) -> float:
    """The same of the worst part of each output, as `ErrorTotals.worst_noise`."""
    return _mean_noise([min(o.part_sqnrs_db) for o in result.outputs])


def _mean_noise(sqnrs_db: Sequence[float]) -> float:
    broken = any(math.isnan(v) for v in sqnrs_db)
    return math.inf if broken else sum(10 ** (-v / 10) for v in sqnrs_db) / len(sqnrs_db)


def _in_db(noise: float) -> float:
    return math.nan if math.isinf(noise) else sqnr_db(1.0, noise)


def _keeps_metric(result: CompareResult) -> bool:
    return result.metric is None or result.metric.candidate == result.metric.reference


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
        return _with_groups(pair, overflowing, result)
    if math.isinf(before):
        return [planned[0].name]
    count = leading([_estimate(x, before) for x in planned])
    # Of layers that mask each other, one in FP32 gains nothing.
    masked = [is_masked(x.effect, before) if x.effect else False for x in planned[:MOST_LEADERS]]
    count = max(count, len([*takewhile(bool, masked)]))
    return _with_groups(pair, planned[:count], result)


def _with_first(first: LayerResult, before: float) -> float:
    """The outputs' noise that is left when only the first layer runs in FP32, as far as known."""
    share = first.output_share
    return math.inf if share is None else before * (1 - share)


def _with_groups(
    pair: ModelPair, layers: Sequence[LayerResult], result: CompareResult
) -> list[str]:
    """The names of `layers`; behind one that overflows, those that must be pinned with it."""
    largest = {t.name: t.metrics.ref_amax for t in result.tensors}
    names: dict[str, None] = {}
    for layer in layers:
        group = [layer.name]
        if layer.overflows:
            group += overflow_group(pair, layer.name, largest, result.layers)
        names |= dict.fromkeys(group)
    return list(names)


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
class _RestoredRun:
    """The run of a comparison's model with some layers in FP32.

    Attributes:
        outputs: to compare.
        keep: those that the metric takes.
        parts: what some samples give, in order.
    """

    compared: Compared
    outputs: tuple[str, ...]
    keep: tuple[str, ...]
    parts: Iterator[Restored]

    @classmethod
    def begun(
        cls, compared: Compared, names: Sequence[str], outputs: tuple[str, ...]
    ) -> _RestoredRun:
        """The run with the layers `names` in FP32. Raises as Executor.map."""
        executor = compared.context.executor
        subset, known = _fp32_outputs(compared)
        keep = tuple(compared.sinks.keepers[0].outputs) if compared.metric else ()
        work = partial(
            open_restoration,
            context=compared.context,
            pair=compared.pair,
            subset=subset,
            names=frozenset(names),
            outputs=outputs,
            keep=keep,
            runs_reference=not known,
        )
        shards = executor.shards(len(subset.batches))
        batches = [part_of(subset, shard).batches for shard in shards]
        parts = executor.map(work, [{b: known.get(b) for b in each} for each in batches])
        return cls(compared, outputs, keep, parts)

    def result(self) -> tuple[float, float, float | None]:
        """The outputs' noise, that of the worst part of each, and the metric; None without one. To
        be asked for once."""
        totals, kept = ErrorTotals(), OutputKeeper(CANDIDATE, self.keep)
        for errors, outputs in self.parts:
            totals.add(errors)
            kept.by_batch |= outputs
        metric = self.compared.metric
        if metric is None:
            return totals.noise(), totals.worst_noise(), None
        reference = self.compared.sinks.keepers[0]
        task = MetricEvaluator.of(metric, self.compared.samples, reference)
        return totals.noise(), totals.worst_noise(), task(kept.joined())


def _fp32_outputs(compared: Compared) -> tuple[SampleSubset, Mapping[Batch, Tensors]]:
    """The samples, and what FP32 made of them, where that was kept."""
    known, samples = compared.sinks.keepers[0].by_batch, compared.samples
    if known and samples.batch_is_free:
        samples = samples.with_batch_size(max(batch.count for batch in known))
    if tuple(samples.batches()) == tuple(known):
        return whole(samples), known
    context = compared.context
    with closing(context.backend.open(compared.pair.reference.proto, ())) as session:
        return whole(probe(session, compared.samples, context.batch_size).samples), {}


Restored = tuple[ErrorTotals, Mapping[Batch, Tensors]]
"""What some batches give: the errors, and the outputs that are kept."""


def open_restoration(
    stack: ExitStack,
    *,
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    names: frozenset[str],
    outputs: Sequence[str],
    keep: Sequence[str],
    runs_reference: bool,
) -> Callable[[Mapping[Batch, Tensors | None]], Restored]:
    """The run with some layers in FP32, for an executor. A part is some batches, each with what
    FP32 made of it.

    Args:
        names: the layers.
        outputs: to compare; `keep` are those to return.
        runs_reference: FP32 runs again.
    """
    candidates = candidates_of(context, pair)
    assert candidates is not None  # `begin_restoration` has some
    candidate = stack.enter_context(closing(candidates.open(names, None, keep=False)))
    session = None
    if runs_reference:
        session = stack.enter_context(closing(context.backend.open(pair.reference.proto, ())))

    def run(part: Mapping[Batch, Tensors | None]) -> Restored:
        reference = run_of(session) if session else lambda one: part[one.batch] or {}
        kept = OutputKeeper(CANDIDATE, keep)
        totals = evaluate(
            SampleSubset(subset.samples, tuple(part)),
            {REFERENCE: reference, CANDIDATE: run_of(candidate)},
            {CANDIDATE: Comparison(tensors=tuple(outputs), options=output_options(pair.reference))},
            context,
            sinks=[kept] if keep else [],
        )
        return totals[CANDIDATE], kept.by_batch

    return run
