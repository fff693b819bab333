"""What is known of the engine behind a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.engine_info.plan_audit import PlanAudit
from qdebug.measure.attribution import Agreement, Attribution
from qdebug.measure.observation import CaptureCheck, Preflight
from qdebug.run.engine import BuildWarning
from qdebug.types import Skipped


@dataclass(frozen=True)
class KernelTime:
    """The time of one layer of an engine, which may hold several of the model.

    Attributes:
        ms: median of one execution, measured layer by layer.
        onnx_nodes: names of the ONNX nodes it computes.
        precision: it computes in; "" where that is not known.
    """

    name: str
    ms: float
    onnx_nodes: tuple[str, ...]
    precision: str


@dataclass(frozen=True)
class Execution:
    """What an engine did on its device.

    Attributes:
        preflight: what holds before any quantization error can be told from others.
        way, checks: how tensors were observed, and whether that changed the engine, for each way
            that was tried.
        tensors: the error of each observed tensor, in parts.
        outputs: the same of the model's outputs, in the clean engine.
        agreement: of the simulation with the engine.
        latency_ms: median time of one execution of `latency_samples` samples: of the GPU, copies
            not counted; on a CPU, wall time.
        skipped: how many tensors could not be observed.
        kernels: the time of each of its layers, in execution order.
    """

    preflight: Preflight
    way: str
    checks: tuple[CaptureCheck, ...]
    tensors: tuple[Attribution, ...]
    outputs: tuple[Attribution, ...]
    agreement: Agreement
    latency_ms: float
    latency_samples: int
    skipped: tuple[Skipped, ...]
    kernels: tuple[KernelTime, ...] = ()


@dataclass(frozen=True)
class EngineReport:
    """An engine that was built, and whether it is what was planned.

    Attributes:
        library: such as "TensorRT for RTX 1.7.1".
        built_for: a GPU's name, or compute capabilities.
        not_run: why it was not executed; "" where it was.
        seconds: wall time of the build; `cached` engines were built earlier.
        layers: how many it has; 0 where the runtime does not tell.
        audit: requested vs. built precision; None where the runtime does not tell.
        execution: None where it was not run.
    """

    library: str
    built_for: str
    not_run: str
    seconds: float
    cached: bool
    size_bytes: int
    layers: int
    warnings: tuple[BuildWarning, ...]
    audit: PlanAudit | None
    execution: Execution | None = None

    @property
    def passed(self) -> bool:
        """No layer is known to have been built in another precision than planned."""
        return self.audit is None or self.audit.audit.passed
