"""What is known of the engine behind a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.backends.engine import BuildWarning, ProviderNodes
from qdebug.engine_info.audit import Audit
from qdebug.result import MaybeText, in_json
from qdebug.results.attribution import Attribution, SimulationAgreement
from qdebug.results.observation import CaptureCheck, Preflight
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
    precision: MaybeText


@dataclass(frozen=True)
class EngineExecution:
    """What an engine did on its device.

    Attributes:
        latency_ms: median time of one execution of `latency_samples` samples: of the GPU, copies
            not counted; on a CPU, wall time.
        kernels: the time of each of its layers, in execution order.
        preflight: what must hold before quantization error can be told from other errors.
        capture: how tensors were observed.
        checks: whether observing changed the engine, for each way that was tried.
        agreement: of the simulation with the engine.
        outputs: the error of each output of the model in the clean engine, in parts.
        worst_quantization_db, worst_kernel_db: SQNR of the worst part of the outputs, such as
            boxes and scores: of the simulation against FP32, and of the clean engine against the
            simulation.
        tensors: the same of each observed tensor.
        skipped: tensors that could not be observed.
    """

    latency_ms: float
    latency_samples: int
    kernels: tuple[KernelTime, ...]
    preflight: Preflight
    capture: str
    checks: tuple[CaptureCheck, ...]
    agreement: SimulationAgreement
    outputs: tuple[Attribution, ...]
    tensors: tuple[Attribution, ...]
    worst_quantization_db: float
    worst_kernel_db: float
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True)
class EngineReport:
    """An engine that was built, and whether it is what was planned.

    Attributes:
        library: such as "TensorRT for RTX 1.7.1".
        built_for: a GPU's name, or compute capabilities.
        not_executed_because: "" where it was executed.
        build_s: wall time of the build; `cached` engines were built earlier.
        layers: how many it has; 0 where the runtime does not tell.
        audit: requested vs. built precision; None where the runtime does not tell.
        execution: None where it was not executed.
        providers: of ONNX Runtime, and which nodes each of them executes.
    """

    library: str
    built_for: str
    not_executed_because: MaybeText
    build_s: float
    cached: bool
    size_bytes: int
    layers: int
    warnings: tuple[BuildWarning, ...]
    audit: Audit | None
    execution: EngineExecution | None = None
    providers: tuple[ProviderNodes, ...] = ()

    @property
    @in_json
    def executed(self) -> bool:
        """Whether it was executed here."""
        return not self.not_executed_because

    @property
    def passed(self) -> bool:
        """No layer is known to have been built in another precision than planned."""
        return self.audit is None or self.audit.passed
