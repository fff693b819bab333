"""Whether looking inside an engine changed what it computes, and whether an engine can be trusted.

An engine whose inner tensors are observed is another engine: less is fused. So its outputs are
compared with those of the clean one, and the errors of both with each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from qdebug.metrics.sums import ErrorSums, measure
from qdebug.metrics.tensor import sqnr_of
from qdebug.result import MaybeText, in_json
from qdebug.results.attribution import RELEVANT_DB, TOLERANCE_DB
from qdebug.types import Tensors


@dataclass(frozen=True)
class OutputCheck:
    """One output of the model, as SQNR in dB; NaN where one side is not finite and the other is.

    Attributes:
        difference_db: the clean engine against the observed one.
        clean_db: FP32 against the clean engine.
        observed_db: FP32 against the observed engine.
    """

    output: str
    difference_db: float
    clean_db: float
    observed_db: float


@dataclass(frozen=True)
class CaptureCheck:
    """Whether observing changed an engine.

    Attributes:
        way: how it was observed.
        observed: how many tensors were.
        outputs: see OutputCheck.
        hides: why what was observed does not explain the clean engine's error; "" if it does.
    """

    way: str
    observed: int
    outputs: tuple[OutputCheck, ...]
    hides: MaybeText


@dataclass
class CaptureSums:
    """Gathers the outputs of three runs: FP32, the clean engine, the observed one."""

    difference: dict[str, ErrorSums] = field(default_factory=dict)
    clean: dict[str, ErrorSums] = field(default_factory=dict)
    observed: dict[str, ErrorSums] = field(default_factory=dict)

    def add(self, reference: Tensors, clean: Tensors, observed: Tensors) -> None:
        """One execution."""
        add_errors(self.difference, clean, observed)
        add_errors(self.clean, reference, clean)
        add_errors(self.observed, reference, observed)

    def check(self, way: str, observed: int, silent: str = "") -> CaptureCheck:
        """What they show. `silent` says why tensors were not observed."""
        outputs = tuple(
            OutputCheck(
                name,
                sqnr_of(self.difference[name]),
                sqnr_of(self.clean[name]),
                sqnr_of(self.observed[name]),
            )
            for name in self.clean
            if name in self.observed and name in self.difference
        )
        reasons = [reason for x in outputs if (reason := _hides(x))]
        if not observed:
            why = f": {silent}" if silent else ""
            reasons.insert(0, f"no tensor inside the engine could be observed{why}")
        return CaptureCheck(way, observed, outputs, reasons[0] if reasons else "")


def _hides(x: OutputCheck) -> str:
    clean, observed = x.clean_db, x.observed_db
    if math.isnan(clean) != math.isnan(observed):
        broken, whole = ("clean", "observed") if math.isnan(clean) else ("observed", "clean")
        return f"'{x.output}' is not finite in the {broken} engine, and is in the {whole} one"
    if math.isnan(clean) or min(clean, observed) >= RELEVANT_DB:
        return ""
    if clean == observed or abs(clean - observed) <= TOLERANCE_DB:
        return ""
    return f"'{x.output}' has {clean:.1f} dB in the clean engine, {observed:.1f} dB when observed"


@dataclass(frozen=True)
class Preflight:
    """What holds before any quantization error can be told from others, as SQNR in dB by output.

    Attributes:
        fp32_db: FP32 on the CPU against an FP32 engine.
        repeat_db: the engine against another build of the same model; +inf when equal.
    """

    fp32_db: Mapping[str, float]
    repeat_db: Mapping[str, float]

    @property
    @in_json
    def reference_mismatch(self) -> tuple[str, ...]:
        """Outputs that are wrong without any quantization."""
        return tuple(n for n, db in self.fp32_db.items() if not db >= RELEVANT_DB)

    @property
    @in_json
    def repeatable(self) -> bool:
        """Whether both builds gave the same numbers, bit for bit."""
        return all(db == math.inf for db in self.repeat_db.values())


def add_errors(totals: dict[str, ErrorSums], reference: Tensors, other: Tensors) -> None:
    """Add the errors of one execution, of tensors that both have in the same shape."""
    for name, array in reference.items():
        if name not in other or array.shape != other[name].shape or array.dtype.kind != "f":
            continue
        sums = measure(array, other[name])
        totals[name] = totals[name].merge(sums) if name in totals else sums
