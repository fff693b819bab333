"""What every stage of a command needs besides its settings: the runtime, and whom to notify."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from qdebug.backends.base import Backend
from qdebug.backends.budget import DEFAULT_BUDGET, Budget
from qdebug.backends.options import DEFAULT_SESSIONS, SessionSettings
from qdebug.backends.simulation import SimulationBackend
from qdebug.backends.sizing import Parallelism, parallelism, probe
from qdebug.errors import UsageError
from qdebug.memo import Memo
from qdebug.network.graph import Graph
from qdebug.network.samples.subset import SampleSubset, is_whole, whole
from qdebug.run.executor import THIS_PROCESS, Executor
from qdebug.run.runner import Runner
from qdebug.run.timelimit import OutOfTimeError
from qdebug.types import Fp16Kernels, Precision, ProgressCallback
from qdebug.wording import option


class Executing(Protocol):
    """The settings of a command that executes models. It may have `memory_budget`, `batch_size`,
    `fp16_kernels` and `cache` as well; what it has no setting for is as by default."""

    @property
    def custom_op_library(self) -> tuple[str, ...]:
        """Libraries of custom operators."""
        ...


@dataclass(frozen=True)
class Context:
    """The surroundings of one run.

    Attributes:
        backend: executes references, and models as they are.
        simulation: executes candidates.
        batch_size: None where it may be chosen.
        fp16_kernels: those of `simulation`.
        executor: executes what can be divided.
        budget: what the command may take.
        sessions: what holds for every session of ONNX Runtime.
        memo: keeps results on disk; None where the user turns that off.
    """

    backend: Backend
    simulation: Backend
    parallel: Parallelism
    progress: ProgressCallback
    batch_size: int | None = None
    fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT
    executor: Executor = THIS_PROCESS
    budget: Budget = field(default_factory=Budget)
    sessions: SessionSettings = DEFAULT_SESSIONS
    memo: Memo | None = None

    @property
    def ends_at(self) -> float:
        """See Budget."""
        return self.budget.ends_at

    def until(self, ends_at: float) -> Context:
        """The same within another time, on the clock of `time.monotonic`."""
        return replace(self, budget=self.budget.until(ends_at))


def emulates_fp16(context: Context, precisions: Collection[Precision]) -> bool:
    """Whether a simulation with layers in these precisions takes longer than one in INT8, since it
    emulates FP16 kernels."""
    return Precision.FP16 in precisions and context.fp16_kernels is not Fp16Kernels.EXACT


def session_settings(settings: Executing) -> SessionSettings:
    """What the settings of a command ask of every session that it opens."""
    return SessionSettings.of(settings.custom_op_library)


def context_of(
    settings: Executing, progress: ProgressCallback, executor: Executor = THIS_PROCESS
) -> Context:
    """The surroundings that the settings of a command ask for; `executor` is `open_executor`'s."""

    def setting(name: str, default: Any) -> Any:
        return getattr(settings, name, default)

    context = simulation_context(
        parallelism(),
        progress,
        session_settings(settings),
        setting("batch_size", None),
        Fp16Kernels(setting("fp16_kernels", Fp16Kernels.TENSORRT)),
        executor,
        cached=setting("cache", False),
    )
    return replace(context, budget=Budget(setting("memory_budget", DEFAULT_BUDGET)))


def simulation_context(
    parallel: Parallelism,
    progress: ProgressCallback,
    sessions: SessionSettings,
    batch_size: int | None = None,
    fp16_kernels: Fp16Kernels = Fp16Kernels.TENSORRT,
    executor: Executor = THIS_PROCESS,
    *,
    cached: bool = False,
) -> Context:
    """ONNX Runtime on the CPU for references and candidates; `fp16_kernels` are those of the
    candidates. Where `cached`, results are kept on disk."""
    exact = SimulationBackend(parallel.threads, sessions=sessions)
    simulation = SimulationBackend(parallel.threads, fp16_kernels, sessions)
    return Context(
        exact,
        simulation,
        parallel,
        progress,
        batch_size,
        fp16_kernels,
        executor,
        sessions=sessions,
        memo=Memo() if cached else None,
    )


def runner_of(context: Context, subset: SampleSubset) -> Runner:
    """What runs variants over `subset` for a command."""
    return Runner(
        subset,
        workers=context.parallel.workers,
        ends_at=context.ends_at,
        progress=context.progress,
        executor=context.executor,
        memo=context.memo,
    )


def sized(
    context: Context, graph: Graph, subset: SampleSubset, capture: Sequence[str] = ()
) -> SampleSubset:
    """The samples in the executions that one process would choose.

    Raises:
        QdebugError: samples cannot be read, or the model does not run.
    """
    if not is_whole(subset) or not subset.samples.batch_is_free:
        return subset
    with closing(context.backend.open(graph.proto, capture)) as session:
        return whole(probe(session, subset.samples, context.batch_size).samples)


_DURING = {
    "calibrate": "while the ranges were calibrated",
    "reference": "while the FP32 model was run",
    "metric": "while the metric was computed",
}


@contextmanager
def time_limit_told(limit_s: float | None) -> Iterator[None]:
    """Work that a time limit may end before there is any result.

    Raises:
        UsageError: it did.
    """
    try:
        yield
    except OutOfTimeError as over:
        during = _DURING.get(over.stage, "during the first evaluation")
        raise UsageError(
            f"{option('time_limit', f'{limit_s or 0:g}')}: the time was over {during}, before "
            "anything could be tried",
            f"Give more time or fewer samples ({option('samples')}). Ranges that were calibrated "
            "are kept for the next run.",
            code="QD-USAGE-TIME-LIMIT",
        ) from over


def held_at_once(context: Context) -> int:
    """Executions whose tensors exist at once."""
    workers = context.parallel.workers
    return 1 if workers == 1 else workers + 1


def one_at_a_time(context: Context) -> Context:
    """The same simulation with one execution in flight, on all cores: it takes less memory."""
    parallel = context.parallel
    alone = Parallelism(1, parallel.workers * parallel.threads)
    simulation = simulation_context(
        alone,
        context.progress,
        context.sessions,
        context.batch_size,
        context.fp16_kernels,
        context.executor,
    )
    return replace(simulation, budget=context.budget, memo=context.memo)
