"""Tell TensorRT 10 what a model's constraints ask: layer precisions, types, ranges, flags."""

from __future__ import annotations

import re
from typing import Any

from qdebug.errors import PlanError, UsageError
from qdebug.plan.constraints import Constraints
from qdebug.plan.parsed_network import builder_flags, constrain, ranges_in, set_ranges
from qdebug.run.tensorrt.build.calibrator import make_calibrator
from qdebug.run.tensorrt.library import Library

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
        )
    if constraints.by_cache:
        return
    ranges = ranges_in(network, library.module, constraints)
    refused = set_ranges(network, ranges)
    if refused:
        raise PlanError(
            f"{library.name} has no tensor '{refused[0]}', or refuses its range "
            f"±{ranges[refused[0]]}"
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
    """Refuse a library without the implicit way.

    Raises:
        UsageError: not TensorRT 10.
    """
    if not library.implicit:
        raise UsageError(
            f"{library.name} has no implicit quantization (precision constraints and dynamic "
            "ranges): TensorRT 10 was the last that had",
            "Use --typing strong, which builds the lowered model (explicit Q/DQ and Cast).",
        )
