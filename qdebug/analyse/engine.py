"""Execute a candidate's engine, and let its outputs decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qdebug.analyse.causes.engine import attributed_cause, not_as_planned
from qdebug.analyse.compared import Compared, judged
from qdebug.analyse.elsewhere import of_kernels
from qdebug.analyse.gate import task_result
from qdebug.analyse.layer_results import output_results
from qdebug.analyse.run_file import Evidence, Rows
from qdebug.config.compare import CompareSettings
from qdebug.engine_info.measurements import LayerTime
from qdebug.execute.engine.attribute import CLEAN, ENGINE, attribute_engine
from qdebug.execute.engine.build import Engine, capture_note, save_engine
from qdebug.execute.engine.latency import kernel_times
from qdebug.execute.engine.observe import EngineJob, preflight
from qdebug.execute.engine.request import build_request
from qdebug.execute.measure_options import measure_options
from qdebug.metrics.accumulate import REFERENCE
from qdebug.metrics.tasks.base import TaskMetric
from qdebug.network.layers import QUANTIZABLE_OPS
from qdebug.plan.pair import ModelPair
from qdebug.results.compare import LayerResult, OutputResult, TaskResult
from qdebug.results.engine import EngineExecution, EngineReport
from qdebug.run.outputs import NeededOutputs
from qdebug.run.variant import Reducer
from qdebug.store.schema import Role
from qdebug.types import Precision


@dataclass(frozen=True)
class Executed:
    """What an engine did.

    Attributes:
        outputs: the model's float outputs, FP32 against the clean engine.
        task: the end-to-end metric of both; None without one.
        layer_times: of the engine's layers.
    """

    execution: EngineExecution
    outputs: tuple[OutputResult, ...]
    task: TaskResult | None
    layer_times: tuple[LayerTime, ...]


def with_engine(compared: Compared, engine: Engine, settings: CompareSettings) -> Compared:
    """With an engine, which was built of the candidate. Where it can be executed its outputs decide
    the verdict; the errors of layers and tensors stay those of the simulation. What it gives for
    the samples whose activations were kept is kept, too.

    Raises:
        QdebugError: an engine that cannot be run, or written to a file that was asked for, or a
            metric that raised.
    """
    compared = compared.found(*engine.notes)
    pair, result = compared.pair, compared.result
    report = engine.report
    save_engine(engine, settings, force=settings.force)
    if report.not_executed_because:
        layers = _explained(pair, result.layers, report)
        notes = capture_note(settings, report.not_executed_because)
        return judged(compared.found(*notes, engine=report, layers=layers))
    job = EngineJob(engine.runtime, compared.context, compared.subset)
    done = execute_engine(job, pair, compared.gate.metric, compared.evidence)
    kernels = kernel_times(engine.info, done.layer_times)
    report = replace(report, execution=replace(done.execution, kernels=kernels))
    summary, elsewhere = result.summary, of_kernels(done.execution.outputs)
    if summary is not None and elsewhere is not None:
        summary = replace(summary, elsewhere=elsewhere)
    compared = compared.found(
        engine=report,
        summary=summary,
        layers=_explained(pair, result.layers, report),
        outputs=done.outputs,
        metric=done.task,
    )
    return judged(compared)


def _explained(
    pair: ModelPair, layers: Sequence[LayerResult], engine: EngineReport
) -> tuple[LayerResult, ...]:
    """`layers` with the causes that only the engine shows before those of the simulation."""
    mismatched = engine.audit.mismatched if engine.audit else ()
    wrong = {row.name: not_as_planned(row) for row in mismatched}
    done = engine.execution
    # The clean engine has the last word on the model's outputs.
    found = {a.tensor: a for a in (*done.tensors, *done.outputs)} if done else {}
    explained = []
    for layer in layers:
        reads, half = sorted(pair.reads(layer.name)), _is_half_product(layer)
        seen = attributed_cause(layer.tensor, found, reads, half_product=half)
        causes = [c for c in (wrong.get(layer.name), seen) if c is not None]
        explained.append(replace(layer, causes=(*causes, *layer.causes)))
    return tuple(explained)


def _is_half_product(layer: LayerResult) -> bool:
    return layer.precision is Precision.FP16 and layer.op_type in QUANTIZABLE_OPS


def execute_engine(
    job: EngineJob, pair: ModelPair, metric: TaskMetric | None, evidence: Evidence | None = None
) -> Executed:
    """Run FP32, the simulation and the engine side by side, after a preflight. What the engine
    gives is written where there is `evidence`.

    Raises:
        QdebugError: an engine that cannot be built or run, or a metric that raised.
    """
    built = build_request(job.runtime.typing, pair).graph
    before = preflight(job, pair.reference, built)
    outputs = [t for t in pair.reference.outputs if t in pair.tensors]
    reducers: dict[str, Reducer[Any]] = {}
    if metric is not None:
        for run in (REFERENCE, CLEAN):
            reducers[f"needed of {run}"] = NeededOutputs(
                run, tuple(outputs), metric, job.subset.samples
            )
    if evidence is not None:
        runs: dict[Role, tuple[str, ...]] = {"engine": (ENGINE, CLEAN)}
        reducers["rows"] = Rows(evidence.samples, frozenset(pair.tensors), runs)
    found = attribute_engine(
        job,
        pair.reference,
        pair.candidate,
        pair.tensors,
        built=built,
        mismatch=bool(before.reference_mismatch),
        options=measure_options(pair, outputs),
        reducers=reducers,
        sinks={"rows": evidence} if evidence is not None else {},
    )
    execution = EngineExecution(
        preflight=before,
        capture=str(found.way),
        checks=found.checks,
        tensors=found.attributions,
        outputs=found.clean,
        worst_quantization_db=found.worst_quantization_db,
        worst_kernel_db=found.worst_kernel_db,
        agreement=found.agreement,
        latency_ms=found.latency_ms,
        latency_samples=found.latency_samples,
        skipped=found.skipped,
        kernels=(),
    )
    results = output_results(pair, found.outputs)
    task = None
    if metric is not None:
        needed = [found.results[f"needed of {run}"] for run in (REFERENCE, CLEAN)]
        task = task_result(metric, job.subset.samples, *needed)
    return Executed(execution, results, task, found.layer_times)
