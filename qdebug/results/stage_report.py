"""The steps from a training framework to an engine, and whether each holds: what a comparison ends
with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from qdebug.result import MaybeText
from qdebug.results.attribution import KERNEL
from qdebug.results.words import in_decibels, score
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


def _framework(result: CompareResult) -> Stage:
    between, found = "framework → ONNX", result.framework
    if found is None:
        asked = option("framework", "DATA")
        return Stage(
            FRAMEWORK, between, StageState.NOT_RUN, None, "its outputs are not given", asked
        )
    worst = found.worst
    limit = f"rounding explains {in_decibels(found.limit_db)}"
    told = f"SQNR {in_decibels(worst.sqnr_db)} ({limit})"
    if found.agrees is None:
        told += ", too much to tell a wrong export from a right one"
    if found.agrees is False and found.first_differing:
        told += f", first at {found.first_differing}"
    state = _gated(result, FRAMEWORK, holds=found.agrees)
    return Stage(FRAMEWORK, between, state, worst.sqnr_db, told)


def _quantization(result: CompareResult) -> Stage:
    between = f"ONNX → {result.precision.upper()} (simulated)"
    engine = result.engine.execution if result.engine else None
    if engine is not None:
        sqnr = engine.worst_quantization_db
    else:
        parts = (x for output in result.outputs for x in output.part_sqnrs_db)
        sqnr = min(parts, key=_badness, default=math.nan)
    # The outputs of an engine have the error of both steps: they tell neither by itself.
    scopes = ("layer", "tensor") if engine else ("output", "part", "layer", "tensor")
    state = _gated(result, QUANTIZATION, *scopes)
    return Stage(QUANTIZATION, between, state, sqnr, f"SQNR {in_decibels(sqnr)}{_worst_of(result)}")


def _kernels(result: CompareResult) -> Stage:
    engine = result.engine
    between = f"{result.precision.upper()} → engine (kernels)"
    if engine is None or engine.execution is None:
        if (failure := result.engine_failure) is not None:
            told = f"the engine failed: {failure.message}"
            return Stage(KERNELS, between, StageState.NOT_RUN, None, told, failure.hint)
        why = engine.not_executed_because if engine else "no engine was built"
        asked = option("backend", "openvino")
        return Stage(KERNELS, between, StageState.NOT_RUN, None, why, asked)
    sqnr = engine.execution.worst_kernel_db
    holds = engine.passed and all(o.label != KERNEL for o in engine.execution.outputs)
    told = f"SQNR {in_decibels(sqnr)}{_worst_of(result)} on {engine.library}"
    if engine.audit and not engine.passed:
        told += f"; {counted(engine.audit.mismatches, 'layer')} not built as planned"
    return Stage(KERNELS, between, _gated(result, KERNELS, holds=holds), sqnr, told)


def _task(result: CompareResult) -> Stage:
    between, metric = "the task's score", result.metric
    if metric is None:
        if (failure := result.metric_failure) is not None:
            return Stage(TASK, between, StageState.NOT_RUN, None, failure.message, failure.hint)
        asked = option("metric", "NAME")
        return Stage(TASK, between, StageState.NOT_RUN, None, "no metric is given", asked)
    ends = [f"{score(metric.reference)} in FP32", f"{score(metric.candidate)} now"]
    if result.framework is not None and result.framework.score is not None:
        ends.insert(0, f"{score(result.framework.score)} in the framework")
    told = f"{metric.name} {', '.join(ends)}"
    if metric.uncertainty is not None:
        low, high = metric.uncertainty.interval
        told += f" (95% {score(low)} to {score(high)})"
    return Stage(TASK, between, _gated(result, "", "metric"), None, told)


def _worst_of(result: CompareResult) -> str:
    """That the SQNR is one of several, where the opening sentence has the mean of their noise."""
    parts = sum(len(output.parts) or 1 for output in result.outputs)
    what = "parts" if any(output.parts for output in result.outputs) else "outputs"
    return f" in the worst of {parts} {what}" if parts > 1 else ""


def _badness(sqnr: float) -> float:
    return -math.inf if math.isnan(sqnr) else sqnr


def _gated(
    result: CompareResult, stage: str, *scopes: str, holds: bool | None = None
) -> StageState:
    """Whether a step holds: by the conditions of the gate about it, else by what was found."""
    about = [
        c
        for c in result.conditions
        if c.figure.split(".")[0] in scopes or c.figure.startswith(f"stage.{stage}.")
    ]
    if about:
        return StageState.PASSED if all(c.passed for c in about) else StageState.FAILED
    if holds is None:
        return StageState.MEASURED
    return StageState.PASSED if holds else StageState.FAILED
