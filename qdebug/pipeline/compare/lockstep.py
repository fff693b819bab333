"""The lockstep pass: reference, candidate and cut layers over all samples, one group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import onnx

from qdebug.measure.compare import (
    Comparison,
    Errors,
    Execution,
    compare_execution,
    merge_errors,
)
from qdebug.measure.sums import ErrorSums, MeasureOptions, measure
from qdebug.measure.task import join_outputs
from qdebug.model.layers import Layer
from qdebug.model.samples import Batch, Samples
from qdebug.pipeline.context import Context
from qdebug.plan.pair import ModelPair
from qdebug.plan.rewrite.cut import cut_layers
from qdebug.run.base import Backend, Session
from qdebug.run.stream import map_in_order
from qdebug.types import Array, Feeds, Precision, Progress, ProgressCallback, Tensors

CHANNEL_AXIS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Where the channels are in the output of an operator that has them."""

StoredReference = Callable[[Batch, Sequence[str]], Tensors | None]
"""Reference tensors of a batch from an earlier run, or None to execute the model."""

ExecutionSink = Callable[[Execution, Errors], None]
"""Takes each execution, in order, while its arrays are alive."""


@dataclass
class TaskOutputs:
    """Final outputs of both runs, kept only when a metric needs them."""

    reference: dict[str, list[Array]] = field(default_factory=dict)
    candidate: dict[str, list[Array]] = field(default_factory=dict)
    seen: int = 0

    def add(self, execution: Execution, pair: ModelPair) -> None:
        """Keep the outputs of one execution, once: every group of tensors yields them again."""
        if execution.start < self.seen:
            return
        self.seen = execution.start + execution.count
        for name in pair.reference.outputs:
            stand_in = pair.tensors.get(name, name)
            if name in execution.reference and stand_in in execution.candidate:
                self.reference.setdefault(name, []).append(execution.reference[name])
                self.candidate.setdefault(name, []).append(execution.candidate[stand_in])

    def joined(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Reference and candidate outputs, [samples, …].

        Raises:
            MetricError: an output has another shape for some samples.
        """
        return join_outputs(self.reference), join_outputs(self.candidate)


@dataclass(frozen=True)
class Pass:
    """One group of tensors, ready to be compared over all samples."""

    pair: ModelPair
    comparison: Comparison
    reference: Session
    candidate: Session
    local: Session | None
    local_feeds: tuple[str, ...]
    not_float: tuple[str, ...]

    def execute(
        self, batch: Batch, feeds: Feeds, stored: StoredReference | None, with_local: bool
    ) -> Execution:
        """Run the sessions on one batch, one after the other."""
        reference = stored(batch, list(self.reference.dtypes)) if stored else None
        if reference is None:
            reference = self.reference.run(feeds)
        candidate = self.candidate.run(feeds)
        local: Tensors = {}
        if self.local is not None and with_local:
            sources = {**feeds, **reference}
            local = self.local.run({name: sources[name] for name in self.local_feeds})
        return Execution(batch.start, batch.count, reference, candidate, local)


def open_pass(
    stack: ExitStack, context: Context, pair: ModelPair, tensors: Sequence[str], *, rated: bool
) -> Pass:
    """Open the sessions for one group of tensors; `stack` closes them.

    `rated` asks for the errors of every sample's outputs, by which the worst ones are kept: then
    the outputs are compared with every group, so that all groups keep the same samples.
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
    feeds = cut.inputs if cut else ()
    fed = (t for t in feeds if t in pair.reference.producers)
    wanted_sessions = [
        (context.backend, pair.reference.proto, list(dict.fromkeys([*tensors, *fed]))),
        (context.simulation, pair.candidate.proto, [pair.tensors[t] for t in tensors]),
    ]
    if cut:
        wanted_sessions.append((context.simulation, cut.proto, []))
    reference, candidate, *local = _open_all(stack, wanted_sessions)
    floats = [t for t in tensors if _is_float(pair, t, reference, candidate)]
    cut_outputs = cut.outputs if cut else {}
    comparison = Comparison(
        tensors={t: pair.tensors[t] for t in floats},
        options=measure_options(pair, floats),
        local={x.name: (x.output, cut_outputs[x.name]) for x in wanted if x.name in cut_outputs},
        outputs=tuple(t for t in finals if t in floats),
    )
    return Pass(
        pair=pair,
        comparison=comparison,
        reference=reference,
        candidate=candidate,
        local=local[0] if local else None,
        local_feeds=feeds,
        not_float=tuple(t for t in tensors if t not in floats),
    )


def _open_all(
    stack: ExitStack, models: Sequence[tuple[Backend, onnx.ModelProto, list[str]]]
) -> list[Session]:
    """A session for each model with the tensors to capture, opened side by side: optimizing a
    graph and packing its weights take a good part of a short run."""
    with ThreadPoolExecutor(max_workers=len(models)) as pool:
        futures = [pool.submit(backend.open, proto, capture) for backend, proto, capture in models]
        wait(futures)
    for future in futures:
        if future.exception() is None:
            stack.callback(future.result().close)
    return [future.result() for future in futures]


@dataclass(frozen=True)
class PassOptions:
    """How to run a pass.

    Attributes:
        workers: executions in flight.
        local_samples: about how many samples to measure local errors on, spread evenly. Running
            every layer twice on all of them would cost half as much again, and moves a ratio of
            energies by little.
        stored: the reference of an earlier run.
        sinks: what else takes each execution.
    """

    workers: int
    local_samples: int
    stored: StoredReference | None
    sinks: Sequence[ExecutionSink]


def run_pass(
    one: Pass, samples: Samples, options: PassOptions, progress: ProgressCallback
) -> Errors:
    """The error totals of a group over all samples; memory for `workers + 1` executions."""
    batches = list(samples.batches())
    due = _spread(len(batches), -(-options.local_samples // samples.batch_size))

    def work(batch: Batch) -> tuple[Execution, Errors]:
        feeds = samples.feeds(batch.start, batch.count)
        execution = one.execute(batch, feeds, options.stored, batch.index in due)
        errors = compare_execution(one.comparison, execution)
        errors.tensors.update(_clipped_inputs(one.pair, batch, feeds))
        return execution, errors

    def consumed() -> Iterator[Errors]:
        for execution, errors in map_in_order(work, batches, options.workers):
            for sink in options.sinks:
                sink(execution, errors)
            progress(Progress("compare", execution.start + execution.count, samples.count))
            yield errors

    return merge_errors(consumed())


def _clipped_inputs(pair: ModelPair, batch: Batch, feeds: Feeds) -> dict[str, ErrorSums]:
    """The model's inputs against themselves: what the Q/DQ pairs that read them clip."""
    return {
        name: measure(
            feeds[name],
            feeds[name],
            first_sample=batch.start,
            samples=batch.count,
            options=MeasureOptions(limit),
        )
        for name, limit in pair.amax.items()
        if name in feeds and name not in pair.reference.producers
    }


def _spread(total: int, wanted: int) -> set[int]:
    """`wanted` of `total` numbers, evenly spread; at least two, since data may be sorted."""
    wanted = min(total, max(2, wanted))
    return {k * total // wanted for k in range(wanted)}


def _is_float(pair: ModelPair, tensor: str, reference: Session, candidate: Session) -> bool:
    stand_in = pair.tensors[tensor]
    kinds = (reference.dtypes.get(tensor), candidate.dtypes.get(stand_in))
    return all(k is not None and np.issubdtype(k, np.floating) for k in kinds)


def measure_options(pair: ModelPair, tensors: Sequence[str]) -> dict[str, MeasureOptions]:
    """What to measure of each tensor beside the totals: clipping, channels where it has them."""
    by_output: dict[str, Layer] = {layer.output: layer for layer in pair.layers}
    options = {}
    for tensor in tensors:
        layer = by_output.get(tensor)
        axis = CHANNEL_AXIS.get(layer.op_type) if layer else None
        limit = pair.amax.get(tensor)
        if axis is not None or limit is not None:
            options[tensor] = MeasureOptions(limit, axis)
    return options
