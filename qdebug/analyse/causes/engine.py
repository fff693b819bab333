"""What an engine adds to the causes of a layer's error: it was built otherwise than planned, its
kernels compute something else, or it is wrong without any quantization."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from qdebug.engine_info.audit import AuditedLayer
from qdebug.results.attribution import KERNEL, REFERENCE_MISMATCH, Attribution
from qdebug.results.compare import OUTPUT_ERROR, Cause
from qdebug.wording import option

NOT_AS_PLANNED = "not-as-planned"
ENGINE_LABELS = (NOT_AS_PLANNED, REFERENCE_MISMATCH, KERNEL)
"""The causes that only an engine shows, in the order in which a user looks into them."""


def not_as_planned(row: AuditedLayer) -> Cause:
    """The cause that a mismatch in the audit shows."""
    where = f" by its layer '{row.engine_layer}'" if row.engine_layer else ""
    note = f": {row.note}" if row.note else ""
    return Cause(
        NOT_AS_PLANNED,
        None,
        f"planned in {row.requested}, built in {row.built}{where}{note}",
        row.advice
        or f"Inspect the engine's build log ({option('save_log')}, then qdebug inspect).",
    )


def attributed_cause(
    tensor: str,
    found: Mapping[str, Attribution],
    reads: Iterable[str],
    *,
    half_product: bool = False,
) -> Cause | None:
    """The cause that the engine shows at the output of a layer; None where it is quantization.

    Args:
        tensor: the layer's output.
        found: the parts of the engine's error, by tensor.
        reads: what the layer reads.
        half_product: it multiplies matrices in FP16. TensorRT sums these in FP16 too, but in FP32
            between Casts to FP32 and back (seen on an H100: 57 and 74 dB of 1536 terms).
    """
    here = found.get(tensor)
    if here is None or here.label not in (KERNEL, REFERENCE_MISMATCH):
        return None
    source = next((t for t in reads if t != tensor and _comes_from(here, found.get(t))), None)
    evidence = _kernel_evidence(here) if here.label == KERNEL else _reference_evidence(here)
    if source is not None:
        return Cause(
            here.label,
            _share(here),
            f"{evidence}; most of it comes in with '{source}'",
            "Look at the layers before it.",
            OUTPUT_ERROR,
        )
    remedy = remedy_of(here.label, half_product)
    return Cause(here.label, _share(here), evidence, remedy, OUTPUT_ERROR)


def remedy_of(label: str, half_product: bool = False) -> str:
    """What to do about kernels, or an engine that is wrong without quantization."""
    if label == REFERENCE_MISMATCH:
        return (
            "Look for the reason without quantization: an operator that the library computes "
            "differently, TF32, or an overflow."
        )
    if half_product:
        return "Keep it in FP32: TensorRT sums FP16 products in FP16, but FP32 products in FP32."
    return (
        "Try other builder settings (`qdebug sweep`), or keep the layer in FP32: where a kernel "
        "differs from the simulation, neither another calibration nor a repair helps."
    )


def _comes_from(here: Attribution, before: Attribution | None) -> bool:
    """Whether half of the error or more, relative to the signal, was there before."""
    if before is None or before.label != here.label:
        return False
    now, then = _own_db(here), _own_db(before)
    return math.isnan(then) or (not math.isnan(now) and then <= now + 3)


def _own_db(x: Attribution) -> float:
    if x.label == KERNEL or x.reference_db is None:
        return x.kernel_db
    return x.reference_db


def _share(x: Attribution) -> float:
    if x.label == KERNEL:
        return x.kernel_share
    if x.reference_db is None or math.isnan(x.reference_db) or math.isnan(x.total_db):
        return 1.0
    return min(1.0, float(10 ** ((x.total_db - x.reference_db) / 10)))


def _kernel_evidence(x: Attribution) -> str:
    if math.isnan(x.kernel_db):
        return "the engine's result holds NaN or Inf where the simulation's does not"
    return (
        f"the SQNR of the engine against the simulation is {_decibel(x.kernel_db)}, that of the "
        f"simulation against FP32 {_decibel(x.quantization_db)}"
    )


def _reference_evidence(x: Attribution) -> str:
    return (
        f"the SQNR of an engine without quantization is {_apart(x.reference_db)}, that of this one "
        f"{_apart(x.total_db)}"
    )


def _apart(db: float | None) -> str:
    return "NaN or Inf" if db is None else _decibel(db)


def _decibel(db: float) -> str:
    if math.isnan(db):
        return "NaN or Inf"
    return "exact" if db == math.inf else f"{db:.1f} dB"
