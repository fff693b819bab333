"""The GPU that an engine was measured on, and what it can do at most."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qdebug.errors import UsageError
from qdebug.result import MaybeText


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


def is_device_metadata(document: object) -> bool:
    """Whether a JSON document is the metadata that trex's tools write beside an engine."""
    found = document[0] if isinstance(document, list) and document else document
    return isinstance(found, Mapping) and "ComputeCapability" in found


def read_device_metadata(document: Any, name: str) -> Device:
    """The GPU in metadata of trex (`*.metadata.json`).

    Raises:
        UsageError: the document is something else, or a figure is no number.
    """
    if not is_device_metadata(document):
        raise UsageError(
            f"{name} is not the metadata of an engine",
            "trex (NVIDIA's engine explorer) writes it: FILE.metadata.json.",
            code="QD-USAGE-ENGINE-FILE",
        )
    found = document[0] if isinstance(document, list) else document
    capability = found["ComputeCapability"]
    if not (isinstance(capability, list) and len(capability) > 1 and all(map(_is_int, capability))):
        raise UsageError(
            f"{name}: 'ComputeCapability' is {capability!r}, not two whole numbers",
            code="QD-USAGE-ENGINE-FILE-DAMAGED",
        )
    count = found.get("MULTIPROCESSOR_COUNT")
    clock, memory = found.get("CLOCK_RATE"), found.get("MEMORY_CLOCK_RATE")
    return Device(
        name=str(found.get("Name", "")),
        compute_capability=(capability[0], capability[1]),
        multiprocessors=count if _is_int(count) else None,
        clock_ghz=clock / 1e6 if _is_int(clock) else None,
        bandwidth_gb_s=_bandwidth(
            memory / 1e6 if _is_int(memory) else None, found.get("GLOBAL_MEMORY_BUS_WIDTH")
        ),
    )


def device_in_log(messages: Sequence[str]) -> Device | None:
    """The GPU in the "=== Device Information ===" of trtexec's log; None without it.

    Args:
        messages: the lines without what comes before their messages.
    """
    text = "\n".join(messages)
    start = text.find("=== Device Information ===")
    if start < 0:
        return None
    found = text[start : start + _SECTION]
    name = _line(r"Selected Device: (.+)", found)
    capability = re.search(r"Compute Capability: (\d+)\.(\d+)", found)
    count = _line(r"SMs: (\d+)", found)
    clock = _line(r"Compute Clock Rate: ([\d.]+) GHz", found)
    memory = _line(r"Memory Clock Rate: ([\d.]+) GHz", found)
    width = _line(r"Memory Bus Width: (\d+) bits", found)
    return Device(
        name=name,
        compute_capability=(int(capability[1]), int(capability[2])) if capability else None,
        multiprocessors=int(count) if count else None,
        clock_ghz=float(clock) if clock else None,
        bandwidth_gb_s=_bandwidth(float(memory) if memory else None, int(width) if width else None),
    )


_SECTION = 4000
"""Characters of the log that hold it."""


def _line(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip() if found else ""


def _bandwidth(memory_ghz: float | None, bus_bits: object) -> float | None:
    """Two transfers a cycle, of the width of the bus."""
    if memory_ghz is None or not isinstance(bus_bits, int) or not _is_int(bus_bits):
        return None
    return round(2 * memory_ghz * bus_bits / 8, 1)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


_MOST = 2**63
"""Larger whole numbers are no figures of a GPU."""
