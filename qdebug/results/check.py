"""What `qdebug check` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from qdebug.result import ModelRef, ReadData, Result, in_json
from qdebug.results.framework import FrameworkResult

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """Something about the model or the data.

    Attributes:
        severity: an "error" is certainly wrong, a "warning" probably, a "note" is good to know.
        kind: a stable name, such as "channel-order".
        message: what was seen, with its figures.
        remedy: what to do; "" where there is nothing.
    """

    severity: Severity
    kind: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckedTensor:
    """An input or an output of the model.

    Attributes:
        shape: its axes; names of free ones, null where these have none.
        meaning: what it holds, where that is known.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: str
    meaning: str = ""


@dataclass(frozen=True)
class ValueRange:
    """The values of an input, over the samples that were looked at."""

    setting: str
    name: str
    low: float
    high: float
    mean: float
    std: float


@dataclass(frozen=True)
class TriedVariant:
    """FP32 on the same samples, prepared in another way.

    Attributes:
        name: of the way; "as given" for the first.
        value: FP32's score.
        judged: whether that says how samples are to be prepared; of much larger values FP32's
            confidence does not.
    """

    name: str
    value: float
    judged: bool = True


@dataclass(frozen=True, repr=False)
class CheckResult(Result):
    """What was looked at, and what is wrong.

    Attributes:
        producer: the exporter, as the file names it.
        layers: how many there are that can be quantized.
        macs: multiply-accumulates of one sample; null where an axis is free, or nothing multiplies.
        uncounted: operators that multiply too and stay in FP32, by type: their number. `macs` is
            without them.
        samples: that FP32 was run on; 0 without data.
        score: what `variants` are judged by: a metric, or FP32's confidence where there are no
            labels; "" where there is neither.
        variants: the ways of preparing the samples that were tried.
        findings: the worst first.
        framework: the training framework against the model; null where its outputs were not given.
        quantized: the model holds Q/DQ or operators on integers: what is said of its score is said
            of that, not of FP32.
    """

    SCHEMA: ClassVar[str] = "qdebug.check/1"
    ROWS: ClassVar[str] = "findings"

    model: ModelRef
    opset: int
    producer: str
    inputs: tuple[CheckedTensor, ...]
    outputs: tuple[CheckedTensor, ...]
    layers: int
    macs: float | None
    samples: int
    ranges: tuple[ValueRange, ...]
    score: str
    variants: tuple[TriedVariant, ...]
    findings: tuple[Finding, ...]
    data: tuple[ReadData, ...] = ()
    framework: FrameworkResult | None = None
    uncounted: Mapping[str, int] = field(default_factory=dict)
    quantized: bool = False

    @property
    @in_json
    def passed(self) -> bool:
        """Whether nothing is certainly wrong."""
        return not any(finding.severity == "error" for finding in self.findings)

    def headline(self) -> str:
        """The verdict in a sentence."""
        count = Counter(finding.severity for finding in self.findings)
        told = f"{count['error']} wrong, {count['warning']} suspicious"
        found = count["error"] + count["warning"]
        return f"{self.model.name}: {told if found else 'nothing suspicious'}"
