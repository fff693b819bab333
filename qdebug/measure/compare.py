"""Compare a candidate run with its reference, execution by execution, and add up the errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from qdebug.measure.sums import (
    ErrorSums,
    MeasureOptions,
    error_energy,
    measure,
    sample_ratios,
    signal_energy,
)
from qdebug.types import Skipped, Tensors


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Attributes:
        tensors: reference tensor -> the candidate's tensor that stands for it.
        options: what to measure of a tensor beside the totals.
        local: layer -> (its output in the reference, its output when cut loose).
        outputs: the model's float outputs, by which samples are rated; empty to rate none.
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


class LocalEnergy(NamedTuple):
    """Energies of a layer's output when it reads the reference's activations."""

    error_sq: float
    ref_sq: float

    def plus(self, other: LocalEnergy) -> LocalEnergy:
        """The energies of both."""
        return LocalEnergy(self.error_sq + other.error_sq, self.ref_sq + other.ref_sq)


@dataclass(frozen=True)
class Errors:
    """Error totals of some executions; merge to get those of all.

    Attributes:
        tensors: sums by reference tensor.
        local: energies of the local error by layer, over the executions that had one.
        skipped: reference tensors that could not be compared, with the reason.
        local_samples: how many samples those executions held.
        output_ratios: per sample, the largest Σerr²/Σref² among the outputs.
    """

    tensors: dict[str, ErrorSums] = field(default_factory=dict)
    local: dict[str, LocalEnergy] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    local_samples: int = 0
    output_ratios: tuple[float, ...] = ()

    def joined(self, other: Errors) -> Errors:
        """These and those of other tensors over the same samples."""
        return Errors(
            {**self.tensors, **other.tensors},
            {**self.local, **other.local},
            {**self.skipped, **other.skipped},
            max(self.local_samples, other.local_samples),
        )


def compare_execution(comparison: Comparison, execution: Execution) -> Errors:
    """The errors of one execution."""
    errors = Errors(
        local_samples=execution.count if execution.local else 0,
        output_ratios=_output_ratios(comparison, execution),
    )
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
    if execution.local:
        _add_local(comparison, execution, errors)
    return errors


def _add_local(comparison: Comparison, execution: Execution, errors: Errors) -> None:
    for layer, (tensor, output) in comparison.local.items():
        sums = errors.tensors.get(tensor)
        reference, local = execution.reference[tensor], execution.local[output]
        if sums is not None and reference.shape == local.shape:
            # Where the cumulative run broke, the totals leave the reference's values out.
            signal = signal_energy(reference) if sums.mismatched_non_finite else sums.ref_sq
            errors.local[layer] = LocalEnergy(error_energy(reference, local), signal)


def merge_errors(parts: Iterable[Errors]) -> Errors:
    """The errors of all executions, added up in the order given."""
    total = Errors()
    local_samples = 0
    for part in parts:
        local_samples += part.local_samples
        for tensor, sums in part.tensors.items():
            known = total.tensors.get(tensor)
            total.tensors[tensor] = sums if known is None else known.merge(sums)
        for layer, energy in part.local.items():
            before = total.local.get(layer)
            total.local[layer] = energy if before is None else before.plus(energy)
        total.skipped.update(part.skipped)
    return replace(total, local_samples=local_samples)


def skipped_tensors(errors: Errors) -> tuple[Skipped, ...]:
    """The tensors that were left out in any execution."""
    return tuple(Skipped(tensor, reason) for tensor, reason in errors.skipped.items())


def _output_ratios(comparison: Comparison, execution: Execution) -> tuple[float, ...]:
    worst = [0.0] * execution.count
    for tensor in comparison.outputs:
        reference = execution.reference[tensor]
        candidate = execution.candidate[comparison.tensors[tensor]]
        if reference.shape == candidate.shape and reference.size:
            ratios = sample_ratios(reference, candidate, execution.count)
            worst = [max(pair) for pair in zip(worst, ratios, strict=True)]
    return tuple(worst)
