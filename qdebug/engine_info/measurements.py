"""What was measured of an engine, and the GPU that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdebug.result import MaybeText


@dataclass(frozen=True)
class LayerTime:
    """The time of one execution of the layer `name`, averaged over the profile's runs."""

    name: str
    ms: float


@dataclass(frozen=True)
class ExecutionTimes:
    """Executions of a whole engine; None for what the file does not say.

    Attributes:
        count: how many were measured.
        compute_ms, latency_ms: median of the GPU's computing, and with the copies to and from it.
        compute_p99_ms: what 99 % of the executions compute within.
        enqueue_ms: median of what the host takes to enqueue one.
        throughput: executions a second.
    """

    count: int
    compute_ms: float | None
    latency_ms: float | None
    compute_p99_ms: float | None = None
    enqueue_ms: float | None = None
    throughput: float | None = None


@dataclass(frozen=True)
class Device:
    """A GPU, as far as a file tells.

    Attributes:
        compute_capability: such as (8, 0); None where the file does not say.
        multiprocessors: how many it has.
        clock_ghz: of the multiprocessors, at most.
        bandwidth_gb_s: of its memory, at most, in 10⁹ bytes a second.
    """

    name: MaybeText
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    clock_ghz: float | None = None
    bandwidth_gb_s: float | None = None

    def peak_macs(self, precision: str) -> float | None:
        """Multiply-accumulates a second at most in a precision, dense; None where the GPU or its
        rate for that precision is not known."""
        rates = _RATES.get(self.compute_capability or (0, 0), {})
        rate = rates.get("fp16" if precision == "bf16" else precision)
        if rate is None or self.multiprocessors is None or self.clock_ghz is None:
            return None
        return rate * self.multiprocessors * self.clock_ghz * 1e9


# Multiply-accumulates of a multiprocessor in a cycle, dense, on tensor cores except FP32: what
# NVIDIA's white papers of the architectures give for A100, H100, T4, V100, RTX 30, 40 and 50.
_RATES: Mapping[tuple[int, int], Mapping[str, int]] = {
    (7, 0): {"fp16": 512, "fp32": 64, "int8": 256},
    (7, 5): {"fp16": 512, "fp32": 64, "int8": 1024},
    (8, 0): {"fp16": 1024, "tf32": 512, "fp32": 64, "int8": 2048},
    (8, 6): {"fp16": 512, "tf32": 128, "fp32": 128, "int8": 1024},
    (8, 7): {"fp16": 1024, "tf32": 512, "fp32": 128, "int8": 2048},
    (8, 9): {"fp16": 512, "tf32": 128, "fp32": 128, "int8": 1024, "fp8": 1024},
    (9, 0): {"fp16": 2048, "tf32": 1024, "fp32": 128, "int8": 4096, "fp8": 4096},
    (10, 0): {"fp16": 4096, "tf32": 2048, "fp32": 128, "int8": 8192, "fp8": 8192},
    (12, 0): {"fp16": 512, "tf32": 128, "fp32": 128, "int8": 1024, "fp8": 1024},
}
