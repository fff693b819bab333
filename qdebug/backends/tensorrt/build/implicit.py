"""Implicit quantization, which only TensorRT 10 has: pass a model's constraints to the network, the
builder and, for a calibration cache, a calibrator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from qdebug.backends.tensorrt.library import Library
from qdebug.errors import PlanError, UsageError
from qdebug.formats.registry import INT8
from qdebug.plan.constraints import Constraints
from qdebug.plan.parsed_network import builder_flags, constrain, ranges_in, set_ranges
from qdebug.plan.trtcache import DEFAULT_KIND, KINDS, CalibrationCache, cache_text
from qdebug.wording import option

EXPECTED_WARNINGS = re.compile(
    r"^(?:Missing scale and zero-point for tensor .*, expect fall back to non-int8|"
    r"Calibrator is not being used\. Users must provide dynamic range for all tensors)"
)
"""What TensorRT 10 says of tensors without a range: only those of layers that are not INT8 have
none."""


def apply_constraints(library: Library, network: Any, constraints: Constraints) -> None:
    """Set precisions, element types and (without a calibrator) ranges in a parsed network.

    Raises:
        UsageError: not TensorRT 10.
        PlanError: the network has no layer for a node of the plan that must be pinned, or no
            tensor for a range.
    """
    check_implicit(library)
    lost = constrain(network, library.module, constraints)
    if lost:
        raise PlanError(
            f"{library.name} parsed no layer for node '{lost[0]}' of the plan",
            "Simplify the model first (onnxslim), so that it holds what TensorRT keeps.",
            code="QD-PLAN-NOT-PARSED",
        )
    if constraints.by_cache:
        return
    ranges = ranges_in(network, library.module, constraints)
    refused = set_ranges(network, ranges)
    if refused:
        raise PlanError(
            f"{library.name} has no tensor '{refused[0]}', or refuses its range "
            f"±{ranges[refused[0]]}",
            code="QD-PLAN-NOT-PARSED",
        )


def constrain_config(library: Library, config: Any, network: Any, constraints: Constraints) -> Any:
    """Set the builder's flags, and the calibrator if there is to be one.

    Returns:
        The calibrator, which the caller keeps until the engine is built; or None.

    Raises:
        UsageError: not TensorRT 10.
    """
    check_implicit(library)
    flags = builder_flags(constraints)
    for flag in flags:
        config.set_flag(getattr(library.module.BuilderFlag, flag))
    if not constraints.by_cache or "INT8" not in flags:
        return None
    calibrator = make_calibrator(library, ranges_in(network, library.module, constraints))
    config.int8_calibrator = calibrator
    return calibrator


def check_implicit(library: Library) -> None:
    """Refuse a library without implicit quantization.

    Raises:
        UsageError: not TensorRT 10.
    """
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no implicit quantization (precision constraints and dynamic "
            "ranges): TensorRT 10 was the last that had",
            f"Use {option('typing', 'strong')}, which builds the lowered "
            "model (explicit Q/DQ and Cast).",
            code="QD-USAGE-IMPLICIT",
        )


_CLASSES = {
    "EntropyCalibration2": "IInt8EntropyCalibrator2",
    "MinMaxCalibration": "IInt8MinMaxCalibrator",
    "EntropyCalibration": "IInt8EntropyCalibrator",
}


def make_calibrator(library: Library, ranges: Mapping[str, float], kind: str = DEFAULT_KIND) -> Any:
    """A `trt.IInt8Calibrator` whose calibration cache holds `ranges`.

    The builder reads the cache and asks for no batch. If it does ask, it did not accept the cache
    (github.com/NVIDIA/TensorRT/issues/1378); there is none to give, and `refused` of the
    calibrator turns true.

    Args:
        library: TensorRT 10.
        ranges: amax by tensor name.
        kind: of the cache, as its header says; decides the class.

    Raises:
        UsageError: the library knows no calibrators, or not this kind.
    """
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no INT8 calibrators",
            "Build the model with Q/DQ nodes: it needs none.",
            code="QD-USAGE-IMPLICIT",
        )
    if kind not in _CLASSES:
        known = ", ".join(k for k in KINDS if k in _CLASSES)
        raise UsageError(
            f"no calibrator can serve a cache of kind '{kind}'",
            f"Use {known}.",
            code="QD-USAGE-IMPLICIT",
        )
    scales = {name: amax / INT8.largest for name, amax in ranges.items()}
    content = cache_text(CalibrationCache(cache_version(library), kind, scales)).encode()
    base: Any = getattr(library.module, _CLASSES[kind])

    class PlanCalibrator(base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)  # pybind11: a trampoline without it crashes
            self.refused = False

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            self.refused = True
            return None

        def read_calibration_cache(self) -> bytes:
            return content

        def write_calibration_cache(self, cache: Any) -> None:
            """Does nothing: the cache has not changed."""

    return PlanCalibrator()


def cache_version(library: Library) -> int:
    """The library's version as a cache's header has it: 101601 for 10.16.1."""
    major, minor, patch = (*library.version, 0, 0)[:3]
    return major * 10000 + minor * 100 + patch
