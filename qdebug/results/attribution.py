"""Where the error of an engine comes from: from quantization, or from its kernels.

Three runs of the same samples: FP32, the simulation (the lowered model, executed as it is), and
the engine built from that same lowered model. FP32 against the simulation is pure quantization
error; the simulation against the engine is pure kernel and fusion error. In FP16 the simulation
rounds inside a layer as TensorRT's kernels are known to, so that counts as quantization, unless it
was told to sum exactly (Fp16Kernels).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qdebug.metrics.sums import ErrorSums
from qdebug.metrics.tensor import sqnr_of

RELEVANT_DB = 60.0
"""Above this SQNR an error is left unexplained; FP16 rounding and TF32 are there."""

TOLERANCE_DB = 1.0
"""Two errors that differ by no more are the same error."""

KERNEL, QUANTIZATION, REFERENCE_MISMATCH = "kernel", "quantization", "reference-mismatch"


@dataclass(frozen=True)
class Attribution:
    """The error of one tensor of an engine, in parts. Each is an SQNR in dB, NaN where one side is
    not finite and the other is.

    Attributes:
        quantization_db: FP32 against the simulation.
        kernel_db: the simulation against the engine.
        total_db: FP32 against the engine.
        reference_db: FP32 against an engine that was built without quantization; None if there is
            none to compare with.
        kernel_share: of the energy of both parts, 0 to 1.
        label: the larger part: "kernel", "quantization", or "reference-mismatch" where an engine
            without quantization is about as wrong; "" where there is little to explain.
    """

    tensor: str
    quantization_db: float
    kernel_db: float
    total_db: float
    reference_db: float | None
    kernel_share: float
    label: str


def attribute(
    tensor: str,
    quantization: ErrorSums,
    kernel: ErrorSums,
    total: ErrorSums,
    reference: ErrorSums | None = None,
) -> Attribution:
    """Split the error of a tensor; see Attribution for what each pair compares."""
    share = _kernel_share(quantization, kernel)
    return Attribution(
        tensor,
        sqnr_of(quantization),
        sqnr_of(kernel),
        sqnr_of(total),
        None if reference is None else sqnr_of(reference),
        share,
        _label(share, total, reference),
    )


def _kernel_share(quantization: ErrorSums, kernel: ErrorSums) -> float:
    if quantization.mismatched_non_finite or kernel.mismatched_non_finite:
        # Where the simulation broke, the engine need not have.
        return 0.0 if quantization.mismatched_non_finite else 1.0
    both = quantization.sq_err + kernel.sq_err
    return kernel.sq_err / both if both else 0.0


def _label(share: float, total: ErrorSums, reference: ErrorSums | None) -> str:
    if sqnr_of(total) >= RELEVANT_DB:
        return ""
    if reference is not None and _as_wrong(reference, total):
        return REFERENCE_MISMATCH
    return KERNEL if share > 0.5 else QUANTIZATION


def _as_wrong(reference: ErrorSums, total: ErrorSums) -> bool:
    """Whether the unquantized engine has half of the error or more."""
    if total.mismatched_non_finite:
        return reference.mismatched_non_finite > 0
    return bool(reference.mismatched_non_finite) or reference.sq_err >= total.sq_err / 2


@dataclass(frozen=True)
class SimulationAgreement:
    """How well the simulation predicts the engine.

    Attributes:
        tensors: those whose error in the engine is below RELEVANT_DB.
        within: the share of them where simulation and engine differ by at most TOLERANCE_DB;
            None where there are none.
        spearman: rank correlation of both errors over all tensors with a finite error; None for
            fewer than three.
    """

    tensors: int
    within: float | None
    spearman: float | None


def simulation_agreement(items: Sequence[Attribution]) -> SimulationAgreement:
    """Compare the errors of the simulation with those of the engine, tensor by tensor."""
    relevant = [x for x in items if not x.total_db >= RELEVANT_DB]
    near = [
        x
        for x in relevant
        if (math.isnan(x.quantization_db) and math.isnan(x.total_db))
        or x.quantization_db == x.total_db
        or abs(x.quantization_db - x.total_db) <= TOLERANCE_DB
    ]
    ranked = [x for x in items if math.isfinite(x.quantization_db) and math.isfinite(x.total_db)]
    return SimulationAgreement(
        tensors=len(relevant),
        within=len(near) / len(relevant) if relevant else None,
        spearman=_spearman([(x.quantization_db, x.total_db) for x in ranked]),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < 3:
        return None
    from scipy.stats import rankdata

    a, b = (rankdata(column) for column in zip(*pairs, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
