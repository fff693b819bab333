"""The causes that only an engine shows."""

from __future__ import annotations

import math

from qdebug.analyse.causes.engine import attributed_cause, not_as_planned
from qdebug.engine_info.audit import AuditedLayer, AuditVerdict
from qdebug.results.attribution import Attribution
from qdebug.types import Precision

NAN = math.nan


def kernel(tensor: str, db: float, quantization: float = 40.0) -> Attribution:
    return Attribution(tensor, quantization, db, min(db, quantization), None, 0.9, "kernel")


def found(*items: Attribution) -> dict[str, Attribution]:
    return {a.tensor: a for a in items}


def test_a_kernel_is_blamed_where_its_error_is_born() -> None:
    known = found(kernel("a", 55), kernel("b", 20), kernel("c", 19))
    born = attributed_cause("b", known, ["a"])
    assert born is not None and (born.label, born.share) == ("kernel", 0.9)
    assert "20.0 dB" in born.evidence and "40.0 dB" in born.evidence
    half = attributed_cause("b", known, ["a"], half_product=True)
    assert half is not None and "FP32" in half.remedy and half.evidence == born.evidence
    inherited = attributed_cause("c", known, ["b"])
    assert inherited is not None and "comes in with 'b'" in inherited.evidence
    assert inherited.remedy != born.remedy


def test_what_is_not_finite_is_blamed_where_it_begins() -> None:
    known = found(kernel("a", 50), kernel("b", NAN), kernel("c", NAN))
    begins, later = (attributed_cause(t, known, [before]) for t, before in (("b", "a"), ("c", "b")))
    assert begins is not None and later is not None
    assert "NaN or Inf" in begins.evidence and "comes in" not in begins.evidence
    assert "comes in with 'b'" in later.evidence


def test_quantization_and_little_error_are_no_cause_of_the_engine() -> None:
    known = found(Attribution("q", 20, 60, 20, None, 0.0, "quantization"))
    known |= found(Attribution("s", 80, 90, 79, None, 0.1, ""))
    assert [attributed_cause(t, known, []) for t in ("q", "s", "unseen")] == [None] * 3


def test_a_reference_that_is_wrong_has_its_part_of_the_error() -> None:
    known = found(Attribution("m", 40, 21, 20, 22, 0.9, "reference-mismatch"))
    cause = attributed_cause("m", known, [])
    assert cause is not None and cause.label == "reference-mismatch"
    assert cause.share is not None and math.isclose(cause.share, 10**-0.2)
    assert "22.0 dB" in cause.evidence and "20.0 dB" in cause.evidence
    broken = found(Attribution("m", 40, NAN, NAN, NAN, 1.0, "reference-mismatch"))
    cause = attributed_cause("m", broken, [])
    assert cause is not None and cause.share == 1.0 and "NaN or Inf" in cause.evidence


def test_a_mismatch_of_the_audit_says_what_to_do() -> None:
    row = AuditedLayer(
        "up", "ConvTranspose", Precision.INT8, "fp32", AuditVerdict.MISMATCH, "no", "Pin.", "up_1"
    )
    cause = not_as_planned(row)
    assert (cause.label, cause.share, cause.remedy) == ("not-as-planned", None, "Pin.")
    assert "planned in int8, built in fp32" in cause.evidence and "'up_1'" in cause.evidence
