"""The lockstep pass: reference, candidate and cut layers over all samples, one group at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from qdebug.backends.base import Session
from qdebug.backends.sizing import capture_groups, probe
from qdebug.execute.context import Context, one_at_a_time
from qdebug.execute.decompose import MOST_SAMPLES, PartsSink, decomposition
from qdebug.execute.evaluator import Run, Sink, evaluate, open_all, run_of
from qdebug.metrics.accumulate import (
    CANDIDATE,
    FEEDS,
    LOCAL,
    REFERENCE,
    Comparison,
    ErrorTotals,
    ExecutedBatch,
)
from qdebug.metrics.sums import MeasureOptions
from qdebug.network.graph import Graph
from qdebug.network.layers import Layer
from qdebug.network.macs import elements_per_batch, macs_per_sample
from qdebug.network.outputparts import OutputParts, output_parts
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset, whole
from qdebug.plan.pair import ModelPair
from qdebug.plan.quantize import Grid
from qdebug.plan.rewrite.cut import LocalGraph, cut_layers
from qdebug.types import Precision, Tensors

CHANNEL_AXIS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Where the channels are in the output of an operator that has them."""

MOST_CHANNELS = 4096
"""A longer axis of an output is none of channels."""

StoredReference = Callable[[Batch, Sequence[str]], Tensors | None]
"""Reference tensors of a batch from an earlier run, or None to execute the model."""

CUMULATIVE = "cumulative"
"""The comparison whose errors rate the samples."""
_INPUTS = "inputs"


_LOCAL_SAMPLES, _LEAST_SAMPLES = 16, 2
"""What local errors are measured on, unless the user says; of a large model fewer."""
_LOCAL_MACS, _PARTS_MACS = 6e10, 3e10
"""Work of the samples that have local errors, and of those whose errors are decomposed, which takes
three or four executions each: some seconds."""


@dataclass(frozen=True)
class Due:
    """Which executions measure more than errors, by the indices of their batches.

    Attributes:
        local: have local errors.
        parts: have their errors decomposed.
    """

    local: frozenset[int] = frozenset()
    parts: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, subset: SampleSubset, local_samples: int | None, parts_samples: int = MOST_SAMPLES
    ) -> Due:
        """Those of a pass over `subset`.

        Args:
            local_samples: about how many samples to measure local errors on, spread evenly; None
                for all. Running every layer twice on all of them would cost half as much again,
                and moves a ratio of energies by little.
            parts_samples: about how many of these to decompose the errors of.
        """
        total, size = len(subset.batches), subset.samples.batch_size
        wanted = total if local_samples is None else -(-local_samples // size)
        local = [subset.batches[i].index for i in sorted(_spread(total, wanted))]
        parts = _spread(len(local), -(-parts_samples // size))
        return cls(frozenset(local), frozenset(local[i] for i in parts))


def due_of(pair: ModelPair, subset: SampleSubset, local_samples: int | None) -> Due:
    """What a comparison measures where: on `local_samples`, or as many as their work allows."""
    macs = max(1.0, macs_per_sample(pair.layers, subset))
    local = local_samples or affordable_samples(macs)
    parts = local_samples or max(_LEAST_SAMPLES, min(MOST_SAMPLES, int(_PARTS_MACS / macs)))
    return Due.of(subset, local, parts)


def affordable_samples(macs: float) -> int:
    """What local errors are measured on, of a model that takes so many MACs per sample."""
    return max(_LEAST_SAMPLES, min(_LOCAL_SAMPLES, int(_LOCAL_MACS / max(1.0, macs))))


@dataclass(frozen=True)
class Lockstep:
    """One group of tensors, ready to be compared over all samples.

    Attributes:
        reference: the session of the FP32 model.
        candidate: runs the model under test.
        local: runs its layers, fed with reference activations; None where there are none.
        comparison: cumulative and local errors.
        clipped: of the inputs, beyond which magnitude the Q/DQ pairs that read them clip.
        not_float: tensors of the group that cannot be compared.
        parts: makes the sink that decomposes the errors of the batches with these indices; None
            where they are not decomposed.
    """

    reference: Session
    candidate: Run
    local: Run | None
    comparison: Comparison
    clipped: Mapping[str, MeasureOptions]
    not_float: tuple[str, ...]
    parts: Callable[[Collection[int]], PartsSink] | None = None

    def run(
        self,
        subset: SampleSubset,
        context: Context,
        *,
        due: Due,
        stored: StoredReference | None = None,
        sinks: Sequence[Sink] = (),
        stage: str = "compare",
    ) -> ErrorTotals:
        """The error totals of the group; memory for `workers + 1` batches.

        Args:
            stored: the reference of an earlier run.
            sinks: what else takes each batch.
            stage: what progress is reported as; "" reports none.

        Raises:
            QdebugError: samples cannot be read, or a model does not run.
        """
        runs: dict[str, Run] = {REFERENCE: self._reference(stored), CANDIDATE: self.candidate}
        if self.local is not None:
            local = self.local
            runs[LOCAL] = lambda one: local(one) if one.batch.index in due.local else {}
        comparisons = {
            CUMULATIVE: self.comparison,
            _INPUTS: Comparison(FEEDS, FEEDS, tuple(self.clipped), self.clipped),
        }
        parts = self.parts(due.parts) if self.parts else None
        sinks = [*sinks, *([parts] if parts else [])]
        errors = evaluate(subset, runs, comparisons, context, sinks=sinks, stage=stage)
        if parts:
            errors[CUMULATIVE].parts = parts.parts
        return errors[CUMULATIVE].joined(errors[_INPUTS])

    def _reference(self, stored: StoredReference | None) -> Run:
        names = list(self.reference.dtypes)

        def run(executed: ExecutedBatch) -> Tensors:
            found = stored(executed.batch, names) if stored else None
            return self.reference.run(executed.feeds) if found is None else found

        return run


def open_lockstep(
    stack: ExitStack,
    context: Context,
    pair: ModelPair,
    tensors: Sequence[str],
    *,
    rated: bool,
    decomposed: bool = False,
) -> Lockstep:
    """Open the sessions for one group of tensors; `stack` closes them.

    `rated` asks for the errors of every sample's outputs, by which the worst ones are kept: then
    the outputs are compared with every group, so that all groups keep the same samples.
    `decomposed` asks for the parts of the layers' errors.
    """
    group = set(tensors)
    finals = [t for t in pair.reference.outputs if t in pair.tensors] if rated else []
    finals = [t for t in finals if t in pair.reference.producers]
    tensors = list(dict.fromkeys([*tensors, *finals]))
    wanted = [
        layer
        for layer in pair.layers
        if layer.output in group and pair.precisions[layer.name] is not Precision.FP32
    ]
    cut = cut_layers(pair.reference, pair.candidate, wanted)
    shown = [t for t in (cut.inputs if cut else ()) if t in pair.reference.producers]
    shown = list(dict.fromkeys([*tensors, *shown]))
    plan = decomposition(pair, group, cut) if decomposed else None
    both = [t for t in shown if t in pair.tensors] if plan else tensors
    models = [
        (context.backend, pair.reference.proto, shown),
        (context.simulation, pair.candidate.proto, [pair.tensors[t] for t in both]),
    ]
    if cut:
        models.append((context.simulation, cut.proto, []))
    if plan and plan.unrounded:
        models.append((context.backend, plan.unrounded.proto, []))
    reference, candidate, *local = open_all(stack, models)
    floats = tuple(t for t in tensors if _is_float(pair, t, reference, candidate))
    cut_outputs = cut.outputs if cut else {}
    comparison = Comparison(
        tensors=floats,
        options=measure_options(pair, floats),
        local={x.name: (x.output, cut_outputs[x.name]) for x in wanted if x.name in cut_outputs},
        rated=tuple(t for t in finals if t in floats),
    )
    inputs = {spec.name for spec in pair.reference.inputs}
    return Lockstep(
        reference=reference,
        candidate=run_of(candidate, stand_ins(pair)),
        local=fed_by_reference(cut, local[0]) if cut else None,
        comparison=comparison,
        clipped={t: _clipping(grid) for t, grid in pair.grids.items() if t in inputs},
        not_float=tuple(t for t in tensors if t not in floats),
        parts=partial(PartsSink, plan, CUMULATIVE, local) if plan else None,
    )


@dataclass(frozen=True)
class Measured:
    """What passes over the samples measure.

    Attributes:
        due: what the executions of these samples measure.
        rated, decomposed: see `open_lockstep`.
        stored, sinks, stage: see `Lockstep.run`.
        next_group: called before each of several passes.
        sized: is told the bytes of each tensor in one sample, before the first pass.
    """

    due: Callable[[SampleSubset], Due]
    rated: bool = False
    decomposed: bool = False
    stored: StoredReference | None = None
    sinks: Sequence[Sink] = ()
    stage: str = "compare"
    next_group: Callable[[], None] = lambda: None
    sized: Callable[[Mapping[str, float]], None] = lambda _: None

    def opened(
        self, stack: ExitStack, context: Context, pair: ModelPair, tensors: Sequence[str]
    ) -> Lockstep:
        """See `open_lockstep`."""
        return open_lockstep(
            stack, context, pair, tensors, rated=self.rated, decomposed=self.decomposed
        )

    def run(self, one: Lockstep, subset: SampleSubset, context: Context) -> ErrorTotals:
        """See `Lockstep.run`."""
        due, stored = self.due(subset), self.stored
        return one.run(subset, context, due=due, stored=stored, sinks=self.sinks, stage=self.stage)


def run_within(
    memory_budget: int,
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    measured: Measured,
    *,
    resize: bool = False,
) -> tuple[ErrorTotals, list[str]]:
    """The error totals of all tensors: in one pass over the samples, or in several, over groups of
    tensors, where more than the budget would be held at once. And what cannot be compared.

    Args:
        memory_budget: bytes.
        resize: execute all samples of `subset`, in batches of a size that suits.

    Raises:
        QdebugError: samples cannot be read, or a model does not run.
    """
    tensors = [t for t in pair.tensors if t in pair.reference.producers]
    at_least = 4.0 * elements_per_batch(pair.layers, subset)
    if 3 * at_least * _held(context) > memory_budget:  # without opening all of it
        context = one_at_a_time(context)
    with ExitStack() as stack:
        one = measured.opened(stack, context, pair, tensors)
        chosen = context.batch_size if resize else subset.samples.batch_size
        sizing = probe(one.reference, subset.samples, chosen)
        subset = whole(sizing.samples) if resize else subset
        sizes = sizing.bytes_per_batch
        measured.sized(sizing.bytes_per_sample)
        groups = capture_groups(tensors, sizes, _held(context), memory_budget)
        if len(groups) == 1:
            return measured.run(one, subset, context), list(one.not_float)
    if context.parallel.workers > 1:  # one execution at a time takes less, and all in one pass
        context = one_at_a_time(context)
        groups = capture_groups(tensors, sizes, _held(context), memory_budget)
    total = ErrorTotals()
    not_float: list[str] = []
    for group in groups:
        measured.next_group()
        with ExitStack() as stack:
            one = measured.opened(stack, context, pair, group)
            total = total.joined(measured.run(one, subset, context))
        not_float += one.not_float
    return total, not_float


def _held(context: Context) -> int:
    """Executions whose tensors exist at once; one more where errors are decomposed meanwhile."""
    workers = context.parallel.workers
    return 1 if workers == 1 else workers + 2


def stand_ins(pair: ModelPair) -> dict[str, str]:
    """The candidate's tensor for every tensor and output of the reference."""
    return {**{t: t for t in pair.reference.outputs}, **pair.tensors}


def fed_by_reference(cut: LocalGraph, session: Session) -> Run:
    """A run of `session`, which is the graph of `cut`, on the reference's activations."""

    def run(executed: ExecutedBatch) -> Tensors:
        sources = {**executed.feeds, **executed.reference}
        return session.run({name: sources[name] for name in cut.inputs})

    return run


def measure_options(pair: ModelPair, tensors: Sequence[str]) -> dict[str, MeasureOptions]:
    """What to measure of each tensor besides the totals: clipping, channels where it has them."""
    by_output: dict[str, Layer] = {layer.output: layer for layer in pair.layers}
    options = {}
    for tensor in tensors:
        layer = by_output.get(tensor)
        axis = CHANNEL_AXIS.get(layer.op_type) if layer else None
        grid = pair.grids.get(tensor)
        if axis is not None or grid is not None:
            options[tensor] = replace(_clipping(grid), channel_axis=axis)
        if axis is None and tensor in pair.reference.outputs:
            known = options.get(tensor, MeasureOptions())
            options[tensor] = _of_output(pair.reference, pair.parts, tensor, known)
    return options


def output_options(graph: Graph) -> dict[str, MeasureOptions]:
    """What to measure of the outputs of a model: channels, and the parts that they consist of."""
    found, floats = output_parts(graph), filter(graph.is_float, graph.outputs)
    return {t: _of_output(graph, found, t, MeasureOptions()) for t in floats}


def _of_output(
    graph: Graph, found: Mapping[str, OutputParts], tensor: str, options: MeasureOptions
) -> MeasureOptions:
    """The channels of an output are along the axis of its parts; without parts, along the first
    axis behind the samples that is not too long."""
    parts = found.get(tensor)
    if parts is not None:
        starts = tuple(part.first for part in parts.parts)
        return replace(options, channel_axis=parts.axis, part_starts=starts)
    shape = graph.shapes.get(tensor, ())
    sizes = {k: size for k, size in enumerate(shape) if k and isinstance(size, int)}
    fitting = [k for k, size in sizes.items() if 1 < size <= MOST_CHANNELS]
    axis = next(iter(fitting), 1 if 1 not in sizes else None)
    return replace(options, channel_axis=axis, most_channels=MOST_CHANNELS)


def _clipping(grid: Grid | None) -> MeasureOptions:
    """Beyond what a pair clips; a symmetric one has the magnitude of its highest value as both."""
    if grid is None:
        return MeasureOptions()
    low, high = grid.limits
    return MeasureOptions(bounds=(-high if grid.symmetric else low, high))


def _spread(total: int, wanted: int) -> set[int]:
    """`wanted` of `total` numbers, evenly spread; at least two, since data may be sorted."""
    wanted = min(total, max(2, wanted))
    return {k * total // wanted for k in range(wanted)}


def _is_float(pair: ModelPair, tensor: str, reference: Session, candidate: Session) -> bool:
    stand_in = pair.tensors[tensor]
    kinds = (reference.dtypes.get(tensor), candidate.dtypes.get(stand_in))
    return all(k is not None and np.issubdtype(k, np.floating) for k in kinds)
