"""A plan for other tools: one file per target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from qdebug.plan.export.onnx_model import write_onnx
from qdebug.plan.plan import BoundPlan

TARGETS: Mapping[str, Callable[[BoundPlan, Path], None]] = {"onnx": write_onnx}
"""What `--to` accepts."""
