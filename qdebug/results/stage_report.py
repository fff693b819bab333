"""The steps from a training framework to an engine, and whether each holds: what a comparison ends
with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from qdebug.result import MaybeText
from qdebug.results.attribution import KERNEL
from qdebug.results.words import in_decibels, interval, score
from qdebug.wording import counted, option

if TYPE_CHECKING:
    from qdebug.results.compare import CompareResult

FRAMEWORK, QUANTIZATION, KERNELS, TASK = "framework", "quantization", "kernels", "task"


class StageState(StrEnum):
    """Whether a step holds. MEASURED: nothing says what it should reach."""

    PASSED = "passed"
    FAILED = "failed"
    MEASURED = "measured"
    NOT_RUN = "not-run"

    @property
    def words(self) -> str:
        """For people."""
        return self.value.replace("-", " ")


@dataclass(frozen=True)
class Stage:
    """One step.

    Attributes:
        name: framework, quantization, kernels or task.
        between: what is compared in it, for people.
        state: see StageState.
        sqnr_db: of the worst part of the outputs, of the framework of the worst output; null of the
            task, and where it was not measured.
        told: what was found, for people; of one that was not run, why. next_step: what to add to
            run it; null where it was run.
    """

    name: str
    between: str
    state: StageState
    sqnr_db: float | None
    told: str
    next_step: MaybeText = ""


def stages_of(result: CompareResult) -> tuple[Stage, ...]:
    """The four steps of a comparison, in order."""
    return _framework(result), _quantization(result), _kernels(result), _task(result)


def _not_run(name: str, between: str, why: str, next_step: str) -> Stage:
    return Stage(name, between, StageState.NOT_RUN, None, why, next_step)


def _framework(result: CompareResult) -> Stage:
    between, found = "framework → ONNX", result.framework
    if found is None:
        asked = option("framework", "DATA")
        return _not_run(FRAMEWORK, between, "its outputs are not given", asked)
    sqnr, limit = found.worst.sqnr_db, in_decibels(found.limit_db)
    doubt = ", too much to tell a wrong export from a right one" if found.agrees is None else ""
    wrong = found.agrees is False and found.first_differing
    where = f", first at {found.first_differing}" if wrong else ""
    told = f"SQNR {in_decibels(sqnr)} (rounding explains {limit}){doubt}{where}"
    return Stage(FRAMEWORK, between, _gated(result, FRAMEWORK, holds=found.agrees), sqnr, told)


def _quantization(result: CompareResult) -> Stage:
    between = f"ONNX → {result.precision.upper()} (simulated)"
    engine = result.engine.execution if result.engine else None
    parts = (x for output in result.outputs for x in output.part_sqnrs_db)
    sqnr = min(parts, key=lambda db: -math.inf if math.isnan(db) else db, default=math.nan)
    if engine is not None:
        sqnr = engine.worst_quantization_db
    # The outputs of an engine have the error of both steps: they tell neither by itself.
    scopes = ("layer", "tensor") if engine else ("output", "part", "layer", "tensor")
    state = _gated(result, QUANTIZATION, *scopes)
    return Stage(QUANTIZATION, between, state, sqnr, f"SQNR {in_decibels(sqnr)}{_worst_of(result)}")


def _kernels(result: CompareResult) -> Stage:
    engine, failure = result.engine, result.engine_failure
    between = f"{result.precision.upper()} → engine (kernels)"
    if engine is None or engine.execution is None:
        if failure is not None:
            told = f"the engine failed: {failure.message}"
            return _not_run(KERNELS, between, told, failure.hint)
        why = engine.not_executed_because if engine else "no engine was built"
        return _not_run(KERNELS, between, why, option("backend", "openvino"))
    sqnr = engine.execution.worst_kernel_db
    holds = engine.passed and all(o.label != KERNEL for o in engine.execution.outputs)
    wrong = counted(engine.audit.mismatches, "layer") if engine.audit and not engine.passed else ""
    unlike = f"; {wrong} not built as planned" if wrong else ""
    told = f"SQNR {in_decibels(sqnr)}{_worst_of(result)} on {engine.library}{unlike}"
    return Stage(KERNELS, between, _gated(result, KERNELS, holds=holds), sqnr, told)


def _task(result: CompareResult) -> Stage:
    between, metric, failure = "the task's score", result.metric, result.metric_failure
    if metric is None:
        if failure is not None:
            return _not_run(TASK, between, failure.message, failure.hint)
        return _not_run(TASK, between, "no metric is given", option("metric", "NAME"))
    before = result.framework.score if result.framework is not None else None
    ends = (
        "" if before is None else f"{score(before)} in the framework",
        f"{score(metric.reference)} in FP32",
        f"{score(metric.candidate)} now",
    )
    within = interval(metric.uncertainty.interval if metric.uncertainty else None)
    told = f"{metric.name} {', '.join(filter(None, ends))}{within}"
    return Stage(TASK, between, _gated(result, "", "metric"), None, told)


def _worst_of(result: CompareResult) -> str:
    """That the SQNR is one of several, where the opening sentence has the mean of their noise."""
    parts = sum(len(output.parts) or 1 for output in result.outputs)
    what = "parts" if any(output.parts for output in result.outputs) else "outputs"
    return f" in the worst of {parts} {what}" if parts > 1 else ""


def _gated(
    result: CompareResult, stage: str, *scopes: str, holds: bool | None = None
) -> StageState:
    """Whether a step holds: by the conditions of the gate about it, else by what was found."""
    about = [
        c.passed
        for c in result.conditions
        if c.figure.split(".")[0] in scopes or c.figure.startswith(f"stage.{stage}.")
    ]
    if not about and holds is None:
        return StageState.MEASURED
    return StageState.PASSED if (all(about) if about else holds) else StageState.FAILED
