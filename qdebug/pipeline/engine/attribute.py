"""A lowered model on a real engine, side by side with FP32 and the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from qdebug.engine_info.profile import LayerTime
from qdebug.measure.attribution import Attribution, SimulationAgreement, agreement, attribute
from qdebug.measure.observation import CaptureCheck, add_errors
from qdebug.measure.sums import ErrorSums
from qdebug.model.graph import Graph
from qdebug.model.samples import Batch
from qdebug.pipeline.engine.observe import EngineJob, Observed, observe_engine, opened
from qdebug.run.base import Session
from qdebug.run.engine import CaptureWay
from qdebug.run.stream import map_in_order
from qdebug.types import Progress, Skipped, Tensors

EngineSink = Callable[[Batch, Tensors, Tensors, Tensors], None]
"""Takes what a batch gave, in order: tensors of the reference, those observed in the engine, and
the outputs of the clean one, all by name in the reference."""


@dataclass(frozen=True)
class EngineFindings:
    """What an engine does, next to FP32 and the simulation.

    Attributes:
        attributions: of the tensors that were observed, by name in the reference, in the order
            of execution.
        clean: of the model's outputs, in the clean engine.
        outputs: errors of the model's float outputs, FP32 against the clean engine.
        latency_ms: median GPU time of one execution of the clean engine, of `latency_samples`.
        agreement: of the simulation with the engine.
        layer_times: of the layers of the clean engine.
        way, checks: see Observed.
        skipped: tensors that were not observed, by name in the reference.
    """

    attributions: tuple[Attribution, ...]
    clean: tuple[Attribution, ...]
    outputs: Mapping[str, ErrorSums]
    latency_ms: float
    latency_samples: int
    layer_times: tuple[LayerTime, ...]
    agreement: SimulationAgreement
    way: CaptureWay
    checks: tuple[CaptureCheck, ...]
    skipped: tuple[Skipped, ...]


def attribute_engine(
    job: EngineJob,
    reference: Graph,
    candidate: Graph,
    tensors: Mapping[str, str],
    *,
    built: Graph | None = None,
    mismatch: bool = False,
    sinks: Sequence[EngineSink] = (),
) -> EngineFindings:
    """Run FP32, the simulation and the engine over all batches and split the engine's error.

    Args:
        tensors: reference tensor -> tensor of `candidate` that stands for it.
        built: what the engine is built of, where that is not `candidate`: the same tensors.
        mismatch: run an FP32 engine as well, to tell a reference mismatch tensor by tensor.
        sinks: get every batch, while the next ones run.

    Raises:
        QdebugError: a model that cannot be built or run.
    """
    inner = [t for t in tensors if t in reference.producers]
    stand_ins = [tensors[t] for t in inner]
    with ExitStack() as stack:
        cpu = opened(stack, job.reference.open(reference.proto, inner))
        simulation = opened(stack, job.simulation.open(candidate.proto, stand_ins))
        observed = observe_engine(job, cpu, built or candidate, stand_ins)
        stack.callback(observed.clean.close)
        stack.callback(observed.session.close)
        plain = None
        if mismatch:
            way, limit = CaptureWay.OUTPUTS, job.group_bytes
            plain = opened(stack, job.runtime.open(reference.proto, inner, way, limit))
        sums, clean = _run(job, _Runs(cpu, simulation, observed, plain), tensors, sinks)
        first = job.feeds(job.batches[0])
        latency = observed.clean.latency_ms(first)
        layer_times = observed.clean.layer_times(first)
    attributions = tuple(sums.attributions(tensors))
    names = {tensors[t]: t for t in inner}
    return EngineFindings(
        attributions,
        tuple(clean.attributions(tensors)),
        clean.total,
        latency,
        job.batches[0].count,
        layer_times,
        agreement(attributions),
        observed.way,
        observed.checks,
        tuple(replace(s, tensor=names.get(s.tensor, s.tensor)) for s in observed.session.skipped),
    )


@dataclass
class _Sums:
    quantization: dict[str, ErrorSums] = field(default_factory=dict)
    kernel: dict[str, ErrorSums] = field(default_factory=dict)
    total: dict[str, ErrorSums] = field(default_factory=dict)
    reference: dict[str, ErrorSums] = field(default_factory=dict)

    def add(self, cpu: Tensors, simulated: Tensors, engine: Tensors, plain: Tensors) -> None:
        """One execution; all by the reference's names."""
        add_errors(self.quantization, cpu, simulated)
        add_errors(self.kernel, simulated, engine)
        add_errors(self.total, cpu, engine)
        add_errors(self.reference, cpu, plain)

    def attributions(self, tensors: Iterable[str]) -> Iterator[Attribution]:
        """Of those of `tensors` that every run gave, in their order."""
        for name in tensors:
            if name in self.quantization and name in self.kernel and name in self.total:
                yield attribute(
                    name,
                    self.quantization[name],
                    self.kernel[name],
                    self.total[name],
                    self.reference.get(name),
                )


@dataclass(frozen=True)
class _Runs:
    cpu: Session
    simulation: Session
    observed: Observed
    plain: Session | None


def _run(
    job: EngineJob, runs: _Runs, tensors: Mapping[str, str], sinks: Sequence[EngineSink]
) -> tuple[_Sums, _Sums]:
    """The sums of the observed tensors, and of the outputs of the clean engine."""

    def one(batch: Batch) -> tuple[Tensors, Tensors, Tensors, Tensors, Tensors]:
        feeds = job.feeds(batch)
        return (
            runs.cpu.run(feeds),
            _renamed(runs.simulation.run(feeds), tensors),
            _renamed(runs.observed.session.run(feeds), tensors),
            _renamed(runs.observed.clean.run(feeds), tensors),
            runs.plain.run(feeds) if runs.plain else {},
        )

    sums, clean = _Sums(), _Sums()
    results = map_in_order(one, job.batches, job.workers)
    each = zip(job.batches, results, strict=True)
    for k, (batch, (cpu, simulated, engine, outputs, plain)) in enumerate(each, 1):
        sums.add(cpu, simulated, engine, plain)
        clean.add(cpu, simulated, outputs, plain)
        for sink in sinks:
            sink(batch, cpu, engine, outputs)
        job.progress(Progress("engine", k, len(job.batches)))
    return sums, clean


def _renamed(found: Tensors, tensors: Mapping[str, str]) -> Tensors:
    return {t: found[stand_in] for t, stand_in in tensors.items() if stand_in in found}
