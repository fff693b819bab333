"""What every stage of a command needs besides its settings: the runtime, and whom to notify."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qdebug.run.base import Backend
from qdebug.run.simulation import SimulationBackend
from qdebug.run.sizing import Parallelism
from qdebug.types import Fp16Kernels, Precision, ProgressCallback

if TYPE_CHECKING:
    from qdebug.pipeline.cluster.dispatch import Cluster


@dataclass(frozen=True)
class Context:
    """The surroundings of one run.

    Attributes:
        backend: executes references, and models as they are.
        simulation: executes candidates.
        batch_size: None where it may be chosen.
        fp16_kernels: those of `simulation`.
        cluster: takes work off this process; None where it does all of it.
        until: of a pass over samples, no batch but the first is begun later, on the clock of
            `time.monotonic`.
    """

    backend: Backend
    simulation: Backend
    parallel: Parallelism
    progress: ProgressCallback
    batch_size: int | None = None
    fp16_kernels: Fp16Kernels = Fp16Kernels.EXACT
    cluster: Cluster | None = None
    until: float = math.inf


def emulates_fp16(context: Context, precisions: Collection[Precision]) -> bool:
    """Whether a simulation with layers in these precisions takes longer than one in INT8, since it
    emulates FP16 kernels."""
    return Precision.FP16 in precisions and context.fp16_kernels is not Fp16Kernels.EXACT


def simulation_context(
    parallel: Parallelism,
    progress: ProgressCallback,
    batch_size: int | None = None,
    fp16_kernels: Fp16Kernels = Fp16Kernels.TENSORRT,
    cluster: Cluster | None = None,
) -> Context:
    """ONNX Runtime on the CPU for references and candidates; `fp16_kernels` are those of the
    candidates."""
    exact = SimulationBackend(parallel.threads)
    simulation = SimulationBackend(parallel.threads, fp16_kernels)
    return Context(exact, simulation, parallel, progress, batch_size, fp16_kernels, cluster)


def one_at_a_time(context: Context) -> Context:
    """The same simulation with one execution in flight, on all cores: it takes less memory."""
    parallel = context.parallel
    alone = Parallelism(1, parallel.workers * parallel.threads)
    simulation = simulation_context(
        alone, context.progress, context.batch_size, context.fp16_kernels, context.cluster
    )
    return replace(simulation, until=context.until)
