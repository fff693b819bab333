"""Compare a candidate run with its reference, execution by execution, and add up the errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qdebug.measure.sums import ErrorSums, MeasureOptions, error_energy, measure, sample_ratios
from qdebug.types import Skipped, Tensors


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Attributes:
        tensors: reference tensor -> the candidate's tensor that stands for it.
        options: what to measure of a tensor beside the totals.
        local: layer -> (its output in the reference, its output when cut loose).
        outputs: the model's float outputs.
    """

    tensors: Mapping[str, str]
    options: Mapping[str, MeasureOptions]
    local: Mapping[str, tuple[str, str]]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Execution:
    """One execution of all sessions: the samples it held and the tensors it gave."""

    start: int
    count: int
    reference: Tensors
    candidate: Tensors
    local: Tensors


@dataclass(frozen=True)
class Errors:
    """Error totals of some executions; merge to get those of all.

    Attributes:
        tensors: sums by reference tensor.
        local: Σerr² by layer, of its local error.
        skipped: reference tensors that could not be compared, with the reason.
        output_ratios: per sample, the largest Σerr²/Σref² among the outputs.
    """

    tensors: dict[str, ErrorSums] = field(default_factory=dict)
    local: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    output_ratios: tuple[float, ...] = ()


def compare_execution(comparison: Comparison, execution: Execution) -> Errors:
    """The errors of one execution."""
    errors = Errors(output_ratios=_output_ratios(comparison, execution))
    for tensor, stand_in in comparison.tensors.items():
        reference, candidate = execution.reference[tensor], execution.candidate[stand_in]
        if reference.shape != candidate.shape:
            errors.skipped[tensor] = (
                f"shape {reference.shape} in the reference, {candidate.shape} in the candidate"
            )
            continue
        errors.tensors[tensor] = measure(
            reference,
            candidate,
            first_sample=execution.start,
            samples=execution.count,
            options=comparison.options.get(tensor),
        )
    for layer, (tensor, output) in comparison.local.items():
        if execution.reference[tensor].shape == execution.local[output].shape:
            energy = error_energy(execution.reference[tensor], execution.local[output])
            errors.local[layer] = energy
    return errors


def merge_errors(parts: Iterable[Errors]) -> Errors:
    """The errors of all executions, added up in the order given."""
    total = Errors()
    for part in parts:
        for tensor, sums in part.tensors.items():
            known = total.tensors.get(tensor)
            total.tensors[tensor] = sums if known is None else known.merge(sums)
        for layer, energy in part.local.items():
            total.local[layer] = total.local.get(layer, 0.0) + energy
        total.skipped.update(part.skipped)
    return total


def skipped_tensors(errors: Errors) -> tuple[Skipped, ...]:
    """The tensors that were left out in any execution."""
    return tuple(Skipped(tensor, reason) for tensor, reason in errors.skipped.items())


def _output_ratios(comparison: Comparison, execution: Execution) -> tuple[float, ...]:
    worst = np.zeros(execution.count)
    for tensor in comparison.outputs:
        reference = execution.reference[tensor]
        candidate = execution.candidate[comparison.tensors[tensor]]
        if reference.shape == candidate.shape and reference.size:
            ratios = sample_ratios(reference, candidate, execution.count)
            worst = np.maximum(worst, ratios)
    return tuple(worst.tolist())
