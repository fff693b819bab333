"""The pass of `compare`: reference, candidate and isolated layers over all samples, and what is
summed of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qdebug.analyse.flips import Counted, FlipCounts
from qdebug.analyse.parts import Parts, decomposition
from qdebug.backends.sizing import capture_groups, probe
from qdebug.errors import MetricError
from qdebug.execute.context import Context, held_at_once, one_at_a_time, runner_of
from qdebug.execute.measure_options import clipping_of, measure_options
from qdebug.memo import digest_of
from qdebug.metrics.accumulate import (
    CANDIDATE,
    FEEDS,
    LOCAL,
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
    compare_batch,
)
from qdebug.metrics.effect import noise_by_sample, output_energies
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.macs import macs_per_sample, tensor_bytes
from qdebug.network.outputparts import OutputParts
from qdebug.network.samples import Samples
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.cut import LocalGraph, cut_layers
from qdebug.run.outputs import ByBatch, NeededOutputs
from qdebug.run.reducers import Attempted, Outputs
from qdebug.run.variant import FedByReference, Reducer, Variant, as_it_is
from qdebug.types import Array, Precision

_LOCAL_SAMPLES, _PARTS_SAMPLES, _LEAST_SAMPLES = 16, 8, 2
"""What local errors are measured on, and decomposed on, unless the user says; of a large model
fewer."""
_LOCAL_MACS, _PARTS_MACS = 6e10, 3e10
"""Work of these samples, which run two and four times more: some seconds."""
HELD = 3
"""Times that a tensor is held: by the reference, the candidate and the cut layers."""
_RAW_SHARE = 1 / 8
"""Of the memory budget, for outputs of which a metric needs less: kept, FP32 need not run again."""


@dataclass(frozen=True)
class PairErrors:
    """What the pass over all samples measures.

    Attributes:
        errors: of all tensors.
        not_float: tensors that cannot be compared.
        flips: the decisions that both models make.
        energies: of the outputs by sample, as of `output_energies`; None where they cannot be told
            by sample.
        reference, candidate: what the metric needs of both, by batch, or why it does not take
            their outputs; None without a metric.
        raw: the outputs of the reference, by batch, where there is room for those of all.
    """

    errors: ErrorTotals
    not_float: tuple[str, ...]
    flips: Counted
    energies: Array | None
    reference: ByBatch | MetricError | None
    candidate: ByBatch | MetricError | None
    raw: ByBatch

    @property
    def noise(self) -> Array | None:
        """The part of each sample in the outputs' noise, float64 [samples]; None as `energies`."""
        return None if self.energies is None else noise_by_sample(self.energies)

    def needed(self) -> tuple[ByBatch, ByBatch]:
        """What the metric needs of the reference, and of the candidate.

        Raises:
            MetricError: the metric does not take the outputs.
        """
        for one in (self.reference, self.candidate):
            if isinstance(one, MetricError):
                raise one
        assert isinstance(self.reference, dict) and isinstance(self.candidate, dict)
        return self.reference, self.candidate


def compare_pair(
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    metric: TaskMetric | None,
    *,
    local_samples: int | None = None,
) -> PairErrors:
    """Compare all tensors of a pair over `subset`, in one pass or, where the tensors of the batches
    in flight exceed the budget, in several, over groups of tensors.

    Args:
        local_samples: about how many samples to measure local errors on; None for as many as their
            work allows.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    graph = pair.reference
    tensors = [t for t in pair.tensors if t in graph.producers]
    sizes = tensor_bytes(graph, subset)
    if sum(sizes.get(t, 0) for t in tensors) * HELD * held_at_once(context) > context.budget.bytes:
        context = one_at_a_time(context)  # takes less, and all in one pass mostly
    room = context.budget.bytes // (HELD * held_at_once(context))
    flips = FlipCounts.of(context, pair)
    due = _due(pair, subset, local_samples)
    runner = runner_of(context, subset)
    total, not_float, found = ErrorTotals(), list[str](), dict[str, Any]()
    for group in capture_groups(tensors, sizes, room) or [[]]:
        opened = _Pass(context, pair, group, due)
        reducers: dict[str, Reducer[Any]] = {"errors": opened.errors, "flips": flips}
        reducers |= {"parts": opened.parts} if opened.parts else {}
        if not found:
            reducers |= _of_outputs(pair, subset, metric, sizes, context.budget.bytes)
        results = runner.run(opened.variants, reducers, "compare")
        errors: GroupErrors = results["errors"]
        errors.totals.parts = results.get("parts", {})
        total = total.joined(errors.totals)
        not_float += errors.not_float
        if found:
            results["flips"] = flips.merge(found["flips"], results["flips"])
        found |= results
    return PairErrors(
        total,
        tuple(dict.fromkeys(not_float)),
        found["flips"],
        _by_sample(found.get("energies"), subset.count),
        found.get(REFERENCE),
        found.get(CANDIDATE),
        found.get("raw", {}),
    )


def sized_for(context: Context, pair: ModelPair, samples: Samples) -> SampleSubset:
    """All samples, in executions whose tensors have a size that suits the machine.

    Raises:
        QdebugError: samples cannot be read, or the model does not run.
    """
    if context.batch_size is None and samples.batch_is_free:
        per_batch = sum(tensor_bytes(pair.reference, whole(samples)).values())
        with closing(context.backend.open(pair.reference.proto, ())) as session:
            samples = probe(session, samples, None, per_batch / samples.batch_size).samples
    return whole(samples)


def affordable_samples(macs: float) -> int:
    """What local errors are measured on, of a model that takes so many MACs per sample."""
    return max(_LEAST_SAMPLES, min(_LOCAL_SAMPLES, int(_LOCAL_MACS / max(1.0, macs))))


def stand_ins(pair: ModelPair) -> dict[str, str]:
    """The candidate's tensor for every tensor and output of the reference."""
    return {**{t: t for t in pair.reference.outputs}, **pair.tensors}


@dataclass(frozen=True)
class _Due:
    """The indices of the batches that have local errors, and that are decomposed."""

    local: frozenset[int]
    parts: frozenset[int]


def reference_and_candidate(
    context: Context, pair: ModelPair, tensors: Sequence[str]
) -> dict[str, Variant]:
    """Both models, with these tensors of the reference observed in each that has them."""
    names = stand_ins(pair)
    shown = {t: t for t in tensors}
    reference = as_it_is(pair.reference.proto, context.backend, shown)
    both = {t: names[t] for t in tensors if t in names}
    candidate = as_it_is(pair.candidate.proto, context.simulation, both)
    return {REFERENCE: reference, CANDIDATE: candidate}


class _Pass:
    """The variants of a group of tensors, and what compares them."""

    def __init__(
        self,
        context: Context,
        pair: ModelPair,
        group: Sequence[str],
        due: _Due,
    ) -> None:
        graph, members = pair.reference, set(group)
        quantized = [
            layer
            for layer in pair.layers
            if layer.output in members and pair.precisions[layer.name] is not Precision.FP32
        ]
        cut = cut_layers(graph, pair.candidate, quantized)
        plan = decomposition(pair, members, cut)
        read = [t for t in (cut.inputs if cut else ()) if t in graph.producers]
        shown = list(dict.fromkeys([*group, *read]))
        self.variants = reference_and_candidate(context, pair, shown)
        local = {}
        if cut is not None:
            self.variants[LOCAL] = _isolated(context, cut, due.local)
            outputs = cut.outputs
            local = {x.name: (x.output, outputs[x.name]) for x in quantized if x.name in outputs}
        self.parts: Parts | None = None
        if plan is not None:
            self.parts = plan.reducer(due.parts)
            self.variants |= plan.variants(context, due.parts)
        inputs = {spec.name for spec in graph.inputs}
        self.errors = PairTotals(
            tuple(group),
            Comparison(options=measure_options(pair, group), local=local),
            {t: clipping_of(grid) for t, grid in pair.grids.items() if t in inputs},
        )


def _isolated(context: Context, cut: LocalGraph, batches: frozenset[int]) -> Variant:
    feeds = FedByReference(cut.inputs)
    one = as_it_is(cut.proto, context.simulation)
    return replace(one, reads=(REFERENCE,), feeds=feeds, batches=batches)


@dataclass
class GroupErrors:
    """The errors of a group of tensors, and those of them that cannot be compared."""

    totals: ErrorTotals
    not_float: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairTotals:
    """The errors of tensors of both models, local errors, and how far inputs are clipped. See
    Reducer.

    Attributes:
        tensors: those to compare, of which those that are no floats are left out.
        clipped: of the inputs, beyond which magnitude the Q/DQ pairs that read them clip.
    """

    tensors: tuple[str, ...]
    comparison: Comparison
    clipped: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, CANDIDATE, *((LOCAL,) if self.comparison.local else ())

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("pair", self.tensors, self.comparison, self.clipped)

    def reduce(self, executed: ExecutedBatch) -> GroupErrors:
        """See Reducer."""
        runs = executed.reference, executed.of(CANDIDATE)
        there = [t for t in self.tensors if all(t in run for run in runs)]
        floats = [t for t in there if all(run[t].dtype.kind == "f" for run in runs)]
        totals = compare_batch(replace(self.comparison, tensors=tuple(floats)), executed)
        inputs = Comparison(FEEDS, FEEDS, tuple(self.clipped), self.clipped)
        totals = totals.joined(compare_batch(inputs, executed))
        return GroupErrors(totals, tuple(t for t in self.tensors if t not in floats))

    def merge(self, before: GroupErrors, after: GroupErrors) -> GroupErrors:
        """See Reducer."""
        before.totals.add(after.totals)
        return before


@dataclass(frozen=True)
class OutputEnergies:
    """Σerr² and Σref² of the outputs by sample, of each batch in order; None for one whose samples
    cannot be told apart. See Reducer."""

    outputs: tuple[str, ...]
    parts: Mapping[str, OutputParts]

    @property
    def reads(self) -> tuple[str, ...]:
        """See Reducer."""
        return REFERENCE, CANDIDATE

    @property
    def key(self) -> str:
        """See Reducer."""
        return digest_of("energies", self.outputs, self.parts)

    def reduce(self, executed: ExecutedBatch) -> list[Array]:
        """See Reducer."""
        reference, candidate = executed.reference, executed.of(CANDIDATE)
        if not self.outputs or any(t not in reference for t in self.outputs):
            return []
        count = executed.batch.count
        return [output_energies(reference, candidate, self.outputs, count, self.parts)]

    def merge(self, before: list[Array], after: list[Array]) -> list[Array]:
        """See Reducer."""
        return before + after


def _of_outputs(
    pair: ModelPair,
    subset: SampleSubset,
    metric: TaskMetric | None,
    sizes: Mapping[str, int],
    budget_bytes: int,
) -> dict[str, Reducer[Any]]:
    """What is kept of the outputs: energies by sample, what the metric needs, and FP32's where they
    fit."""
    graph, both = pair.reference, {*pair.tensors, *pair.candidate.outputs}
    outputs = tuple(t for t in graph.outputs if t in both)
    floats = tuple(t for t in outputs if t in pair.candidate.outputs and graph.is_float(t))
    found: dict[str, Reducer[Any]] = {"energies": OutputEnergies(floats, pair.parts)}
    if metric is not None:
        for run in (REFERENCE, CANDIDATE):
            found[run] = Attempted(NeededOutputs(run, outputs, metric, subset.samples))
    if len(subset.batches) * sum(sizes.get(t, 0) for t in outputs) <= budget_bytes * _RAW_SHARE:
        found["raw"] = Outputs(REFERENCE, outputs)
    return found


def _by_sample(batches: Sequence[Array] | None, samples: int) -> Array | None:
    if not batches or sum(one.shape[2] for one in batches) != samples:
        return None
    return np.concatenate(batches, axis=2)


def _due(pair: ModelPair, subset: SampleSubset, local_samples: int | None) -> _Due:
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    local = local_samples or affordable_samples(macs)
    fitting = max(_LEAST_SAMPLES, min(_PARTS_SAMPLES, int(_PARTS_MACS / macs)))
    parts = local_samples or fitting
    size, indices = subset.samples.batch_size, [batch.index for batch in subset.batches]
    chosen = _spread(indices, -(-local // size))
    return _Due(frozenset(chosen), frozenset(_spread(chosen, -(-parts // size))))


def _spread(numbers: Sequence[int], wanted: int) -> list[int]:
    """`wanted` of them, evenly spread; at least two, since data may be sorted."""
    wanted = min(len(numbers), max(2, wanted))
    return [numbers[k * len(numbers) // wanted] for k in range(wanted)]
