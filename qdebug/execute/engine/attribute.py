"""A lowered model on a real engine, side by side with FP32 and the simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import onnx

from qdebug.backends.base import Session
from qdebug.backends.engine import CaptureWay
from qdebug.engine_info.measurements import LayerTime
from qdebug.execute.context import runner_of
from qdebug.execute.engine.contradiction import without_contradicted
from qdebug.execute.engine.observe import EngineJob, observe_engine, opened
from qdebug.metrics.accumulate import REFERENCE, Comparison, ErrorTotals
from qdebug.metrics.sums import ErrorSums, MeasureOptions
from qdebug.metrics.tensor import worst_part_sqnr
from qdebug.network.graph import Graph
from qdebug.results.attribution import (
    Attribution,
    SimulationAgreement,
    attribute,
    simulation_agreement,
)
from qdebug.results.observation import CaptureCheck
from qdebug.run.executor import THIS_PROCESS
from qdebug.run.reducers import Errors
from qdebug.run.runner import Sink
from qdebug.run.variant import Reducer, as_it_is
from qdebug.types import Skipped

SIMULATION, ENGINE, CLEAN, PLAIN = "simulation", "engine", "clean engine", "FP32 engine"
"""Names of runs: the lowered model on ONNX Runtime, its engine while it is observed and as it is
used, and an engine without quantization."""
_QUANTIZATION = "quantization"
NOTHING_ELSE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class EngineFindings:
    """What an engine does, next to FP32 and the simulation.

    Attributes:
        attributions: of the tensors that were observed, by name in the reference, in the order
            of execution.
        clean: of the model's outputs, in the clean engine.
        worst_quantization_db, worst_kernel_db: see EngineExecution.
        outputs: errors of the model's float outputs, FP32 against the clean engine.
        latency_ms: median GPU time of one execution of the clean engine, of `latency_samples`.
        agreement: of the simulation with the engine.
        layer_times: of the layers of the clean engine.
        way, checks: see Observed.
        skipped: tensors that were not observed, by name in the reference.
        results: of the further reducers.
    """

    attributions: tuple[Attribution, ...]
    clean: tuple[Attribution, ...]
    worst_quantization_db: float
    worst_kernel_db: float
    outputs: Mapping[str, ErrorSums]
    latency_ms: float
    latency_samples: int
    layer_times: tuple[LayerTime, ...]
    agreement: SimulationAgreement
    way: CaptureWay
    checks: tuple[CaptureCheck, ...]
    skipped: tuple[Skipped, ...]
    results: Mapping[str, Any]


def attribute_engine(
    job: EngineJob,
    reference: Graph,
    candidate: Graph,
    tensors: Mapping[str, str],
    *,
    built: Graph | None = None,
    mismatch: bool = False,
    options: Mapping[str, MeasureOptions] = NOTHING_ELSE,
    reducers: Mapping[str, Reducer[Any]] = NOTHING_ELSE,
    sinks: Mapping[str, Sink] = NOTHING_ELSE,
) -> EngineFindings:
    """Run FP32, the simulation and the engine over all batches and split the engine's error.

    Args:
        tensors: reference tensor -> tensor of `candidate` that stands for it.
        built: what the engine is built of, where that is not `candidate`: the same tensors.
        mismatch: run an FP32 engine as well, to tell a reference mismatch tensor by tensor.
        options: what to measure of the model's outputs besides the totals.
        reducers: what else to compute of REFERENCE, SIMULATION, ENGINE and CLEAN, whose tensors
            have their names in the reference.
        sinks: see Runner.each.

    Raises:
        QdebugError: a model that cannot be built or run.
    """
    context = job.context
    names = {t: tensors[t] for t in tensors if t in reference.producers}
    read = [t for t in names.values() if t in candidate.consumers or t in candidate.outputs]
    with ExitStack() as stack:
        cpu = opened(stack, context.backend.open(reference.proto, [*names]))
        simulation = opened(stack, context.simulation.open(candidate.proto, [*names.values()]))
        observed = observe_engine(job, cpu, built or candidate, read)
        observed = without_contradicted(job, candidate, simulation, observed)
    with ExitStack() as stack:
        stack.callback(observed.clean.close)
        stack.callback(observed.session.close)
        first = job.feeds(job.subset.batches[0])
        latency = observed.clean.latency_ms(first)
        layer_times = observed.clean.layer_times(first)
        variants = {
            REFERENCE: as_it_is(reference.proto, context.backend, {t: t for t in names}),
            SIMULATION: as_it_is(candidate.proto, context.simulation, names),
            ENGINE: as_it_is(candidate.proto, _Opened(observed.session), names),
            CLEAN: as_it_is(candidate.proto, _Opened(observed.clean), names),
        }
        comparisons = _comparisons(options)
        if mismatch:
            way = CaptureWay.OUTPUTS
            plain = opened(
                stack, job.runtime.open(reference.proto, [*names], way, context.budget.bytes)
            )
            variants[PLAIN] = as_it_is(reference.proto, _Opened(plain))
            comparisons[PLAIN] = Comparison(REFERENCE, PLAIN)
        runner = runner_of(replace(context, executor=THIS_PROCESS), job.subset)
        errors = {name: Errors(comparison) for name, comparison in comparisons.items()}
        found = runner.run(variants, {**errors, **reducers}, "engine", sinks=sinks)
    totals: dict[str, ErrorTotals] = {
        PLAIN: ErrorTotals(),
        **{name: found[name] for name in errors},
    }
    attributions = tuple(_attributions(tensors, totals, ENGINE))
    own = {stand_in: t for t, stand_in in names.items()}
    unread = [Skipped(t, "no node reads it") for t in own if t not in set(read)]
    skipped = (*observed.session.skipped, *unread)
    return EngineFindings(
        attributions,
        tuple(_attributions(tensors, totals, CLEAN)),
        _worst_part_db(reference, totals[_QUANTIZATION]),
        _worst_part_db(reference, totals[_kernel(CLEAN)]),
        {t: sums for t, sums in totals[CLEAN].tensors.items() if t in tensors},
        latency,
        job.subset.batches[0].count,
        layer_times,
        simulation_agreement(attributions),
        observed.way,
        observed.checks,
        tuple(replace(s, tensor=own.get(s.tensor, s.tensor)) for s in skipped),
        {name: found[name] for name in reducers if name not in sinks},
    )


@dataclass(frozen=True)
class _Opened:
    """A backend that gives a session which is open: an engine is built and observed before it
    runs. See Backend."""

    session: Session
    name: str = "opened"

    def open(self, proto: onnx.ModelProto, capture: Sequence[str]) -> Session:
        """See Backend.open."""
        return self.session


def _comparisons(options: Mapping[str, MeasureOptions]) -> dict[str, Comparison]:
    """Quantization error, and total and kernel error of both engines."""
    found = {_QUANTIZATION: Comparison(REFERENCE, SIMULATION, options=options)}
    for engine in (ENGINE, CLEAN):
        found[engine] = Comparison(REFERENCE, engine, options=options)
        found[_kernel(engine)] = Comparison(SIMULATION, engine, options=options)
    return found


def _worst_part_db(reference: Graph, totals: ErrorTotals) -> float:
    """The lowest SQNR of a part of the model's outputs; NaN where one is broken, and without an
    output that is float."""
    measured = [totals.tensors[t] for t in reference.outputs if t in totals.tensors]
    values = [worst_part_sqnr(sums) for sums in measured]
    return math.nan if any(map(math.isnan, values)) else min(values, default=math.nan)


def _attributions(
    tensors: Iterable[str], totals: Mapping[str, ErrorTotals], engine: str
) -> Iterator[Attribution]:
    """Of those of `tensors` that every run gave, in their order."""
    quantization, kernel = totals[_QUANTIZATION].tensors, totals[_kernel(engine)].tensors
    total, plain = totals[engine].tensors, totals.get(PLAIN, ErrorTotals()).tensors
    for name in tensors:
        if name in quantization and name in kernel and name in total:
            parts = quantization[name], kernel[name], total[name]
            yield attribute(name, *parts, plain.get(name))


def _kernel(engine: str) -> str:
    return f"kernels of {engine}"
