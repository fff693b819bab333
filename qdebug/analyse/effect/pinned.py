"""The planned model with some of its layers in FP32 together, over many samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from qdebug.analyse.effect.leave_out import High, candidates_of
from qdebug.errors import BackendError, ModelError
from qdebug.execute.context import Context
from qdebug.execute.evaluator import OutputKeeper, Reducer, evaluate, run_of
from qdebug.execute.measure_options import output_options
from qdebug.metrics.accumulate import CANDIDATE, REFERENCE, Comparison, ErrorTotals
from qdebug.network.samples import Batch
from qdebug.network.samples.subset import SampleSubset
from qdebug.plan.pair import ModelPair
from qdebug.run.executor import Shard, Work, part_of, shards_of
from qdebug.types import Tensors


@dataclass(frozen=True)
class PinnedTask:
    """What to run sets of layers on.

    Attributes:
        known: what FP32 made of the batches of `subset`; where there is nothing it runs again.
        outputs: to compare; `keep` are those to return.
        on_kernels: see `candidates_of`.
        reduce: see OutputKeeper.
    """

    pair: ModelPair
    subset: SampleSubset
    known: Mapping[Batch, Tensors]
    outputs: tuple[str, ...]
    keep: tuple[str, ...]
    on_kernels: bool = False
    reduce: Reducer | None = None


@dataclass(frozen=True)
class PinnedRun:
    """What a model with some layers in FP32 gives on some batches: the errors, and the outputs that
    are kept."""

    errors: ErrorTotals
    outputs: Mapping[Batch, Tensors]


@dataclass(frozen=True)
class PinnedPart:
    """Some layers in FP32 on some batches, each with what FP32 made of it, where that is known."""

    high: High
    batches: Mapping[Batch, Tensors | None]


def pinned_work(
    context: Context, task: PinnedTask, stack: ExitStack
) -> Work[PinnedPart, PinnedRun | None]:
    """What `begin_pinned` does with each set, for several calls: what this process opens for it
    stays open until `stack` closes, activations to start from too.

    Raises:
        QdebugError: the FP32 model is to run, and does not open.
    """
    work = _work(context, task)
    if context.executor.workers:
        return work
    run = work(stack)
    return lambda _: run


def _work(context: Context, task: PinnedTask) -> Work[PinnedPart, PinnedRun | None]:
    return partial(
        open_pinned,
        context=context,
        pair=task.pair,
        subset=task.subset,
        outputs=task.outputs,
        keep=task.keep,
        runs_reference=not task.known,
        on_kernels=task.on_kernels,
        reduce=task.reduce,
    )


def begin_pinned(
    context: Context,
    task: PinnedTask,
    sets: Sequence[Collection[str]],
    work: Work[PinnedPart, PinnedRun | None] | None = None,
) -> Iterator[PinnedRun | None]:
    """What the model gives with the layers of each set in FP32, in order; None where the runtime
    does not take it. Other processes begin at once, this one when it is asked for a result.

    Args:
        work: of `pinned_work`, for further sets of the same task.

    Raises:
        QdebugError, OutOfTimeError: as Executor.map, when asked for a result.
    """
    count = len(task.subset.batches)
    shards = shards_of(count) if context.executor.workers else [Shard(0, count)]
    shares = [part_of(task.subset, shard).batches for shard in shards]
    parts = [
        PinnedPart(frozenset(names), {b: task.known.get(b) for b in share})
        for names in sets
        for share in shares
    ]
    results = context.executor.map(work or _work(context, task), parts)
    return _joined_runs(results, len(sets), len(shares))


def _joined_runs(
    results: Iterator[PinnedRun | None], sets: int, shares: int
) -> Iterator[PinnedRun | None]:
    for _ in range(sets):
        yield _joined([next(results) for _ in range(shares)])
    _ = [*results]  # it closes what it opened


def _joined(parts: Sequence[PinnedRun | None]) -> PinnedRun | None:
    totals, outputs = ErrorTotals(), dict[Batch, Tensors]()
    for part in parts:
        if part is None:
            return None
        totals.add(part.errors)
        outputs |= part.outputs
    return PinnedRun(totals, outputs)


def open_pinned(
    stack: ExitStack,
    *,
    context: Context,
    pair: ModelPair,
    subset: SampleSubset,
    outputs: tuple[str, ...],
    keep: tuple[str, ...],
    runs_reference: bool,
    on_kernels: bool,
    reduce: Reducer | None,
) -> Callable[[PinnedPart], PinnedRun | None]:
    """Runs with some layers in FP32, for an executor. The arguments are those of PinnedTask;
    `runs_reference`: FP32 runs again."""
    candidates = candidates_of(context, pair, on_kernels=on_kernels)
    assert candidates is not None  # whoever asks has some
    session = None
    if runs_reference:
        session = stack.enter_context(closing(context.backend.open(pair.reference.proto, ())))

    comparison = Comparison(tensors=outputs, options=output_options(pair.reference))

    def run(part: PinnedPart) -> PinnedRun | None:
        reference = run_of(session) if session else lambda one: part.batches[one.batch] or {}
        kept = OutputKeeper(CANDIDATE, keep, reduce=reduce)
        try:
            with closing(candidates.open(part.high)) as candidate:
                totals = evaluate(
                    SampleSubset(subset.samples, tuple(part.batches)),
                    {REFERENCE: reference, CANDIDATE: run_of(candidate)},
                    {CANDIDATE: comparison},
                    context,
                    sinks=[kept] if keep else [],
                )
        except (ModelError, BackendError):
            return None
        return PinnedRun(totals[CANDIDATE], kept.by_batch)

    return run
