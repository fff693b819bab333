"""What is known of the engine behind a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from qdebug.run.tensorrt.inspect.plan_audit import PlanAudit
from qdebug.run.tensorrt.messages import BuildWarning


@dataclass(frozen=True)
class EngineReport:
    """An engine that was built, and whether it is what was planned.

    Attributes:
        library: such as "TensorRT for RTX 1.7.1".
        built_for: a GPU's name, or compute capabilities.
        not_run: why it was not executed; "" where it was.
        seconds: wall time of the build; `cached` engines were built earlier.
        layers: how many it has.
        audit: asked against built.
    """

    library: str
    built_for: str
    not_run: str
    seconds: float
    cached: bool
    size_bytes: int
    layers: int
    warnings: tuple[BuildWarning, ...]
    audit: PlanAudit

    @property
    def passed(self) -> bool:
        """Every layer was built in the precision it was planned in."""
        return self.audit.audit.passed
