"""What a comparison found: plain records, from which every report is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qdebug.measure.conditions import Checked
from qdebug.measure.engine import EngineReport
from qdebug.measure.metrics import METRIC_NAMES, Metrics
from qdebug.types import Fp16Kernels, Precision, Skipped

HARMLESS_DB = 40.0
"""An error of a hundredth of the signal: an overflow whose readers show less is no culprit."""


@dataclass(frozen=True)
class TensorResult:
    """A tensor's cumulative error."""

    name: str
    metrics: Metrics


@dataclass(frozen=True)
class Cause:
    """One reason why a layer is wrong, with the numbers that show it.

    Attributes:
        label: one of DESIGN's causes: clipping, coarse-step, weight-range, …
        share: of the layer's local error energy, 0 to 1; for accumulation, amplification, kernel
            and reference-mismatch, of the error energy at its output; None for not-as-planned,
            which is no part of an error.
        evidence: the measured numbers, for people.
        remedy: what to do.
    """

    label: str
    share: float | None
    evidence: str
    remedy: str


@dataclass(frozen=True)
class LayerResult:
    """A layer's error.

    Attributes:
        metrics: cumulative: of its output tensor, reference run against candidate run.
        local_sqnr_db: of its output when it reads the reference's activations; None for a layer
            that runs in FP32, or that could not be cut loose.
        input_clipped_fraction: the largest share of an input's values that its Q/DQ pair clips.
        rank: 1 is the worst; by local error, and layers without one by cumulative error.
        readers_sqnr_db: of a layer that holds NaN or Inf of its own, the lowest SQNR among the
            layers that read them, where all of those are finite; it then ranks by it.
    """

    name: str
    op_type: str
    precision: Precision
    tensor: str
    nodes: tuple[str, ...]
    metrics: Metrics
    local_sqnr_db: float | None
    input_clipped_fraction: float | None
    rank: int = 0
    causes: tuple[Cause, ...] = ()
    readers_sqnr_db: float | None = None

    def figure(self, metric: str) -> float | None:
        """The value of one of LAYER_METRICS, by its name."""
        value: float | None = getattr(self.metrics if metric in METRIC_NAMES else self, metric)
        return value

    @property
    def harmless(self) -> bool:
        """It overflows, and what reads it shows nothing of that: as a mask of -Inf."""
        return self.readers_sqnr_db is not None and self.readers_sqnr_db >= HARMLESS_DB


@dataclass(frozen=True)
class Divergence:
    """The first tensor in execution order whose SQNR is under the threshold."""

    tensor: str
    layer: str | None
    sqnr_db: float
    threshold_db: float


@dataclass(frozen=True)
class TaskResult:
    """End-to-end accuracy of both runs."""

    name: str
    reference: float
    candidate: float


@dataclass(frozen=True)
class Verdict:
    """Whether every condition of the gate held."""

    conditions: tuple[Checked, ...] = ()

    @property
    def passed(self) -> bool:
        """True also when no condition was set."""
        return all(c.passed for c in self.conditions)


@dataclass(frozen=True)
class CompareResult:
    """Everything `qdebug compare` measured.

    `fp16_kernels` is how the simulation computed the layers in FP16; None where there are none.
    """

    model_path: str
    model_sha256: str
    backend: str
    precision: str
    samples: int
    local_samples: int
    verdict: Verdict
    outputs: tuple[TensorResult, ...]
    layers: tuple[LayerResult, ...]
    tensors: tuple[TensorResult, ...]
    first_divergence: Divergence | None
    skipped: tuple[Skipped, ...]
    task: TaskResult | None = None
    notes: tuple[str, ...] = ()
    timings_s: Mapping[str, float] = field(default_factory=dict)
    engine: EngineReport | None = None
    fp16_kernels: Fp16Kernels | None = None

    @property
    def passed(self) -> bool:
        """The gate held, and an engine that was built is what was planned."""
        return self.verdict.passed and (self.engine is None or self.engine.passed)
